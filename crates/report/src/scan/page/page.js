// The map of what retains what, and what is selected in it.

const data = JSON.parse(document.getElementById("data").textContent);
const nodes = data.picture.map((node) => ({ ...node, children: [] }));
nodes.forEach((node, index) => {
  node.index = index;
  if (node.parent !== null) nodes[node.parent].children.push(node);
});
for (const node of nodes) node.children.sort((a, b) => b.retained_bytes - a.retained_bytes);

const byId = (id) => document.getElementById(id);

/** An element with a class and children: elements or text. Text is never read as HTML. */
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

const KINDS = {
  process: "all of it", module: "data of a module", variable: "variable", thread: "stack, registers and thread-local variables",
  kernel: "the kernel", memory: "memory", leaked: "nothing reaches these", structure: "", group: "side by side", others: "smaller ones",
};

function nameOf(node) {
  if (node.kind === "process") return `process ${data.pid}`;
  if (node.kind === "module") return node.name.split("/").pop();
  if (node.kind === "structure" && node.blocks > 1) return `${formatCount(node.blocks)} \u00d7 ${node.name}`;
  if (node.kind === "group") return `${formatCount(node.blocks)} \u00d7 ${node.name}, each with what it holds`;
  return node.name;
}

function describe(node) {
  if (node.kind !== "structure") return KINDS[node.kind];
  const each = formatBytes(node.bytes / node.blocks);
  if (node.blocks === 1) return `a block of ${each}`;
  return `blocks of ${each} that hold each other`;
}

const pathTo = (node) => (node.parent === null ? [node] : [...pathTo(nodes[node.parent]), node]);

let shown = nodes[0];
let selected = nodes[0];
let boxes = new Map();

/** Colours go by name, so that the same type has the same one wherever it is; the largest differ from each other. */
const tints = new Map();
for (const node of [...nodes].sort((a, b) => b.retained_bytes - a.retained_bytes)) {
  if (!tints.has(node.name)) tints.set(node.name, `var(--module-${tints.size % 6})`);
}

function tint(node) {
  if (node.kind === "others" || node.kind === "group") return "var(--module-other)";
  return node.kind === "leaked" ? "var(--accent-soft)" : tints.get(node.name);
}

/** Squarified rows (Bruls, Huizing, van Wijk: "Squarified treemaps", 2000): calls `put` with each item's rectangle. */
function layOut(items, rect, put) {
  let { x, y, width, height } = rect;
  let sum = items.reduce((total, item) => total + item.size, 0);
  let rest = items.filter((item) => item.size > 0);
  while (rest.length && sum > 0 && width > 0.5 && height > 0.5) {
    const side = Math.min(width, height);
    const scale = (width * height) / sum;
    const worst = (row, rowSum) => {
      const area = rowSum * scale;
      const [low, high] = [row[row.length - 1].size * scale, row[0].size * scale];
      return Math.max((side * side * high) / (area * area), (area * area) / (side * side * low));
    };
    let count = 1;
    let rowSum = rest[0].size;
    while (count < rest.length) {
      const next = rest[count].size;
      if (worst(rest.slice(0, count + 1), rowSum + next) > worst(rest.slice(0, count), rowSum)) break;
      rowSum += next;
      count += 1;
    }
    const depth = (rowSum * scale) / side;
    let at = 0;
    for (const item of rest.slice(0, count)) {
      const length = (item.size / rowSum) * side;
      put(item, width < height ? { x: x + at, y, width: length, height: depth } : { x, y: y + at, width: depth, height: length });
      at += length;
    }
    if (width < height) [y, height] = [y + depth, height - depth];
    else [x, width] = [x + depth, width - depth];
    sum -= rowSum;
    rest = rest.slice(count);
  }
}

function draw() {
  const map = byId("map");
  map.replaceChildren();
  boxes = new Map();
  const put = (node, rect, level) => {
    if (rect.width < 3 || rect.height < 3) return;
    const box = make("div", node.kind === "others" || node.kind === "group" ? "box rest" : "box");
    box.setAttribute("role", "treeitem");
    box.setAttribute("aria-level", level);
    box.setAttribute("aria-label", `${nameOf(node)}, retains ${formatBytes(node.retained_bytes)}`);
    box.title = `${nameOf(node)}\nretains ${formatBytes(node.retained_bytes)} in ${counted(node.retained_blocks, "block")}`;
    box.tabIndex = -1;
    box.style.setProperty("--tint", tint(node));
    const { x, y, width, height } = rect;
    Object.assign(box.style, { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
    const hasLabel = width > 40 && height > 20;
    if (hasLabel) box.append(make("span", "label", `${nameOf(node)}  ${formatBytes(node.retained_bytes)}`));
    box.onclick = () => select(node, true);
    box.ondblclick = () => go(node);
    map.append(box);
    boxes.set(node, box);
    const head = hasLabel ? 18 : 3;
    const inside = { x: x + 3, y: y + head, width: width - 6, height: height - head - 3 };
    if (level < 5 && inside.width > 24 && inside.height > 14) fill(node, inside, level + 1);
  };
  const fill = (node, rect, level) => {
    const items = node.children.map((child) => ({ child, size: child.retained_bytes }));
    const held = items.reduce((total, item) => total + item.size, 0);
    const own = Math.max(node.retained_bytes - held, 0);
    // Its own bytes are the space that no box covers.
    items.push({ child: null, size: own });
    items.sort((a, b) => b.size - a.size);
    layOut(items, rect, (item, place) => item.child && put(item.child, place, level));
  };
  const whole = { x: 0, y: 0, width: map.clientWidth, height: map.clientHeight };
  if (shown.children.length) fill(shown, whole, 1);
  else put(shown, whole, 1);
  const way = pathTo(shown).map((node, index, path) => {
    if (index + 1 === path.length) return make("b", "", nameOf(node));
    return make("span", "", link(node, () => go(node)), " \u203a");
  });
  byId("way").replaceChildren(...way);
  mark(false);
}

function link(node, action) {
  const element = make("button", "plain", nameOf(node));
  element.type = "button";
  element.onclick = action;
  return element;
}

function mark(focus) {
  for (const [node, box] of boxes) {
    const isSelected = node === selected;
    box.classList.toggle("selected", isSelected);
    box.setAttribute("aria-selected", isSelected);
    box.tabIndex = isSelected ? 0 : -1;
    if (isSelected && focus) box.focus({ preventScroll: true });
  }
  const first = boxes.values().next().value;
  if (first && !boxes.has(selected)) first.tabIndex = 0;
}

/** Selects a node; the map goes to where it can be seen. */
function select(node, focus) {
  selected = node;
  if (!boxes.has(node) && node !== shown) {
    shown = nodes[node.parent ?? 0];
    draw();
  }
  mark(focus);
  showDetails();
}

/** Makes a node the whole map, or that which holds it if it has nothing to show. */
function go(node) {
  shown = node.children.length || node.parent === null ? node : nodes[node.parent];
  draw();
  select(node.children[0] && shown === node ? node.children[0] : node, true);
}

function table(heads, rows) {
  const cell = (tag, value, isNumber) => make(tag, isNumber ? "number" : "name", value);
  const last = heads.length - 1;
  const head = make("tr", "", ...heads.map((text, i) => cell("th", text, i < last)));
  const body = rows.map((row) => make("tr", "", ...row.map((value, i) => cell("td", value, i < last))));
  return make("table", "", make("thead", "", head), make("tbody", "", ...body));
}

function showDetails() {
  const node = selected;
  const parts = [make("h2", "", nameOf(node))];
  const kind = describe(node);
  const address = node.address ? `at ${node.address}` : "";
  const full = node.kind === "module" ? node.name : "";
  parts.push(make("p", "kind", [kind, full, address].filter(Boolean).join(", ")));
  const share = formatShare(node.retained_bytes, data.bytes);
  parts.push(make("p", "", `Retains ${formatBytes(node.retained_bytes)} (${share}) in ${counted(node.retained_blocks, "block")}` +
    (node.blocks ? `, of which ${formatBytes(node.bytes)} are its own` : "")));
  const path = pathTo(node).slice(0, -1);
  if (path.length) {
    parts.push(make("h3", "", "Held by"));
    parts.push(make("ol", "", ...path.map((holder) => make("li", "", link(holder, () => select(holder, false))))));
  }
  if (node.children.length) {
    parts.push(make("h3", "", "Holds"));
    const rows = node.children.slice(0, 40).map((child) => [
      formatBytes(child.retained_bytes), formatCount(child.retained_blocks), link(child, () => select(child, false)),
    ]);
    parts.push(table(["retained", "blocks", "what"], rows));
  }
  byId("details").replaceChildren(...parts);
}

function onKey(event) {
  const siblings = selected.parent === null ? [selected] : nodes[selected.parent].children;
  const index = siblings.indexOf(selected);
  const next = {
    ArrowRight: () => siblings[index + 1],
    ArrowLeft: () => siblings[index - 1],
    ArrowDown: () => selected.children[0],
    ArrowUp: () => (selected.parent === null ? null : nodes[selected.parent]),
  }[event.key];
  if (next) {
    const node = next();
    if (node) select(node, true);
  } else if (event.key === "Enter") go(selected);
  else return;
  event.preventDefault();
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = dark ? "Light" : "Dark";
}

const isDark = () => document.documentElement.dataset.theme === "dark";
byId("map").addEventListener("keydown", onKey);
byId("theme").onclick = () => setTheme(!isDark());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "t") setTheme(!isDark());
  if (event.key === "Escape" && shown.parent !== null) {
    const left = shown;
    shown = nodes[shown.parent];
    draw();
    select(left, true);
  }
});
addEventListener("resize", draw);
byId("title").textContent = `What retains the heap of process ${data.pid}`;
const notes = [data.whole ? "" : "part of the heap could not be parsed", ...data.notes].filter(Boolean);
byId("subtitle").textContent = [
  `${formatBytes(data.bytes)} in ${counted(data.blocks, "block")}; ${formatBytes(data.shared.bytes)} of it are held by several together`,
  ...notes,
].join(" \u00b7 ");
byId("types").replaceChildren(make("h2", "", "Types"), table(
  ["retained", "own", "blocks", "type"],
  data.types.map((row) => [formatBytes(row.retained_bytes), formatBytes(row.bytes), formatCount(row.blocks), row.name]),
));
setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
draw();
select(nodes[0].children[0] ?? nodes[0], false);
