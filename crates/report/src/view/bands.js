// Charts of bands over time, below the heap: what was resident, for how long nothing was touched, and how often pages
// were looked at.

/** One chart: a canvas, and its legend, whose id ends in -legend. It is hidden where there are no points. */
class BandsView {
  constructor(app, id, unit, times, bands) {
    this.app = app;
    this.unit = unit;
    this.times = times;
    this.canvas = byId(id);
    this.bands = bands.map((band, rank) => ({ rank, ...band })).filter((band) => band.values.some((value) => value > 0));
    const sums = times.map((_, i) => this.bands.reduce((sum, band) => sum + band.values[i], 0));
    this.most = Math.max(...sums, 1);
    const legend = byId(`${id}-legend`);
    this.canvas.hidden = legend.hidden = times.length < 2;
    legend.replaceChildren(...this.bands.map((band) => legendEntry(seriesColor(band.rank), band.name)));
    this.canvas.addEventListener("pointermove", (event) => this.tip(event));
    this.canvas.addEventListener("pointerleave", () => hideTip());
  }

  amount(value) { return this.unit === "bytes" ? formatAmount(value, "bytes") : `${formatCount(value)} ${this.unit}`; }

  draw() {
    if (this.canvas.hidden) return;
    const { data } = this.app;
    const height = PLOT.height * 0.75;
    const width = this.canvas.parentElement.clientWidth - 20;
    const context = paper(this.canvas, width, height);
    this.width = width - PLOT.left - PLOT.right;
    const plot = height - 2 * PLOT.top;
    const x = (ns) => PLOT.left + ((ns - data.from_ns) / Math.max(data.to_ns - data.from_ns, 1)) * this.width;
    const y = (amount) => PLOT.top + plot * (1 - amount / this.most);
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = css("--faint");
    context.strokeStyle = css("--line");
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const [amount, text] of amountTicks(this.most, this.unit, 4)) {
      const at = Math.round(y(amount)) + 0.5;
      context.fillText(text, PLOT.left - 8, at);
      context.beginPath();
      context.moveTo(PLOT.left, at);
      context.lineTo(width - PLOT.right, at);
      context.stroke();
    }
    drawStacked(context, this.bands, this.times, x, y);
  }

  tip(event) {
    const { data } = this.app;
    const part = (event.clientX - this.canvas.getBoundingClientRect().left - PLOT.left) / this.width;
    const ns = data.from_ns + part * (data.to_ns - data.from_ns);
    let near = 0;
    this.times.forEach((time, i) => { if (Math.abs(time - ns) < Math.abs(this.times[near] - ns)) near = i; });
    const lines = this.bands.map((band) => `${this.amount(band.values[near])} ${band.name}`);
    showTip(event, formatTime(this.times[near]), ...lines);
  }
}

const RESIDENT_BANDS = [
  ["anonymous_bytes", "anonymous memory resident"],
  ["file_bytes", "files resident"],
  ["shared_bytes", "shared memory resident"],
  ["swap_bytes", "swapped out"],
];

/** What was resident of the process. */
function residentView(app) {
  const points = app.data.resident;
  const bands = RESIDENT_BANDS.map(([name, text]) => ({ name: text, values: points.map((point) => point[name]) }));
  return new BandsView(app, "resident", "bytes", points.map((point) => point.time_ms * 1e6), bands);
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
