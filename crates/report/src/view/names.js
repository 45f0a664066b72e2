// Names of functions where there is little room: what says least is left out first, as stacks.rs has it.

/** What stands before and behind the parameters of a function; null if it has none. */
function aroundParameters(name) {
  let depth = 0;
  let begin = -1;
  for (let at = 0; at < name.length; at += 1) {
    const c = name[at];
    if ("<([{".includes(c)) {
      const isName = name.endsWith("operator", at) || name.startsWith("(anonymous", at);
      if (depth === 0 && c === "(" && !isName && begin < 0) begin = at;
      depth += 1;
    } else if (">)]}".includes(c)) {
      depth -= 1;
      if (depth === 0 && c === ")" && begin >= 0) return [name.slice(0, begin), name.slice(at + 1)];
    }
  }
  return null;
}

/** A name with `<...>` for the arguments of its templates; as it is if they are not balanced. */
function withoutArguments(name) {
  let short = "";
  let depth = 0;
  for (let at = 0; at < name.length; at += 1) {
    const c = name[at];
    const opens = name.endsWith("operator()", at) || (/[\p{L}\p{N}_]/u.test(name[at - 1] ?? "") && !name.endsWith("operator", at));
    if (c === "<" && depth > 0) depth += 1;
    else if (c === "<" && opens) {
      depth = 1;
      short += "<...";
    } else if (c === ">" && depth > 0 && name[at - 1] !== "-") {
      depth -= 1;
      if (depth === 0) short += c;
    } else if (depth === 0) short += c;
  }
  return depth ? name : short;
}

/** A name between its callers or numbers: letters that go from right to left turn nothing round but themselves. */
const isolated = (name) => (/[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(name) ? `\u2068${name}\u2069` : name);

/** Characters of a name in running text: some have ten thousand. */
const MOST_OF_NAME = 200;
const boundedName = (name) => fittingName(name, MOST_OF_NAME);

/** A name that is painted within so many pixels: not all characters are as wide as a Latin one. */
function paintedName(context, name, pixels, advance) {
  let most = Math.floor(pixels / advance);
  let text = fittingName(name, most);
  while (most > 1 && !/^[\x20-\x7e\u2026\u2190]*$/.test(text) && context.measureText(text).width > pixels) {
    most = Math.min(most - 1, Math.floor((most * pixels) / context.measureText(text).width));
    text = fittingName(name, Math.max(most, 1));
  }
  return text;
}

/** A name in so many characters. */
function fittingName(name, most) {
  if (name.length <= most) return name;
  const around = aroundParameters(name);
  const isCut = around && (around[1] !== "" || name.length > around[0].length + 2);
  const called = isCut ? `${around[0]}(...)${around[1]}` : name;
  if (called.length <= most) return called;
  const short = withoutArguments(called);
  const plain = short.replaceAll("(...)", "");
  const bare = plain.replaceAll("<...>", "");
  const ends = [...bare.matchAll(/::/g)].map(({ index }) => bare.slice(index)).filter((end) => ["<>", "{}"].every(([opens, closes]) => end.split(opens).length === end.split(closes).length));
  const own = ends.length ? ends[ends.length - 1].slice(2) : bare;
  const alone = isCut && own.endsWith(around[1]) ? own.slice(0, own.length - around[1].length) : own;
  const form = [short, plain, bare, ...ends.map((end) => `...${end}`), own, alone].find((one) => one.length <= most);
  if (form !== undefined) return form;
  // There is no room for a beginning and an end.
  if (most < 9) return `${alone.slice(0, Math.max(most - 1, 0))}\u2026`;
  const room = most - 3;
  const front = Math.floor(room / 2);
  return `${alone.slice(0, front)}...${alone.slice(alone.length - (room - front))}`;
}
