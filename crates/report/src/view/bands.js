// Charts of bands over time, below the heap: what was resident, for how long nothing was touched, and how often pages
// were looked at.

/**
 * One chart: a canvas, and its legend, whose id ends in -legend. It is hidden where there are no points. `line`: a line
 * above the bands, { name, times, values }.
 */
class BandsView {
  constructor(app, id, unit, times, bands, line = null) {
    this.app = app;
    this.unit = unit;
    this.times = times;
    this.canvas = byId(id);
    this.bands = bands.map((band, rank) => ({ rank, ...band })).filter((band) => band.values.some((value) => value > 0));
    const sums = times.map((_, i) => this.bands.reduce((sum, band) => sum + band.values[i], 0));
    this.line = line;
    this.most = [...sums, ...(line ? line.values : [])].reduce((most, value) => Math.max(most, value), 1);
    const legend = byId(`${id}-legend`);
    this.id = id;
    this.legend = legend;
    this.hasPoints = times.length >= 2;
    legend.replaceChildren(...this.bands.map((band) => legendEntry(seriesColor(band.rank), band.name)));
    if (line) legend.append(legendEntry("--text", line.name, "line"));
    this.canvas.addEventListener("pointermove", (event) => this.tip(event));
    this.canvas.addEventListener("pointerleave", () => hideTip());
  }

  amount(value) { return this.unit === "bytes" ? formatAmount(value, "bytes") : `${formatCount(value)} ${this.unit}`; }

  draw() {
    this.canvas.hidden = this.legend.hidden = !this.hasPoints || !this.app.state.open.includes(this.id);
    if (this.canvas.hidden) return;
    const { data } = this.app;
    const height = PLOT.height;
    const width = this.canvas.parentElement.clientWidth - 20;
    const context = paper(this.canvas, width, height);
    this.width = width - PLOT.left - PLOT.right;
    const plot = height - 2 * PLOT.top;
    const x = (ns) => PLOT.left + ((ns - data.from_ns) / Math.max(axisEnd(data) - data.from_ns, 1)) * this.width;
    const y = (amount) => PLOT.top + plot * (1 - amount / this.most);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = css("--faint");
    context.strokeStyle = css("--line");
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const [amount, text] of amountTicks(this.most, this.unit, 3)) {
      const at = Math.round(y(amount)) + 0.5;
      context.fillText(text, PLOT.left - 8, at);
      context.beginPath();
      context.moveTo(PLOT.left, at);
      context.lineTo(width - PLOT.right, at);
      context.stroke();
    }
    drawStacked(context, this.bands, this.times, x, y);
    if (!this.line) return;
    context.beginPath();
    this.line.times.forEach((time, i) => context.lineTo(x(time), y(this.line.values[i])));
    context.lineWidth = 1.5;
    context.strokeStyle = css("--text");
    context.stroke();
  }

  tip(event) {
    const { data } = this.app;
    const part = (event.clientX - this.canvas.getBoundingClientRect().left - PLOT.left) / this.width;
    const ns = data.from_ns + part * (axisEnd(data) - data.from_ns);
    const near = nearest(this.times, ns);
    const lines = this.bands.map((band) => `${this.amount(band.values[near])} ${band.name}`);
    if (this.line) {
      const { name, times, values } = this.line;
      lines.push(`${this.amount(values[nearest(times, this.times[near])])} ${name}`);
    }
    showTip(event, formatTime(this.times[near]), ...lines);
  }
}

/** The index of the time that is nearest to another one. */
function nearest(times, ns) {
  let near = 0;
  times.forEach((time, i) => { if (Math.abs(time - ns) < Math.abs(times[near] - ns)) near = i; });
  return near;
}

const RESIDENT_BANDS = [
  ["anonymous_bytes", "anonymous memory resident"],
  ["file_bytes", "files resident"],
  ["shared_bytes", "shared memory resident"],
  ["swap_bytes", "swapped out"],
];

/** What was resident of the process, and how much of that lives: the rest is what the allocator keeps, and the program's own. */
function residentView(app) {
  const { resident: points, timeline } = app.data;
  const bands = RESIDENT_BANDS.map(([name, text]) => ({ name: text, values: points.map((point) => point[name]) }));
  const line = { name: "live bytes", times: timeline.time_ns, values: timeline.live.bytes };
  return new BandsView(app, "resident", "bytes", points.map((point) => point.time_ms * 1e6), bands, line);
}

/** For how long live bytes were not touched, and the thresholds of their pages. Empty without --stale. */
function agingViews(app) {
  const { ages_s: ages, thresholds_s: thresholds, points } = app.data.aging ?? { ages_s: [], thresholds_s: [], points: [] };
  const times = points.map((point) => point.at_s * 1e9);
  const least = (i) => (i === 0 ? `untouched for less than ${ages[0]} s` : `for at least ${ages[i - 1]} s`);
  // The oldest is at the bottom: it changes least.
  const byAge = Array.from({ length: ages.length + 1 }, (_, i) => ({ name: least(i), values: points.map((point) => point.untouched_bytes[i]) }));
  const byThreshold = thresholds.map((seconds, i) => ({
    name: `looked at again ${seconds} s after a write`, values: points.map((point) => point.pages[i]),
  }));
  return [
    new BandsView(app, "ages", "bytes", times, byAge.reverse()),
    new BandsView(app, "thresholds", "pages", times, byThreshold),
  ];
}
