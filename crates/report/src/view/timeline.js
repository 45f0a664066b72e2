// The heap over time, and the window of time that is dragged on it.

const PLOT = { left: 70, right: 10, top: 6, bottom: 18, height: 92 };

/** Characters of a name beside the chart. */
const MOST_OF_LEGEND = 36;

class TimelineView {
  constructor(app) {
    this.app = app;
    this.canvas = byId("timeline");
    this.hover = null;
    this.drag = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.drag = this.pointAt(event);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      this.hover = this.pointAt(event);
      if (this.drag !== null && this.hover !== this.drag) app.setWindow(this.drag, this.hover);
      else this.draw();
      this.tip(event);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const [begin, end] = [this.drag, this.pointAt(event)];
      this.drag = null;
      if (begin !== null && begin !== end) app.setWindow(begin, end);
    });
    this.canvas.addEventListener("dblclick", () => app.setWindow(0, app.data.points - 1));
    this.canvas.addEventListener("pointerleave", () => { this.hover = null; hideTip(); this.draw(); });
  }

  x(ns) {
    const { from_ns: from } = this.app.data;
    return PLOT.left + ((ns - from) / Math.max(axisEnd(this.app.data) - from, 1)) * this.width;
  }

  y(amount) {
    return PLOT.top + this.height * (1 - amount / this.most);
  }

  pointAt(event) {
    const { data } = this.app;
    const part = (event.clientX - this.canvas.getBoundingClientRect().left - PLOT.left) / this.width;
    return nearestPoint(data, data.from_ns + part * (axisEnd(data) - data.from_ns));
  }

  /** `picked`: live of what was picked, or of what passes the filters, at each point; null without either. */
  show(picked, pickedText) {
    const { app } = this;
    this.picked = picked;
    this.pickedText = pickedText;
    const { state, result, tree } = app;
    this.series = state.chart === "stacked" ? app.kept("series", [result, tree, state.group], () => stackedSeries(app)) : null;
    this.legend(pickedText);
    if (app.state.open.includes("heap")) this.draw();
  }

  legend(pickedText) {
    const { app, series } = this;
    const { data, state } = app;
    const entries = [];
    if (series) {
      for (const { key, rank, name } of series) {
        const entry = legendEntry(seriesColor(rank), "");
        if (key === null) entry.append(name);
        else {
          const pick = button("plain", fittingName(name, MOST_OF_LEGEND), () => app.pickRow(key));
          pick.title = name;
          entry.append(pick);
        }
        entries.push(entry);
      }
    } else {
      entries.push(legendEntry("--area-line", `live ${state.unit}`, "line"));
      entries.push(legendEntry("--rate", `allocated, at most ${formatAmount(this.rates().most * 1e9, state.unit)} a second`));
    }
    if (data.compared?.timeline.length) entries.push(legendEntry("--pick", `live ${state.unit} of ${data.compared.name} (old)`, "dashed"));
    if (this.picked) entries.push(legendEntry(this.pickedColor, pickedText, "line"));
    entries.push(legendEntry("--faint", `peak, at ${formatTime(data.peak_ns)}`, "dashed"));
    if (data.gaps.length) entries.push(legendEntry("--faint", "nothing was seen", "hatched"));
    byId("legend").replaceChildren(...entries);
  }

  /** Over the colours of the series nothing else is seen. */
  get pickedColor() {
    return this.series || this.app.data.compared ? "--text" : "--pick";
  }

  /** What was allocated between two points, by time. */
  rates() {
    const { data, state } = this.app;
    this.knownRates ||= {};
    if (!this.knownRates[state.unit]) {
      const { time_ns: times, allocated } = data.timeline;
      const amounts = allocated[state.unit];
      const values = times.map((time, i) => (i ? (amounts[i] - amounts[i - 1]) / Math.max(time - times[i - 1], 1) : 0));
      this.knownRates[state.unit] = { values, most: values.reduce((a, b) => Math.max(a, b), 0) };
    }
    return this.knownRates[state.unit];
  }

  draw() {
    const { data, state } = this.app;
    const width = this.canvas.parentElement.clientWidth - 20;
    const context = paper(this.canvas, width, PLOT.height);
    this.width = width - PLOT.left - PLOT.right;
    this.height = PLOT.height - PLOT.bottom - PLOT.top;
    const times = data.timeline.time_ns;
    const values = data.timeline.live[state.unit];
    const old = data.compared?.timeline ?? [];
    this.most = Math.max(values.reduce((a, b) => Math.max(a, b), 0), old.reduce((a, point) => Math.max(a, point[state.unit]), 0), 1);
    // What does not go by what is picked is drawn once.
    const shown = [width, state.unit, this.series, document.documentElement.dataset.theme, window.devicePixelRatio];
    if (!this.backdrop || shown.some((one, i) => one !== this.backdrop.shown[i])) {
      this.backdrop = { shown, canvas: document.createElement("canvas") };
      this.drawAll(paper(this.backdrop.canvas, width, PLOT.height), width, times, values, old);
    }
    context.drawImage(this.backdrop.canvas, 0, 0, width, PLOT.height);
    if (this.picked) this.area(context, times, this.picked, null, css(this.pickedColor));
    this.marks(context, width);
  }

  drawAll(context, width, times, values, old) {
    const { data, state } = this.app;
    this.axes(context, width);
    const [x, y] = [(ns) => this.x(ns), (amount) => this.y(amount)];
    if (this.series) {
      drawStacked(context, this.series, times, x, y);
    } else {
      this.bars(context, times);
      this.area(context, times, values, css("--area"), css("--area-line"));
    }
    context.setLineDash([6, 3]);
    this.area(context, old.map((point) => data.from_ns + point.after_ns), old.map((point) => point[state.unit]), null, css("--pick"));
    context.setLineDash([]);
  }

  axes(context, width) {
    const { data, state } = this.app;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = css("--faint");
    context.strokeStyle = css("--line");
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const [amount, text] of amountTicks(this.most, state.unit, 4)) {
      const at = Math.round(this.y(amount)) + 0.5;
      context.fillText(text, PLOT.left - 8, at);
      context.beginPath();
      context.moveTo(PLOT.left, at);
      context.lineTo(width - PLOT.right, at);
      context.stroke();
    }
    context.textBaseline = "alphabetic";
    context.textAlign = "center";
    for (const [ns, text] of timeTicks(data.from_ns, axisEnd(data), this.width / 110)) {
      const at = Math.round(this.x(ns)) + 0.5;
      context.beginPath();
      context.moveTo(at, PLOT.height - PLOT.bottom);
      context.lineTo(at, PLOT.height - PLOT.bottom + 4);
      context.stroke();
      const half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(at, width - half), PLOT.height - 4);
    }
  }

  bars(context, times) {
    const { values, most } = this.rates();
    context.fillStyle = css("--rate");
    context.beginPath();
    for (let i = 1; i < values.length; i += 1) {
      const high = (this.height / 3) * (values[i] / (most || 1));
      const [begin, end] = [this.x(times[i - 1]), this.x(times[i])];
      context.rect(begin, PLOT.top + this.height - high, Math.max(end - begin, 0.5), high);
    }
    context.fill();
  }

  area(context, times, values, fill, line) {
    if (!times.length) return;
    context.beginPath();
    for (let i = 0; i < times.length; i += 1) context.lineTo(this.x(times[i]), this.y(values[i]));
    context.strokeStyle = line;
    context.lineWidth = fill ? 1.5 : 2;
    context.stroke();
    context.lineWidth = 1;
    if (!fill) return;
    context.lineTo(this.x(times[times.length - 1]), this.y(0));
    context.lineTo(this.x(times[0]), this.y(0));
    context.globalAlpha = 0.45;
    context.fillStyle = fill;
    context.fill();
    context.globalAlpha = 1;
  }

  /** Times in which nothing was seen. */
  gaps(context) {
    context.save();
    context.strokeStyle = css("--faint");
    context.beginPath();
    for (const gap of this.app.data.gaps) {
      const [begin, end] = [this.x(gap.from_s * 1e9), this.x(gap.to_s * 1e9)];
      context.rect(begin, PLOT.top, Math.max(end - begin, 2), this.height);
    }
    context.clip();
    context.beginPath();
    for (let at = PLOT.left - this.height; at < PLOT.left + this.width; at += 7) {
      context.moveTo(at, PLOT.top + this.height);
      context.lineTo(at + this.height, PLOT.top);
    }
    context.stroke();
    context.restore();
  }

  marks(context, width) {
    const { data, state } = this.app;
    if (data.gaps.length) this.gaps(context);
    const peak = this.x(data.peak_ns);
    context.strokeStyle = css("--faint");
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(peak, PLOT.top);
    context.lineTo(peak, PLOT.top + this.height);
    context.stroke();
    context.setLineDash([]);
    if (!isWhole(data, state)) {
      const [begin, end] = [this.x(timeOf(data, state.first)), this.x(timeOf(data, state.last))];
      context.fillStyle = css("--card");
      context.globalAlpha = 0.7;
      context.fillRect(PLOT.left, PLOT.top, begin - PLOT.left, this.height);
      context.fillRect(end, PLOT.top, width - PLOT.right - end, this.height);
      context.globalAlpha = 1;
      context.fillStyle = css("--accent");
      context.fillRect(begin - 1, PLOT.top, 2, this.height);
      context.fillRect(end - 1, PLOT.top, 2, this.height);
    }
    if (this.hover === null || !data.points) return;
    context.fillStyle = css("--text");
    context.fillRect(this.x(timeOf(data, this.hover)), PLOT.top, 1, this.height);
  }

  tip(event) {
    const { data, state } = this.app;
    if (!data.points) return;
    const format = (amount) => formatAmount(amount, state.unit);
    const lines = [`${format(data.timeline.live[state.unit][this.hover])} live`];
    const old = oldPointAt(data, timeOf(data, this.hover));
    if (old) lines.push(`${format(old[state.unit])} in ${data.compared.name} (old)`);
    if (this.picked) lines.push(`${format(this.picked[this.hover])} of it ${this.pickedText}`);
    if (this.series) {
      const above = event.clientY - this.canvas.getBoundingClientRect().top - PLOT.top;
      const one = seriesAt(this.series, this.hover, this.most * (1 - above / this.height));
      if (one) lines.unshift(`${format(one.values[this.hover])}: ${one.name}`);
    }
    showTip(event, formatTime(timeOf(data, this.hover)), ...lines);
  }
}
