// The search: which functions have names that match, and what was allocated below them.

/** A test of names; a pattern that is not a regular expression is text. Null without a pattern. */
function matcher(pattern) {
  if (!pattern) return null;
  try {
    const expression = new RegExp(pattern, "i");
    return (name) => expression.test(name);
  } catch {
    const text = pattern.toLowerCase();
    return (name) => name.toLowerCase().includes(text);
  }
}

function searched(data, selection) {
  const test = matcher(selection.search);
  if (!test) return null;
  const { labels, labelOf, calls } = data;
  const ofName = new Map();
  const isMatch = (name) => {
    if (!ofName.has(name)) ofName.set(name, test(data.strings[name]));
    return ofName.get(name);
  };
  const byLabel = Uint8Array.from(labels.function, (name, label) => (label && label !== data.cutLabel && isMatch(name) ? 1 : 0));
  const byFrame = Uint8Array.from(labelOf, (label) => byLabel[label]);
  return { byLabel, byFrame, below: markedBelow(calls, byFrame) };
}

/** Sites with a match in their stack, and what they come to of what is shown. */
function searchTotals(data, { shown, mask, search }) {
  const totals = { sites: 0, bytes: 0, blocks: 0, functions: 0 };
  const { parent, frame } = data.calls;
  const isUsed = new Uint8Array(parent.length);
  for (let site = 0; site < data.count; site += 1) {
    if (!mask[site] || !search.below[data.sites.node[site]]) continue;
    totals.sites += 1;
    if (shown.blocks[site] !== 0) isUsed[data.sites.node[site]] = 1;
    totals.bytes += Math.max(shown.bytes[site], 0);
    totals.blocks += Math.max(shown.blocks[site], 0);
  }
  const isFound = new Uint8Array(data.strings.length);
  for (let node = parent.length - 1; node > 0; node -= 1) {
    if (!isUsed[node]) continue;
    isUsed[parent[node]] = 1;
    if (search.byFrame[frame[node]]) isFound[data.frames.function[frame[node]]] = 1;
  }
  totals.functions = sumOf(isFound);
  return totals;
}

function searchText(selection, result) {
  const { search, whole } = result;
  if (!search) return "";
  if (!search.functions) return "Nothing that is shown matches";
  const share = formatShare(search[selection.unit], whole[selection.unit]);
  return `${counted(search.functions, "function")}: ${isCustom(selection.measure) ? formatValue(search.bytes) : `${formatBytes(search.bytes)} in ${counted(search.blocks, "block")}`}${share && `, ${share} ${wholeText(selection)}`}`;
}

/** A name with what was searched for marked in it. */
function markedName(name, pattern) {
  if (!pattern) return [name];
  let expression;
  try {
    expression = new RegExp(pattern, "gi");
  } catch {
    expression = new RegExp(pattern.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
  }
  const parts = [];
  let at = 0;
  for (const match of name.matchAll(expression)) {
    if (!match[0]) continue;
    parts.push(name.slice(at, match.index), make("mark", "", match[0]));
    at = match.index + match[0].length;
  }
  return [...parts, name.slice(at)].filter((part) => part !== "");
}
