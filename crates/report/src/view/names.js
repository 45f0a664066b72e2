// Names of functions where there is little room: what says least is left out first.

/** A text without what stands between brackets; as it is if they are not balanced. */
function withoutBrackets(text, open, close) {
  let depth = 0;
  let rest = "";
  for (const character of text) {
    if (character === close && depth) depth -= 1;
    else if (character === open) depth += 1;
    else if (!depth) rest += character;
  }
  return depth ? text : rest;
}

/** A name in so many characters: without its parameters, the arguments of templates, its scopes, or at last its end. */
function fittingName(name, room) {
  if (name.length <= room) return name;
  const short = withoutBrackets(name, "(", ")");
  const plain = withoutBrackets(short, "<", ">");
  const ends = [...plain.matchAll(/::/g)].map(({ index }) => `...${plain.slice(index)}`);
  return [short, plain, ...ends].find((form) => form.length <= room) ?? `${name.slice(0, room - 1)}\u2026`;
}
