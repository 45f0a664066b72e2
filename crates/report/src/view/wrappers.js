// Functions that only pass an allocation on: hidden in graphs and names, since their callers are of interest. A name on
// the list has no arguments, and an asterisk is any text.

/** A name without its template arguments: those of a container name its allocator. */
const withoutTemplates = (name) => (name.includes("<") ? withoutArguments(name).replaceAll("<...>", "") : name);

/** Whether a function is on a list; what it returns and takes does not count. */
function wrapperTest(list) {
  const escaped = list.filter(Boolean).map((name) => name.replace(/[.+?^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*"));
  if (!escaped.length) return () => false;
  const expression = new RegExp(`^(?:void\\* |void )?(?:${escaped.join("|")})(?:[(\\[@ ].*)?$`);
  return (name) => expression.test(withoutTemplates(name));
}

/** By label: 1 if the function is hidden. */
function hiddenLabels(data, selection) {
  const hidden = new Uint8Array(data.labels.function.length);
  if (!selection.hides) return hidden;
  const test = wrapperTest(selection.wrappers);
  data.labels.function.forEach((name, label) => { if (label && test(data.strings[name])) hidden[label] = 1; });
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

/** What a site is known by: its innermost function of interest, its callers, the frame that has its line, and what tells it from others that look the same. */
function siteName(app, node) {
  const { data, hidden } = app;
  const frames = framesOf(data, node);
  if (!frames.length) return { name: "(no call stack)", callers: [], frame: -1, aside: "" };
  const isHidden = (frame) => hidden[data.labelOf[frame]];
  const isDull = dullTest(app, frames);
  let at = frames.findIndex((frame) => !isDull(frame));
  if (at < 0) at = frames.findIndex((frame) => !isHidden(frame));
  at = Math.max(at, 0);
  const callers = frames.slice(at + 1).filter((frame) => !isHidden(frame)).slice(0, 6);
  return {
    name: functionOf(data, frames[at]), callers: callers.map((frame) => functionOf(data, frame)), frame: frames[at], aside: data.asides.get(node) ?? "",
  };
}
