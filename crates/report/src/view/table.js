// The table of rows. Only the rows on the screen are elements.

const COLUMNS = [
  ["name", "", "Name"],
  ["value", "", "What is shown under this measure and these filters"],
  ["share", "", ""],
  ["self", "Self", "Allocated in the function itself, by none that it calls; hidden wrappers count as their callers"],
  ["other", "", "The same in the other unit"],
  ["growth", "Growth", "Live at the end of the window less live at its start"],
  ["lost", "Unreachable", "Of its blocks, what nothing pointed to at the end of the run: leaked"],
  ["took", "In allocator", "What the allocations took in the allocator, estimated from the calls that were timed"],
  ["spark", "Live over time", "Each row in its own scale; sorting goes by what was live at the peak of the run"],
];
/** What shares are of, by measure; `wholeText` has it in more words. */
const SHARES = {
  live: "% of live", peak: "% of peak", growth: "% of added", allocated: "% of allocated", released: "% of released", temporary: "% of temporary", unreachable: "% of unreachable",
};
/** Left for a name, whatever stands beside it. */
const LEAST_NAME = 12;
/** Characters of a caller at most: it stands behind a name that matters more. */
const MOST_OF_CALLER = 30;
/** Widths of the columns; of estimates, which have an error beside them, amounts of bytes are wider. */
const WIDTHS = { name: "minmax(0, 1fr)", value: "84px", share: "82px", self: "78px", other: "86px", growth: "86px", lost: "86px", took: "86px", spark: "110px" };
const WIDTH_WITH_ERROR = "150px";
const SPARK = { width: 110, height: 22 };

/** Why the table has no rows. */
function nothingText({ data, state }) {
  if (isFiltered(state)) return "Nothing of what this measure covers passes the filters.";
  if (!data.sites.allocated.blocks.some((blocks) => blocks > 0)) return "No block was allocated while this was recorded.";
  const when = isWhole(data, state) ? coveredWords(data).replace("whole run", "in the whole run") : "in the window";
  if (isCustom(state.measure)) return `No site has a value of ${customName(state.measure)} above 0.`;
  return {
    live: "Nothing is live at the end: all of it was released again. Peak and Allocated have what there was.",
    growth: "No site has more or less at the end than at the start. Peak and Allocated have what there was.",
    unreachable: "Every block that is recorded and live can be reached.",
    temporary: "No block was released before the thread's next allocation.",
    peak: `Nothing was live ${when}.`,
  }[state.measure] ?? `Nothing was ${state.measure} ${when}.`;
}

/** Lines of rows are drawn for this long before the page looks at what else there is to do. */
const SLICE_MS = 8;

class TableView {
  constructor(app) {
    this.app = app;
    this.box = byId("table");
    this.found = null;
    this.sparks = new Map();
    /** Of the rows on the screen. */
    this.canvases = new Map();
    this.waiting = [];
    this.narrow = matchMedia("(max-width: 900px)");
    this.box.addEventListener("scroll", () => this.draw());
    this.box.addEventListener("keydown", (event) => this.pressed(event));
    byId("body").addEventListener("click", (event) => {
      const element = event.target.closest(".row");
      if (element) this.pick(+element.dataset.index);
    });
  }

  get rowHeight() {
    const isSite = this.app.state.group === "site";
    if (this.narrow.matches) return isSite ? 64 : 48;
    return isSite ? 42 : 28;
  }

  /** The columns. Under the measure of growth it is the value already, unless that is a change from another run. */
  get columns() {
    const { state, data } = this.app;
    const isTwice = state.measure === "growth" && !data.compared;
    const isShown = { self: this.hasSelf(), other: !isCustom(state.measure), growth: !isTwice, lost: data.is_searched && state.measure !== "unreachable", took: data.is_timed };
    const columns = COLUMNS.filter(([column]) => isShown[column] ?? true);
    if (state.group === "site") columns.splice(-1, 0, ...customScores(data));
    return columns;
  }

  hasSelf() {
    return !isPartition(this.app.state.group);
  }

  show() {
    const { data, tree, state, result } = this.app;
    this.group = state.group;
    this.found = this.app.kept("rows", [result, tree, state.group], () => makeRows(data, tree, state.group, state, result));
    this.sort();
  }

  /** All rows as they are sorted, for files. */
  get rows() { return this.found.all(); }

  /** By row: what was live at the peak of the run. */
  get peaks() {
    const { data, tree, state, result } = this.app;
    this.found.peaks ??= peakSums(data, tree, state.group, state.unit, result);
    return this.found.peaks;
  }

  peakOf({ row }) { return this.peaks[row]; }

  sort() {
    const { app, found } = this;
    const { sorted: by, isAscending } = app.state;
    const amounts = () => found.sums[by === "share" ? "value" : by] ?? found.sums.value;
    const column = isCustom(by) ? knownFirst(amounts(), isAscending) : by === "name" ? nameRanks(app, found.keys) : by === "spark" ? this.peaks : amounts();
    found.sort(by === "share" ? "value" : by, column, isAscending);
    this.header();
    byId("spacer").style.height = `${found.length * this.rowHeight}px`;
    byId("grid").setAttribute("aria-rowcount", String(found.length + 1));
    this.setWidths();
    byId("rows").textContent = counted(found.length, "row");
    byId("nothing").hidden = found.length > 0;
    if (!found.length) byId("nothing").firstChild.textContent = nothingText(this.app);
    this.draw();
  }

  setWidths() {
    const { data, state } = this.app;
    const isWide = (column) => data.is_sampled && column === (state.unit === "bytes" ? "value" : "other");
    const widths = this.columns.map(([column]) => (isWide(column) ? WIDTH_WITH_ERROR : WIDTHS[column] ?? WIDTHS.other));
    byId("grid").style.setProperty("--widths", widths.join(" "));
    // Below the name, which has a line of its own there.
    byId("grid").style.setProperty("--narrow-widths", `repeat(${widths.length - 2}, minmax(0, 1fr)) ${WIDTHS.spark}`);
  }

  sortBy(column) {
    const { state } = this.app;
    // Names go from A, numbers from the largest; a second click turns them round.
    state.isAscending = state.sorted === column ? !state.isAscending : column === "name";
    state.sorted = column;
    this.sort();
    this.app.changed();
  }

  header() {
    const { unit, measure, group, sorted, isAscending } = this.app.state;
    const isValue = isCustom(measure);
    const shown = isValue ? customName(measure) : MEASURES.find(([name]) => name === measure)[1];
    const grown = this.app.data.compared ? "Change" : "Growth";
    const whole = wholeText(this.app.state);
    const titles = { share: `Share ${whole}, whatever the filters say` };
    const names = { share: isValue ? `% of ${shown}` : SHARES[measure], growth: grown, name: GROUPS.find(([name]) => name === group)[1], value: isValue ? shown : `${shown} ${unit}`, other: unit === "bytes" ? "Blocks" : "Bytes" };
    const focused = document.activeElement?.dataset?.column;
    byId("columns").replaceChildren(...this.columns.map(([column, text, title]) => {
      const isSorted = column === sorted;
      const arrow = isSorted ? (isAscending ? " \u25b4" : " \u25be") : "";
      const sorter = button(isSorted ? "sorted" : "", `${names[column] || text}${arrow}`, () => this.sortBy(column));
      sorter.title = titles[column] ?? title;
      sorter.dataset.column = column;
      const cell = make("div", isCustom(column) ? "custom" : column, sorter);
      cell.setAttribute("role", "columnheader");
      cell.setAttribute("aria-sort", isSorted ? (isAscending ? "ascending" : "descending") : "none");
      return cell;
    }));
    if (focused) byId("columns").querySelector(`[data-column="${focused}"]`)?.focus();
  }

  draw() {
    // Scrolling back to the first row comes before the rows of another kind do.
    if (this.group !== this.app.state.group) return;
    const height = this.rowHeight;
    const begin = Math.max(Math.floor(this.box.scrollTop / height) - 3, 0);
    const end = Math.min(begin + Math.ceil(this.box.clientHeight / height) + 7, this.found.length);
    this.room = Math.floor(byId("columns").firstChild.clientWidth / monospaceWidth());
    const elements = [];
    this.waiting = [];
    this.drawnNow = new Map();
    for (let i = begin; i < end; i += 1) elements.push(this.rowElement(i, height));
    this.canvases = this.drawnNow;
    byId("body").replaceChildren(...elements);
    if (this.waiting.length) requestAnimationFrame(() => this.drawWaiting(this.waiting));
  }

  /** Draws the lines that had to wait, a few milliseconds at a time, so that clicks are not held up by them. */
  drawWaiting(waiting) {
    // Other rows have come meanwhile.
    if (waiting !== this.waiting) return;
    const begin = performance.now();
    while (waiting.length && performance.now() - begin < SLICE_MS) {
      const { canvas, row, key } = waiting.shift();
      this.drawSpark(canvas, this.series(row));
      this.canvases.set(key, canvas);
    }
    if (waiting.length) requestAnimationFrame(() => this.drawWaiting(waiting));
  }

  rowElement(index, height) {
    const { state, result, data } = this.app;
    const row = this.found.at(index);
    const isValue = isCustom(state.measure);
    const isBytes = state.unit === "bytes" && !isValue;
    const format = (value) => formatAmount(value, state.unit);
    const bytesOf = isBytes ? withError(row.value, row.variance) : withError(row.other, row.variance);
    const cell = (column, ...content) => {
      const element = make("div", column, ...content);
      element.setAttribute("role", "gridcell");
      return element;
    };
    const growth = cell("growth", formatChange(row.growth, format));
    growth.classList.add(row.growth > 0 ? "up" : row.growth < 0 ? "down" : "level");
    const lost = cell("lost", row.lost > 0 ? format(row.lost) : "");
    if (row.lost > 0) lost.classList.add("up");
    const shown = new Set(this.columns.map(([column]) => column));
    const cells = [
      cell("name", ...this.nameParts(row)), cell("value", isBytes ? bytesOf : formatShown(row.value, state)),
      cell("share", formatShare(row.value, result.whole[state.unit])),
      ...(this.hasSelf() ? [cell("self", formatShown(row.self, state))] : []),
      ...(shown.has("other") ? [cell("other", isBytes ? formatCount(row.other) : bytesOf)] : []),
      ...(shown.has("growth") ? [growth] : []), ...(shown.has("lost") ? [lost] : []),
      ...(shown.has("took") ? [cell("took", row.took > 0 ? formatTime(row.took) : "")] : []),
      ...(state.group === "site" ? customScores(data).map(([key]) => cell("custom", formatValue(row[key]))) : []), cell("spark", this.spark(row)),
    ];
    const isPicked = state.pick?.kind === "row" && row.key === state.pick.key;
    const element = make("div", isPicked ? "row picked" : "row", ...cells);
    if (this.isFound(row, data)) element.classList.add("found");
    element.setAttribute("role", "row");
    element.setAttribute("aria-rowindex", String(index + 2));
    element.setAttribute("aria-selected", String(isPicked));
    element.dataset.index = index;
    element.style.top = `${index * height}px`;
    element.style.height = `${height}px`;
    return element;
  }

  /** Whether the search has found something in the row, in a site's callers too. */
  isFound(row, data) {
    const { state, result } = this.app;
    if (!result.search) return false;
    if (state.group === "site") return Boolean(result.search.below[row.key]);
    return state.group !== "thread" && Boolean(matcher(state.search)(data.strings[row.key]));
  }

  nameParts(row) {
    const { data, state } = this.app;
    const { name, callers, frame, aside } = rowName(this.app, state.group, row.key);
    const place = frame < 0 ? "" : placeOf(data, frame);
    // The place and what tells the row from others are never cut off.
    const shown = fittingName(name, Math.max(this.room - aside.length - (place ? place.length + 2 : 0), LEAST_NAME));
    const marked = state.group === "thread" ? [shown] : markedName(shown, state.search);
    const first = make("span", "main", ...marked);
    first.title = name;
    if (aside) first.append(make("i", "aside", aside));
    if (place) first.append(make("small", "", place));
    if (state.group !== "site") return [first];
    const way = callers.map((caller) => isolated(fittingName(caller, MOST_OF_CALLER))).join(" \u2190 ");
    const second = make("span", "callers", ...(way ? ["\u2190 ", ...markedName(way, state.search)] : []));
    second.title = callers.join(" \u2190 ");
    return [first, second];
  }

  /** Forgets the lines of all rows: they may stand for others now. */
  clearSeries() {
    this.sparks.clear();
    this.canvases.clear();
  }

  seriesKey(row) {
    const { state } = this.app;
    return `${state.group} ${state.unit} ${filterText(state)} ${row.key}`;
  }

  /** Live of a row at each point; kept, since scrolling asks again. */
  series(row) {
    const key = this.seriesKey(row);
    if (!this.sparks.has(key)) {
      if (this.sparks.size > 500) this.sparks.clear();
      this.sparks.set(key, rowOverTime(this.app, row.key));
    }
    return this.sparks.get(key);
  }

  /** Whether lines are soon made: a site is one, a function may be on most stacks. */
  get hasFastLines() {
    const { state, tree } = this.app;
    return state.group === "site" || (!isPartition(state.group) && !isFiltered(state) && Boolean(tree.blocks?.[state.unit]));
  }

  /** The line of a row: the one that is there; else it is drawn at once if it is soon made. */
  spark(row) {
    const key = `${this.seriesKey(row)} ${document.documentElement.dataset.theme}`;
    let canvas = this.canvases.get(key);
    if (!canvas) {
      canvas = document.createElement("canvas");
      canvas.setAttribute("aria-hidden", "true");
      if (!this.hasFastLines && !this.sparks.has(this.seriesKey(row))) {
        this.waiting.push({ canvas, row, key });
        return canvas;
      }
      this.drawSpark(canvas, this.series(row));
    }
    this.drawnNow.set(key, canvas);
    return canvas;
  }

  /** Draws a line with one point for each of its pixels, the largest one. */
  drawSpark(canvas, values) {
    const { width, height } = SPARK;
    const context = paper(canvas, width, height);
    const most = values.reduce((a, b) => Math.max(a, b), 0) || 1;
    const { from_ns: from, to_ns: to, timeline } = this.app.data;
    const x = (point) => width * ((timeline.time_ns[point] - from) / Math.max(to - from, 1));
    const y = (value) => height - 2 - (height - 4) * (value / most);
    context.beginPath();
    context.moveTo(0, height - 2);
    for (let point = 0; point < values.length;) {
      const begin = x(point);
      let largest = values[point];
      for (point += 1; point < values.length && x(point) < begin + 1; point += 1) largest = Math.max(largest, values[point]);
      context.lineTo(begin, y(largest));
    }
    if (values.length) context.lineTo(x(values.length - 1), y(values[values.length - 1]));
    context.strokeStyle = css("--area-line");
    context.stroke();
    context.lineTo(width, height - 2);
    context.globalAlpha = 0.25;
    context.fillStyle = css("--area-line");
    context.fill();
  }

  pick(index) {
    if (!(index >= 0 && index < this.found.length)) return;
    const row = this.found.at(index);
    this.app.pickRow(row.key);
    this.reveal(index);
    const name = wholeName(rowName(this.app, this.app.state.group, row.key));
    say(`${name}, ${formatShown(row.value, this.app.state)}, row ${index + 1} of ${this.found.length}`);
  }

  reveal(index) {
    const top = index * this.rowHeight;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    if (top + this.rowHeight > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + this.rowHeight - this.box.clientHeight;
    this.draw();
  }

  /** The index of the row that is picked, or -1. */
  pickedIndex() {
    const { pick } = this.app.state;
    return pick?.kind === "row" ? this.found.indexOf(pick.key) : -1;
  }

  revealPicked() {
    const at = this.pickedIndex();
    if (at >= 0) this.reveal(at);
  }

  move(step) {
    const at = this.pickedIndex();
    this.pick(at < 0 ? 0 : Math.min(Math.max(at + step, 0), this.found.length - 1));
  }

  pressed(event) {
    const page = Math.max(Math.floor(this.box.clientHeight / this.rowHeight) - 1, 1);
    const steps = { PageDown: page, PageUp: -page, Home: -this.found.length, End: this.found.length };
    if (!(event.key in steps)) return;
    this.move(steps[event.key]);
    event.preventDefault();
  }
}
