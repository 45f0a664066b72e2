// Rows: sites, functions, modules or threads, with the live heap of each over time.

const GROUPS = [["site", "Sites"], ["function", "Functions"], ["module", "Modules"], ["thread", "Threads"]];
const COLUMNS = [["name", ""], ["value", ""], ["share", "Share"], ["other", ""], ["growth", "Growth"], ["spark", "Live over time"]];
const ROW_HEIGHT = 28;

class TableView {
  constructor(data, onPick) {
    this.data = data;
    this.onPick = onPick;
    this.group = "site";
    this.sorted = "value";
    this.box = byId("table");
    this.rows = [];
    this.picked = null;
    this.sparks = new Map();
    this.box.addEventListener("scroll", () => this.draw());
    byId("body").addEventListener("click", (event) => {
      const element = event.target.closest(".row");
      if (element) this.pick(+element.dataset.index);
    });
  }

  /** Key to the sites that belong to it. Functions and modules of a stack all carry its blocks. */
  members() {
    this.groups ||= {};
    if (this.groups[this.group]) return this.groups[this.group];
    const { frames, stacks, sites } = this.data;
    const found = new Map();
    const put = (key, site) => {
      const known = found.get(key);
      if (known) known.push(site); else found.set(key, [site]);
    };
    const keysOf = {
      site: (site) => [sites.stack[site]],
      thread: (site) => [sites.thread[site]],
      module: (site) => new Set(stacks[sites.stack[site]].map((f) => frames.module[f])),
      function: (site) => new Set(stacks[sites.stack[site]].map((f) => frames.function[f])),
    }[this.group];
    for (let site = 0; site < this.data.count; site += 1) {
      for (const key of keysOf(site)) put(key, site);
    }
    this.groups[this.group] = found;
    return found;
  }

  /** The function that a site is known by: the innermost that is not the C++ library's own. */
  siteName(stack) {
    const { frames, strings, stacks } = this.data;
    const all = stacks[stack];
    if (!all.length) return ["(no call stack)", ""];
    const at = Math.max(all.findIndex((f) => !PLUMBING.test(strings[frames.function[f]])), 0);
    const callers = all.slice(at + 1, at + 6).map((f) => strings[frames.function[f]]);
    return [strings[frames.function[all[at]]], callers.join(" \u2190 ")];
  }

  nameOf(key) {
    if (this.group === "site") return this.siteName(key);
    return [this.data.strings[key] || "(unknown)", ""];
  }

  show(selection, result) {
    this.selection = selection;
    const { amounts, mask, growth, values } = result;
    const other = selection.unit === "bytes" ? "blocks" : "bytes";
    const rows = [];
    for (const [key, members] of this.members()) {
      const row = { key, members, value: 0, other: 0, variance: 0, growth: 0, any: 0 };
      for (const site of members) {
        if (!mask[site]) continue;
        row.value += values[site];
        row.other += amounts[other][site];
        row.variance += amounts.variance[site];
        row.growth += growth[selection.unit][site];
        row.any = 1;
      }
      if (row.any && (row.value !== 0 || row.growth !== 0)) rows.push(row);
    }
    this.total = values.reduce((a, b) => a + b, 0);
    this.rows = rows;
    this.sort();
  }

  sort() {
    const by = this.sorted === "share" ? "value" : this.sorted;
    if (by === "name") {
      for (const row of this.rows) row.text ??= this.nameOf(row.key)[0];
      this.rows.sort((a, b) => (a.text < b.text ? -1 : a.text > b.text ? 1 : a.key - b.key));
    } else {
      this.rows.sort((a, b) => b[by] - a[by] || b.value - a.value || a.key - b.key);
    }
    this.header();
    byId("spacer").style.height = `${this.rows.length * ROW_HEIGHT}px`;
    byId("rows").textContent = `${formatCount(this.rows.length)} rows`;
    this.draw();
  }

  header() {
    const { unit, measure } = this.selection;
    const shown = MEASURES.find(([name]) => name === measure)[1];
    const names = { name: GROUPS.find(([name]) => name === this.group)[1], value: `${shown} ${unit}`, other: unit === "bytes" ? "Blocks" : "Bytes" };
    byId("columns").replaceChildren(...COLUMNS.map(([column, text]) => {
      const button = make("button", column === this.sorted ? "sorted" : "", names[column] || text);
      if (column !== "spark") button.onclick = () => { this.sorted = column; this.sort(); };
      return button;
    }));
  }

  draw() {
    const { selection } = this;
    if (!selection) return;
    const isBytes = selection.unit === "bytes";
    const format = isBytes ? formatBytes : formatCount;
    const bytesOf = (row) => withError(isBytes ? row.value : row.other, row.variance);
    const begin = Math.max(Math.floor(this.box.scrollTop / ROW_HEIGHT) - 3, 0);
    const end = Math.min(begin + Math.ceil(this.box.clientHeight / ROW_HEIGHT) + 7, this.rows.length);
    const elements = [];
    for (let i = begin; i < end; i += 1) {
      const row = this.rows[i];
      const [name, caller] = this.nameOf(row.key);
      const label = make("span", "name", name);
      if (caller) label.append(make("i", "", ` \u2190 ${caller}`));
      label.title = name;
      const spark = document.createElement("canvas");
      const growth = make("span", row.growth > 0 ? "up" : row.growth < 0 ? "down" : "", formatChange(row.growth, format));
      const element = make("div", row.key === this.picked ? "row picked" : "row",
        label, make("span", "", isBytes ? bytesOf(row) : format(row.value)), make("span", "", formatShare(row.value, this.total)),
        make("span", "", isBytes ? formatCount(row.other) : bytesOf(row)), growth, spark);
      element.dataset.index = i;
      element.style.top = `${i * ROW_HEIGHT}px`;
      elements.push(element);
      this.spark(spark, row);
    }
    byId("body").replaceChildren(...elements);
  }

  /** Live of a row at each point; kept, since scrolling asks again. */
  series(row) {
    const key = `${this.group} ${this.selection.unit} ${row.key}`;
    if (!this.sparks.has(key)) {
      if (this.sparks.size > 500) this.sparks.clear();
      this.sparks.set(key, overTime(this.data, row.members, this.selection.unit));
    }
    return this.sparks.get(key);
  }

  spark(canvas, row) {
    const context = paper(canvas, 120, 22);
    const values = this.series(row);
    const most = values.reduce((a, b) => Math.max(a, b), 0) || 1;
    const { from_ns: from, to_ns: to, timeline } = this.data;
    context.beginPath();
    context.moveTo(0, 20);
    for (let i = 0; i < values.length; i += 1) {
      context.lineTo(120 * ((timeline.time_ns[i] - from) / Math.max(to - from, 1)), 20 - 18 * (values[i] / most));
    }
    context.strokeStyle = css("--area-line");
    context.stroke();
    context.lineTo(120, 20);
    context.globalAlpha = 0.25;
    context.fillStyle = css("--area-line");
    context.fill();
  }

  pick(index) {
    const row = this.rows[index];
    if (!row) return;
    this.picked = row.key;
    const top = index * ROW_HEIGHT;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    if (top + ROW_HEIGHT > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + ROW_HEIGHT - this.box.clientHeight;
    this.draw();
    this.onPick(row);
  }

  move(step) {
    const at = this.rows.findIndex((row) => row.key === this.picked);
    this.pick(at < 0 ? 0 : Math.min(Math.max(at + step, 0), this.rows.length - 1));
  }
}
