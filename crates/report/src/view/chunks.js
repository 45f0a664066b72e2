// The chunks of a site, each a row: its length is the lifetime, its shade the size. Only rows on the screen are drawn.

const TALLS = [["all", "All", "All chunks on one screen"], ["2", "Thin", "Two pixels for a chunk"], ["6", "Medium", "Six pixels for a chunk"], ["14", "Thick", "Fourteen pixels for a chunk"]];
/** Chunks are never drawn narrower, in pixels. */
const NARROWEST_CHUNK = 2;
/** Rows of at least this many pixels have ticks at the first and the last access. */
const LOWEST_TICK = 4;

class ChunkView {
  constructor(app) {
    this.app = app;
    this.box = byId("chunk-box");
    this.canvas = byId("chunks");
    this.order = new Uint32Array(0);
    this.box.addEventListener("scroll", () => this.draw());
    this.box.addEventListener("keydown", (event) => this.pressed(event));
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", hideTip);
  }

  get isShown() { return this.app.state.shape === "chunks"; }

  /** Looks for the chunks of what is picked, or of all that passes the filters. */
  show() {
    this.box.hidden = !this.isShown;
    if (!this.isShown) return;
    const { data, state, result } = this.app;
    const members = this.app.pickedSites() ?? sitesWhere(data, (site) => result.mask[site]);
    const nodes = [...new Set(members.map((site) => data.sites.node[site]))];
    const scored = nodes.map((node) => data.scored.get(node)).filter(Boolean);
    const key = nodes.join();
    if (key !== this.key) {
      this.key = key;
      this.all = chunksOf(data, scored);
      this.box.scrollTop = 0;
    }
    const isAll = isWhole(data, state);
    this.fromTick = (isAll ? data.from_ns : timeOf(data, state.first)) / CHUNK_TICK_NS;
    this.toTick = Math.max((isAll ? data.to_ns : timeOf(data, state.last)) / CHUNK_TICK_NS, this.fromTick + 1);
    this.order = isAll ? this.all.order : chunksWithin(data, this.all.order, this.fromTick, this.toTick);
    // The caption may take another line, and room from the picture.
    this.caption(scored);
    this.draw();
  }

  caption(scored) {
    const { all, order } = this;
    const blocks = sumOf(scored.map((one) => one.blocks));
    const step = all.step > 1 ? `; of a site with very many, one in up to ${formatCount(all.step)} is shown` : "";
    const sizes = order.length ? `, of ${bytesLabel(all.least)}${all.most > all.least ? ` to ${bytesLabel(all.most)}, the darker the larger` : ""}` : "";
    const isMarked = this.measures().perRow === 1 && this.measures().height >= LOWEST_TICK && order.some((chunk) => accessTimes(this.app.data, chunk));
    const marks = isMarked ? ", with ticks at the first and the last access" : "";
    const text = order.length ? `${counted(order.length, "chunk")} of ${counted(blocks, "block")}${sizes}${marks}${step}` : "no chunks here";
    byId("shown").textContent = text;
    byId("path").textContent = this.app.pickedSites() ? "" : "all sites (pick a row for one)";
    this.box.setAttribute("aria-label", `Chunks: ${text}. Arrows and page keys scroll.`);
  }

  /** Chunks in a row, and how high a row is. */
  measures() {
    const room = Math.max(this.box.clientHeight, 1);
    const count = Math.max(this.order.length, 1);
    const { tall } = this.app.state;
    if (tall !== "all") return { perRow: 1, height: Number(tall), rows: count };
    const height = Math.min(Math.max(Math.floor(room / count), 1), 14);
    const rows = Math.min(count, Math.floor(room / height));
    return { perRow: count / rows, height, rows };
  }

  draw() {
    if (!this.isShown) return;
    const { data } = this.app;
    const { perRow, height, rows } = this.measures();
    byId("chunk-spacer").style.height = `${rows * height}px`;
    const room = Math.max(this.box.clientHeight - 1, 1);
    const width = Math.max(this.box.clientWidth - 1, 1);
    const context = paper(this.canvas, width, room);
    const first = Math.floor(this.box.scrollTop / height);
    const last = Math.min(Math.ceil((this.box.scrollTop + room) / height) + 1, rows);
    this.drawn = chunkRows(data, this.order, first, last, perRow);
    const scale = width / (this.toTick - this.fromTick);
    const place = (tick) => (Math.min(Math.max(tick, this.fromTick), this.toTick) - this.fromTick) * scale;
    context.fillStyle = css("--area-line");
    for (const row of this.drawn) {
      const x = place(row.from);
      row.y = row.row * height - this.box.scrollTop;
      row.height = height;
      const thick = Math.max(height - (height > 3 ? 1 : 0), 1);
      // The hull of several chunks is pale; behind its begin, as long as they live on average, it is not.
      if (row.count > 1) {
        context.globalAlpha = 0.18;
        context.fillRect(x, row.y, Math.max(place(row.to) - x, NARROWEST_CHUNK), thick);
      }
      context.globalAlpha = this.shade(row.size);
      const end = row.count > 1 ? place(row.from + row.lifetime) : place(row.to);
      context.fillRect(x, row.y, Math.max(end - x, NARROWEST_CHUNK), thick);
    }
    context.globalAlpha = 1;
    this.drawTicks(context, place);
  }

  /** Where single chunks were first and last read or written. */
  drawTicks(context, place) {
    if (this.measures().height < LOWEST_TICK) return;
    context.fillStyle = css("--text");
    for (const row of this.drawn) {
      const times = row.count === 1 ? accessTimes(this.app.data, this.order[row.begin]) : null;
      if (!times) continue;
      for (const tick of [times.first, times.last]) {
        // What is outside of the window has no place in it.
        if (tick >= this.fromTick && tick <= this.toTick) context.fillRect(Math.round(place(tick)), row.y, 1, row.height - 1);
      }
    }
  }

  /** The larger, the darker, on a scale of powers of two. */
  shade(size) {
    const { least, most } = this.all;
    const part = most > least ? Math.log2((size + 1) / (least + 1)) / Math.log2((most + 1) / (least + 1)) : 1;
    return 0.35 + 0.65 * Math.min(Math.max(part, 0), 1);
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    const row = (this.drawn || []).find((one) => y >= one.y && y < one.y + one.height);
    if (!row) return hideTip();
    const { data } = this.app;
    const since = (tick) => formatTime(Math.max(tick * CHUNK_TICK_NS, 0));
    if (row.count > 1) {
      return showTip(event, counted(row.count, "chunk"), `allocated from ${since(row.from)} on, ${bytesLabel(Math.round(row.size))} each on average`,
        `live for ${since(row.lifetime)} on average`);
    }
    const chunk = this.order[row.begin];
    const end = data.chunks.live[chunk] ? "live at the end" : `released at ${since(row.to)}`;
    const lived = `live for ${row.lifetime > 0 ? since(row.lifetime) : "less than 1 \u00b5s"}`;
    return showTip(event, `Chunk of ${bytesLabel(row.size)}`, `allocated at ${since(row.from)}, ${end}`, lived, ...accessLines(data, chunk));
  }

  pressed(event) {
    const { height } = this.measures();
    const page = Math.max(this.box.clientHeight - 20, 20);
    const steps = { ArrowDown: height * 3, ArrowUp: -height * 3, PageDown: page, PageUp: -page, Home: -1e9, End: 1e9 };
    if (!(event.key in steps)) return;
    this.box.scrollTop += steps[event.key];
    event.preventDefault();
  }
}
