// What was resident of the process over time, as bands below the heap.

const BANDS = [
  ["anonymous_bytes", "anonymous memory resident"],
  ["file_bytes", "files resident"],
  ["shared_bytes", "shared memory resident"],
  ["swap_bytes", "swapped out"],
];

class ResidentView {
  constructor(app) {
    this.app = app;
    this.canvas = byId("resident");
    const points = app.data.resident;
    this.times = points.map((point) => point.time_ms * 1e6);
    this.bands = BANDS.map(([name, text], rank) => ({ rank, name: text, values: points.map((point) => point[name]) }))
      .filter((band) => band.values.some((value) => value > 0));
    this.sums = points.map((point) => BANDS.reduce((sum, [name]) => sum + point[name], 0));
    this.most = Math.max(...this.sums, 1);
    this.canvas.hidden = points.length < 2;
    byId("resident-legend").hidden = this.canvas.hidden;
    byId("resident-legend").replaceChildren(...this.bands.map((band) => legendEntry(seriesColor(band.rank), band.name)));
    this.canvas.addEventListener("pointermove", (event) => this.tip(event));
    this.canvas.addEventListener("pointerleave", () => hideTip());
  }

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
    for (const [amount, text] of amountTicks(this.most, "bytes", 4)) {
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
    const lines = this.bands.map((band) => `${formatAmount(band.values[near], "bytes")} ${band.name}`);
    showTip(event, formatTime(this.times[near]), ...lines);
  }
}
