// Functions that only pass an allocation on: hidden in graphs and names, since their callers are of interest.

/** A name, without arguments; an asterisk is any text. */
const DEFAULT_WRAPPERS = [
  "malloc", "calloc", "realloc", "operator new*", "strdup", "strndup",
  "__libc_*alloc*", "__gnu_cxx::*allocator*", "std::*allocator*", "std::*_M_allocate*", "std::*_M_create*",
  "std::make_unique*", "std::make_shared*", "std::__allocate_*", "std::__shared_*",
  "zmalloc*", "zcalloc*", "zrealloc*", "ztry*alloc*", "zstrdup",
  "xmalloc", "xcalloc", "xrealloc", "xstrdup", "xmemdup", "ggc_*alloc*", "g_malloc*", "g_realloc*", "g_slice_alloc*",
  "je_*alloc*", "tc_malloc*", "mi_malloc*", "PyMem_*alloc*", "PyObject_*alloc*", "_PyObject_*alloc*",
  "alloc::alloc::*", "__rust_*alloc*", "__rdl_*alloc*", "std::sys::alloc::*",
];

/** A name without its template arguments: those of a container name its allocator. */
function withoutTemplates(name) {
  if (!name.includes("<") || name.includes("operator<") || name.includes("operator>") || name.includes("operator->")) return name;
  let bare = "";
  let depth = 0;
  for (const c of name) {
    if (c === "<") depth += 1;
    if (!depth) bare += c;
    if (c === ">") depth -= 1;
  }
  return depth ? name : bare;
}

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

/** Functions of the C++ library, which no site is known by if it has others. */
const LIBRARY = /^(void )?(std::|__gnu_cxx)/;

/** What a site is known by: its innermost function of interest, its callers, and the frame that has its line. */
function siteName(data, hidden, node) {
  const frames = framesOf(data, node);
  if (!frames.length) return { name: "(no call stack)", callers: [], frame: -1 };
  const isHidden = (frame) => hidden[data.labelOf[frame]];
  const isDull = (frame) => isHidden(frame) || LIBRARY.test(functionOf(data, frame));
  let at = frames.findIndex((frame) => !isDull(frame));
  if (at < 0) at = frames.findIndex((frame) => !isHidden(frame));
  at = Math.max(at, 0);
  const callers = frames.slice(at + 1).filter((frame) => !isHidden(frame)).slice(0, 6);
  return { name: functionOf(data, frames[at]), callers: callers.map((frame) => functionOf(data, frame)), frame: frames[at] };
}
