// Functions that only pass an allocation on: hidden in graphs and names, since their callers are of interest. A name on
// the list has no arguments, and an asterisk is any text.

/** A name without its template arguments: those of a container name its allocator. */
const withoutTemplates = (name) => (name.includes("<") ? withoutArguments(name).replaceAll("<...>", "") : name);

/** The entry of a list that stands for those that reports and the gate skip, too: the program that made the page knows them. */
const USUAL = "(usual wrappers: malloc, operator new, std::allocator, my_alloc, ...)";
const USUAL_WRAPPERS = [USUAL];
/** However it goes on: addresses may have it as older pages wrote it. */
const isUsual = (name) => name.startsWith("(usual wrappers");

/** Whether a function, by the number of its name, is on a list; what it returns and takes does not count. */
function wrapperTest(data, list) {
  const hidesUsual = list.some(isUsual);
  const escaped = list.filter((name) => name && !isUsual(name)).map((name) => name.replace(/[.+?^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*"));
  const expression = escaped.length ? new RegExp(`^(?:void\\* |void )?(?:${escaped.join("|")})(?:[(\\[@ ].*)?$`) : null;
  return (name) => (hidesUsual && data.isWrapper[name] === 1) || Boolean(expression?.test(withoutTemplates(data.strings[name])));
}

/** By label: 1 if the function is hidden. */
function hiddenLabels(data, selection) {
  const hidden = new Uint8Array(data.labels.function.length);
  if (!selection.hides) return hidden;
  const test = wrapperTest(data, selection.wrappers);
  data.labels.function.forEach((name, label) => { if (label && test(name)) hidden[label] = 1; });
  return hidden;
}

/** What the code of a frame is to a reader, as stacks.rs has it. */
const ROLES = { library: 1, interpreter: 2, python: 3 };

/** Whether a frame of a stack is none that a site is known by if there are others. */
function dullTest(app, frames) {
  const { data, hidden } = app;
  const roles = data.frames.role;
  const hasPython = frames.some((frame) => roles[frame] === ROLES.python);
  return (frame) => Boolean(hidden[data.labelOf[frame]]) || roles[frame] === ROLES.library || (hasPython && roles[frame] === ROLES.interpreter);
}

/** By string: its place in the order of all of them. */
function ranksOfNames(data) {
  if (data.nameRanks) return data.nameRanks;
  const order = [...data.strings.keys()].sort((a, b) => (data.strings[a] < data.strings[b] ? -1 : data.strings[a] > data.strings[b] ? 1 : a - b));
  data.nameRanks = new Uint32Array(order.length);
  order.forEach((name, rank) => { data.nameRanks[name] = rank; });
  return data.nameRanks;
}

/** By row of sites, or by string: the place of its name in the order of all, with what tells it from the same name. */
function nameRanks(app, keys) {
  const { data, hidden, state } = app;
  const isSite = state.group === "site";
  return app.kept("names", [keys, isSite && hidden], () => {
    const ranks = ranksOfNames(data);
    if (!isSite) return Float64Array.from(keys, (key) => ranks[key]);
    const nameOf = (node) => {
      const frame = knownFrame(app, node);
      return frame < 0 ? 0 : data.frames.function[frame];
    };
    // Asides are few; between two whole numbers there is room for them.
    const asides = [...new Set(data.asides.values())].sort();
    const asideRanks = new Map(asides.map((aside, at) => [aside, (at + 1) / (asides.length + 1)]));
    const found = new Float64Array(keys.length);
    for (let row = 0; row < keys.length; row += 1) {
      const node = keys[row];
      found[row] = ranks[nameOf(node)] + (asides.length ? asideRanks.get(data.asides.get(node)) ?? 0 : 0);
    }
    return found;
  });
}

/** The frame that a site is known by, -1 without a call stack: as `siteName` has it, for many sites. */
function knownFrame(app, node) {
  const { data, hidden } = app;
  const { calls, labelOf } = data;
  const roles = data.frames.role;
  data.hasPython ??= roles.includes(ROLES.python);
  let hasPython = false;
  for (let at = node; data.hasPython && at > 0; at = calls.parent[at]) hasPython ||= roles[calls.frame[at]] === ROLES.python;
  let notHidden = -1;
  for (let at = node; at > 0; at = calls.parent[at]) {
    const frame = calls.frame[at];
    if (hidden[labelOf[frame]]) continue;
    if (notHidden < 0) notHidden = frame;
    if (roles[frame] !== ROLES.library && !(hasPython && roles[frame] === ROLES.interpreter)) return frame;
  }
  return notHidden >= 0 || node <= 0 ? notHidden : calls.frame[node];
}

/** What a site is known by: its innermost function of interest, its callers, the frame that has its line, and what tells it from others that look the same. */
function siteName(app, node) {
  const { data, hidden } = app;
  const frames = framesOf(data, node);
  if (!frames.length) return { name: "(no call stack)", callers: [], frame: -1, aside: "" };
  const isHidden = (frame) => hidden[data.labelOf[frame]];
  const at = frames.indexOf(knownFrame(app, node));
  const callers = frames.slice(at + 1).filter((frame) => !isHidden(frame)).slice(0, 6);
  return {
    name: functionOf(data, frames[at]), callers: callers.map((frame) => functionOf(data, frame)), frame: frames[at], aside: data.asides.get(node) ?? "",
  };
}
