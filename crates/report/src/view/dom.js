// Elements, canvases and the theme's colours.

const byId = (id) => document.getElementById(id);

let colors = new Map();
/** A colour or font of the style sheet. Reading one is slow, so each is read once a theme. */
function css(name) {
  if (!colors.has(name)) colors.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colors.get(name);
}

/** An element with a class and children: elements or text. Text is never read as HTML. */
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function button(className, text, action) {
  const element = make("button", className, text);
  element.type = "button";
  element.onclick = action;
  return element;
}

/** Sizes a canvas for the display's pixels and clears it; drawing is in CSS pixels. */
function paper(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [columns, rows] = [width, height].map((size) => Math.max(1, Math.round(size * ratio)));
  const context = canvas.getContext("2d");
  // A canvas that gets a size, even the same, gets other memory.
  if (canvas.width === columns && canvas.height === rows && context.reset) context.reset();
  else Object.assign(canvas, { width: columns, height: rows });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/** How wide a character of a table's names is. */
function monospaceWidth() {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `12px ${css("--mono")}`;
  return context.measureText("x").width;
}

/** Shows some lines beside the mouse; the first of them is the title. */
function showTip(event, title, ...lines) {
  const tip = byId("tip");
  tip.hidden = false;
  tip.replaceChildren(make("b", "", boundedName(title)), ...lines.filter(Boolean).map((line) => make("span", "", boundedName(line))));
  tip.style.left = `${Math.max(Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8), 4)}px`;
  tip.style.top = `${Math.max(Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8), 4)}px`;
}

const hideTip = () => { byId("tip").hidden = true; };

/** Says something to screen readers. */
const say = (text) => { byId("said").textContent = text; };

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  colors = new Map();
}
