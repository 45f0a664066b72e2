// The state of the page as the fragment of its address: a reload gives the same view, and so does an address that is sent
// to somebody who has the page. Only what differs from the first view is written.

const CHARTS = [["total", "Total"], ["stacked", "Largest rows"]];
/** Charts that can be shown, each by itself. */
const OPEN_CHARTS = [
  ["heap", "Heap", "The heap over time"], ["resident", "Resident", "What was resident of the process"],
  ["ages", "Untouched", "For how long live bytes were not touched"], ["thresholds", "Pages", "How long pages are left alone after a write"],
];
const SORTS = ["name", "value", "share", "self", "other", "growth", "lost", "took", "spark"];

function newState(data) {
  return {
    ...newSelection(data),
    shape: "flame", paint: data.compared ? "change" : "module", tall: "all", cell: "all", cover: "row", place: null, zoom: [], center: 0, large: "",
    group: "site", sorted: "value", isAscending: false,
    chart: "total", open: ["heap"], isWholeRoot: false, pick: null, theme: "",
  };
}

const pathText = (path) => path.map((label) => label.toString(36)).join(".");
const pathOf = (text) => text.split(".").filter(Boolean).map((label) => parseInt(label, 36)).filter((label) => label >= 0);

function pickText(pick) {
  if (pick.kind === "row") return `row.${pick.key}`;
  return `frame.${pathText(pick.path)}`;
}

function pickOf(text) {
  const [kind, ...rest] = text.split(".");
  if (kind === "row" && rest.length === 1) return { kind, key: Number(rest[0]) };
  if (kind === "frame") return { kind, path: pathOf(rest.join(".")) };
  return null;
}

/** Each part of the state: its name in the address, its field, how it is written, and how it is read. */
function addressParts(data) {
  const time = (point) => String(timeOf(data, point) / 1e9);
  const point = (text) => (Number(text) >= 0 ? nearestPoint(data, Number(text) * 1e9) : undefined);
  const string = (text) => { const index = data.strings.indexOf(text); return index > 0 ? index : undefined; };
  const among = (list) => (text) => (list.includes(text) ? text : undefined);
  const names = (list) => among(list.map(([name]) => name));
  const bucket = (text) => (Number(text) > 0 && Number(text) <= LARGEST_BUCKET ? Math.round(Number(text)) : undefined);
  const flag = (text) => text === "yes";
  return [
    ["from", "first", time, point],
    ["to", "last", time, point],
    ["measure", "measure", String, names(knownMeasures(data))],
    ["unit", "unit", String, names(UNITS)],
    ["search", "search", String, String],
    ["only", "only", () => "yes", flag],
    ["module", "module", (index) => data.strings[index], string],
    ["thread", "thread", (index) => data.strings[index], string],
    ["type", "type", (index) => data.strings[index], string],
    ["least", "least", String, bucket],
    ["most", "most", String, bucket],
    ["wrappers", "hides", () => "shown", (text) => text !== "shown"],
    ["list", "wrappers", (list) => list.join("\n"), (text) => text.split("\n").slice(0, 1000)],
    ["view", "shape", String, among(SHAPES.map(([name]) => name).filter((name) => hasShape(data, name)))],
    ["colours", "paint", String, names(knownPaints(data))],
    ["chunks", "tall", String, names(TALLS)],
    ["cells", "cell", String, names(CELL_SIZES)],
    ["cover", "cover", String, names(COVERS)],
    ["at", "place", addressText, (text) => (/^0x[0-9a-f]{1,13}$/.test(text) ? Number(text) : undefined)],
    ["zoom", "zoom", pathText, pathOf],
    ["center", "center", (index) => data.strings[index], string],
    ["large", "large", String, among(["graph", "list"])],
    ["rows", "group", String, names(GROUPS)],
    ["sort", "sorted", String, among([...SORTS, ...customScores(data).map(([key]) => key)])],
    ["ascending", "isAscending", () => "yes", flag],
    ["chart", "chart", String, names(CHARTS)],
    ["open", "open", (open) => open.join(" "), (text) => OPEN_CHARTS.map(([name]) => name).filter((name) => text.split(" ").includes(name))],
    ["root", "isWholeRoot", () => "whole", (text) => text === "whole"],
    ["pick", "pick", pickText, pickOf],
    ["theme", "theme", String, among(["light", "dark"])],
  ];
}

function addressOf(data, state) {
  const first = newState(data);
  const text = new URLSearchParams();
  for (const [name, field, write] of addressParts(data)) {
    if (JSON.stringify(state[field]) !== JSON.stringify(first[field])) text.set(name, write(state[field]));
  }
  return text.toString();
}

/** The state that an address describes; parts that make no sense for this run are left out. */
function stateOf(data, address) {
  const state = newState(data);
  const text = new URLSearchParams(address);
  for (const [name, field, , read] of addressParts(data)) {
    const value = text.has(name) ? read(text.get(name)) : undefined;
    if (value !== undefined && value !== null) state[field] = value;
  }
  if (state.first > state.last) [state.first, state.last] = [state.last, state.first];
  return state;
}
