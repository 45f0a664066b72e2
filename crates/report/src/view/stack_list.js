// A call stack as a list, with source lines where the page carries them.

/** Consecutive frames that are hidden or belong to the C++ library are folded into one line, which a click unfolds. */
function stackList(app, frames) {
  const { data, hidden } = app;
  const list = make("ol", "stack");
  let hasOpened = false;
  let folded = null;
  for (const frame of frames) {
    const isFolded = Boolean(hidden[data.labelOf[frame]]) || LIBRARY.test(functionOf(data, frame));
    const { item, source } = stackItem(app, frame);
    if (source) {
      // The innermost line that is not the library's.
      const opens = !hasOpened && !isFolded && !data.strings[data.frames.file[frame]].startsWith("/usr/include");
      source.hidden = !opens;
      item.classList.toggle("here", opens);
      item.querySelector("button.plain.lines").setAttribute("aria-expanded", String(opens));
      hasOpened ||= opens;
    }
    if (!isFolded) {
      folded = null;
      list.append(item);
      continue;
    }
    if (!folded) {
      const members = [];
      const line = make("li", "folded");
      const opener = button("plain", "", () => line.replaceWith(...members));
      line.append(opener);
      folded = { members, opener };
      list.append(line);
    }
    folded.members.push(item);
    folded.opener.textContent = `${counted(folded.members.length, "frame")} of wrappers or the C++ library`;
  }
  return list;
}

function stackItem(app, frame) {
  const { data } = app;
  const name = button("plain name", functionOf(data, frame), () => app.setCenter(data.frames.function[frame]));
  name.title = "Callers and callees of this function";
  const note = [placeOf(data, frame), data.strings[data.frames.module[frame]], data.frames.inlined[frame] ? "inlined" : ""];
  const item = make("li", "", name, make("small", "", note.filter(Boolean).join("  ")));
  const source = sourceOf(data, data.strings[data.frames.file[frame]], data.frames.line[frame]);
  if (source) {
    const toggle = button("plain lines", "source", () => {
      source.hidden = !source.hidden;
      item.classList.toggle("here", !source.hidden);
      toggle.setAttribute("aria-expanded", String(!source.hidden));
    });
    item.append(toggle, source);
  }
  return { item, source };
}

function sourceOf(data, file, line) {
  const found = (data.sourceOf.get(file) || []).find((s) => line >= s.first && line < s.first + s.lines.length);
  if (!line || !found) return null;
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
