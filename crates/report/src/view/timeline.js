// The heap over time, and the brush on it.

class TimelineView {
  constructor(data, onWindow) {
    this.data = data;
    this.onWindow = onWindow;
    this.canvas = byId("timeline");
    this.picked = null;
    this.hover = null;
    this.drag = null;
    this.left = 66;
    this.right = 8;
    this.bottom = 18;
    const pointAt = (event) => this.pointAt(event.clientX - this.canvas.getBoundingClientRect().left);
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.drag = pointAt(event);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      this.hover = pointAt(event);
      if (this.drag !== null && this.hover !== this.drag) {
        this.select(this.drag, this.hover);
      } else {
        this.draw();
      }
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const [begin, end] = [this.drag, pointAt(event)];
      this.drag = null;
      if (begin !== null && begin !== end) this.select(begin, end);
    });
    this.canvas.addEventListener("dblclick", () => this.select(0, this.data.points - 1));
    this.canvas.addEventListener("pointerleave", () => { this.hover = null; this.draw(); });
  }

  /** Ends are moved to points at which the sites are known. */
  select(begin, end) {
    const { points, step } = this.data;
    const last = points - 1;
    const snap = (point) => Math.max(last - Math.round((last - point) / step) * step, 0);
    const [first, until] = [snap(Math.min(begin, end)), snap(Math.max(begin, end))];
    if (first < until) this.onWindow(first, until);
  }

  x(ns) {
    const { from_ns: from, to_ns: to } = this.data;
    return this.left + ((ns - from) / Math.max(to - from, 1)) * this.plotWidth;
  }

  pointAt(x) {
    const { from_ns: from, to_ns: to, timeline } = this.data;
    const ns = from + ((x - this.left) / this.plotWidth) * (to - from);
    // The nearest: points are in order.
    let [low, high] = [0, timeline.time_ns.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (timeline.time_ns[middle] < ns) low = middle + 1; else high = middle;
    }
    const before = Math.max(low - 1, 0);
    return ns - timeline.time_ns[before] < timeline.time_ns[low] - ns ? before : low;
  }

  show(selection, picked) {
    this.selection = selection;
    this.picked = picked;
    this.draw();
  }

  draw() {
    const { data, selection } = this;
    const width = this.canvas.parentElement.clientWidth - 20;
    const height = 120;
    const context = paper(this.canvas, width, height);
    this.plotWidth = width - this.left - this.right;
    const plotHeight = height - this.bottom - 6;
    const { time_ns: times, live, allocated } = data.timeline;
    const values = live[selection.unit];
    const format = selection.unit === "bytes" ? formatBytes : formatCount;
    const most = Math.max(values.reduce((a, b) => Math.max(a, b), 0), 1);
    const y = (value) => 6 + plotHeight * (1 - value / most);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = css("--faint");
    context.strokeStyle = css("--line");
    for (const part of [0, 0.5, 1]) {
      context.fillText(format(most * part), this.left - 8, Math.min(Math.max(y(most * part), 8), height - this.bottom - 2));
      context.beginPath();
      context.moveTo(this.left, Math.round(y(most * part)) + 0.5);
      context.lineTo(width - this.right, Math.round(y(most * part)) + 0.5);
      context.stroke();
    }
    context.textBaseline = "alphabetic";
    for (let tick = 0; tick <= 6; tick += 1) {
      const ns = data.from_ns + ((data.to_ns - data.from_ns) * tick) / 6;
      context.textAlign = tick === 0 ? "left" : tick === 6 ? "right" : "center";
      context.fillText(formatTime(ns), this.x(ns), height - 3);
    }
    // What was allocated between two points, faint, in its own scale.
    const rates = times.map((time, i) => (i ? (allocated[selection.unit][i] - allocated[selection.unit][i - 1]) / Math.max(time - times[i - 1], 1) : 0));
    const mostRate = Math.max(rates.reduce((a, b) => Math.max(a, b), 0), 1e-12);
    context.fillStyle = css("--rate");
    context.globalAlpha = 0.5;
    for (let i = 1; i < rates.length; i += 1) {
      const high = (plotHeight / 3) * (rates[i] / mostRate);
      context.fillRect(this.x(times[i - 1]), 6 + plotHeight - high, Math.max(this.x(times[i]) - this.x(times[i - 1]), 0.5), high);
    }
    context.globalAlpha = 1;
    this.area(context, values, y, plotHeight, css("--area"), css("--area-line"));
    if (this.picked) this.area(context, this.picked, y, plotHeight, null, css("--pick"));
    this.marks(context, y, plotHeight, format, width);
  }

  area(context, values, y, plotHeight, fill, line) {
    const times = this.data.timeline.time_ns;
    if (!times.length) return;
    context.beginPath();
    for (let i = 0; i < times.length; i += 1) context.lineTo(this.x(times[i]), y(values[i]));
    context.strokeStyle = line;
    context.lineWidth = 1.5;
    context.stroke();
    context.lineWidth = 1;
    if (!fill) return;
    context.lineTo(this.x(times[times.length - 1]), 6 + plotHeight);
    context.lineTo(this.x(times[0]), 6 + plotHeight);
    context.globalAlpha = 0.45;
    context.fillStyle = fill;
    context.fill();
    context.globalAlpha = 1;
  }

  marks(context, y, plotHeight, format, width) {
    const { data, selection } = this;
    const peak = this.x(data.peak_ns);
    context.strokeStyle = css("--faint");
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(peak, 6);
    context.lineTo(peak, 6 + plotHeight);
    context.stroke();
    context.setLineDash([]);
    if (!isWhole(data, selection)) {
      const [begin, end] = [this.x(timeOf(data, selection.first)), this.x(timeOf(data, selection.last))];
      context.fillStyle = css("--card");
      context.globalAlpha = 0.7;
      context.fillRect(this.left, 6, begin - this.left, plotHeight);
      context.fillRect(end, 6, width - this.right - end, plotHeight);
      context.globalAlpha = 1;
      context.fillStyle = css("--accent");
      context.fillRect(begin - 1, 6, 2, plotHeight);
      context.fillRect(end - 1, 6, 2, plotHeight);
    }
    if (this.hover === null || !data.points) return;
    const at = this.x(timeOf(data, this.hover));
    const text = `${formatTime(timeOf(data, this.hover))}: ${format(data.timeline.live[selection.unit][this.hover])}`;
    context.fillStyle = css("--text");
    context.fillRect(at, 6, 1, plotHeight);
    const flips = at + context.measureText(text).width + 12 > width;
    context.textAlign = flips ? "right" : "left";
    context.fillText(text, at + (flips ? -6 : 6), 16);
  }
}
