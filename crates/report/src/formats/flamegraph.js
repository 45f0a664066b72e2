"use strict";
const graph = document.getElementById("graph");
const frames = [...document.querySelectorAll(".frame")].map((element) => ({
  element,
  start: +element.dataset.start,
  value: +element.dataset.value,
  depth: +element.dataset.depth,
  tip: element.querySelector("title").textContent,
  rect: element.querySelector("rect"),
  label: element.querySelector("svg"),
  text: element.querySelector("text"),
}));
const total = +graph.dataset.total;
const left = +graph.dataset.left;
const width = +graph.dataset.width;
const detail = document.getElementById("detail");
const matched = document.getElementById("matched");
const nameOf = (frame) => frame.tip.slice(0, frame.tip.lastIndexOf(" ("));
// The title of an SVG element would show late and cover what is below.
frames.forEach((frame) => frame.element.querySelector("title").remove());

function fit(frame, pixels) {
  const room = Math.floor((pixels - 6) / 7.3);
  return room < 3 ? "" : fittingName(nameOf(frame), room);
}

function zoom(focus) {
  const end = focus.start + focus.value;
  const scale = width / Math.max(focus.value, 1);
  for (const frame of frames) {
    const frameEnd = frame.start + frame.value;
    const outer = frame.depth < focus.depth && frame.start <= focus.start && frameEnd >= end;
    const inner = frame.depth >= focus.depth && frame.start >= focus.start && frameEnd <= end;
    const x = outer ? left : left + (frame.start - focus.start) * scale;
    const wide = outer ? width : frame.value * scale;
    frame.element.style.display = outer || (inner && wide >= 0.1) ? "" : "none";
    frame.element.classList.toggle("outer", outer);
    frame.rect.setAttribute("x", x);
    frame.rect.setAttribute("width", wide);
    frame.label.setAttribute("x", x);
    frame.label.setAttribute("width", Math.max(wide - 2, 0));
    frame.text.textContent = fit(frame, wide);
  }
  document.getElementById("unzoom").style.display = focus.depth ? "" : "none";
}

function search(pattern) {
  let test = () => false;
  if (pattern) {
    try {
      const expression = new RegExp(pattern, "i");
      test = (name) => expression.test(name);
    } catch {
      test = (name) => name.includes(pattern);
    }
  }
  // What is below a match is part of it already.
  const spans = [];
  for (const frame of frames) {
    const hit = frame.depth > 0 && test(nameOf(frame));
    frame.element.classList.toggle("match", hit);
    const within = ([start, end]) => frame.start >= start && frame.start + frame.value <= end;
    if (hit && !spans.some(within)) spans.push([frame.start, frame.start + frame.value]);
  }
  const sum = spans.reduce((all, [start, end]) => all + end - start, 0);
  matched.textContent = pattern ? `${pattern}: ${((100 * sum) / Math.max(total, 1)).toFixed(2)} %` : "";
}

for (const frame of frames) {
  frame.element.addEventListener("click", () => zoom(frame));
  frame.element.addEventListener("mouseover", () => { detail.textContent = frame.tip; });
  frame.element.addEventListener("mouseout", () => { detail.textContent = ""; });
}
document.getElementById("unzoom").addEventListener("click", () => zoom(frames[0]));
const ask = () => {
  const pattern = prompt("Regular expression of function names; empty: none", "");
  if (pattern !== null) search(pattern);
};
document.getElementById("search").addEventListener("click", ask);
addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "f") { event.preventDefault(); ask(); }
  if (event.key === "/") { event.preventDefault(); ask(); }
  if (event.key === "Escape") { zoom(frames[0]); search(""); }
});
zoom(frames[0]);
