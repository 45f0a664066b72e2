// A call stack as a list, with source lines where the page carries them.

/** More frames than are usual: only of the deepest recursions some are left for a click. */
const FIRST_FRAMES = 100;

/** Consecutive frames that are hidden or belong to the C++ library are folded into one line, which a click unfolds. */
function stackList(app, frames) {
  const { data } = app;
  const isFolded = dullTest(app, frames);
  const groups = [];
  for (const frame of frames) {
    const last = groups[groups.length - 1];
    if (!isFolded(frame)) groups.push({ frame });
    else if (last?.folded) last.folded.push(frame);
    else groups.push({ folded: [frame] });
  }
  // The innermost line that is not the library's is open.
  const opened = groups.find(({ frame }) => {
    const file = frame === undefined ? "" : data.strings[data.frames.file[frame]];
    return file && !file.startsWith("/usr/include") && sourceOf(data, file, data.frames.line[frame]);
  });
  const entry = (group) => (group.folded ? foldedItem(app, group.folded) : stackItem(app, group.frame, group === opened));
  return app.details.lists.list("stack", groups, entry, { first: FIRST_FRAMES, isSeen: true });
}

function foldedItem(app, frames) {
  const line = make("li", "folded");
  const text = `${counted(frames.length, "frame")} of wrappers or libraries of the language`;
  line.append(button("plain", text, () => line.replaceWith(...frames.map((frame) => stackItem(app, frame, false)))));
  return line;
}

function stackItem(app, frame, isOpen) {
  const { data } = app;
  const name = button("plain name", boundedName(functionOf(data, frame)), () => app.setCenter(data.frames.function[frame]));
  name.title = "Callers and callees of this function";
  const note = [boundedName(placeOf(data, frame)), data.strings[data.frames.module[frame]], data.frames.inlined[frame] ? "inlined" : ""];
  const item = make("li", "", name, make("small", "", note.filter(Boolean).join("  ")));
  const [file, line] = [data.strings[data.frames.file[frame]], data.frames.line[frame]];
  if (data.editor && file?.startsWith("/") && line) item.append(editorLink(data.editor, file, line));
  const source = sourceOf(data, file, line);
  if (!source) return item;
  let lines = null;
  const show = (isShown) => {
    if (isShown && !lines) item.append(lines = sourceLines(source, file, line));
    if (lines) lines.hidden = !isShown;
    item.classList.toggle("here", isShown);
    toggle.setAttribute("aria-expanded", String(isShown));
  };
  const toggle = button("plain lines", "source", () => show(!lines || lines.hidden));
  item.append(toggle);
  show(isOpen);
  return item;
}

/** What opens a source line in the user's editor. */
function editorLink(address, file, line) {
  const path = file.split("/").map(encodeURIComponent).join("/");
  const link = make("a", "edit", "edit");
  link.href = address.replace("{file}", () => path).replace("{line}", String(line));
  link.title = `Open ${file}:${line} in your editor`;
  return link;
}

/** The lines of the page's sources that have this one among them, or undefined. */
const sourceOf = (data, file, line) => (line ? data.sourceOf.get(file) ?? [] : []).find((s) => line >= s.first && line < s.first + s.lines.length);

function sourceLines(found, file, line) {
  const from = Math.max(line - 4, found.first);
  const to = Math.min(line + 4, found.first + found.lines.length - 1);
  const pre = make("pre", "source");
  pre.tabIndex = 0;
  pre.setAttribute("aria-label", `Lines ${from} to ${to} of ${file}`);
  pre.setAttribute("role", "region");
  for (let n = from; n <= to; n += 1) {
    pre.append(make("span", n === line ? "here" : "", make("i", "", String(n)), found.lines[n - found.first]));
  }
  return pre;
}
