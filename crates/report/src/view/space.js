// The addresses at which blocks live, as rows of cells: how much of each lives, and whose it is. Only rows on the screen
// are drawn.

const CELL_SIZES = [["all", "All", "All addresses on one screen"], ["fine", "Fine", "As fine as the page knows them"]];
const COVERS = [["row", "Rows", "Colours by the row of the table that most bytes of a cell belong to"], ["score", "Scores", "Colours by severity: how low the scores are"]];
const CELL_ROW = 13;
/** What says how much is left out between two rows. */
const FOLD_ROW = 15;
const LEAST_CELL_WIDTH = 5;
/** No picture has more rows than this, and no cell is larger, whatever is asked for. */
const MOST_CELL_ROWS = 100_000;
const LARGEST_CELL = 2 ** 40;

function hollow(context, x, y, width, height) {
  context.fillRect(x, y, width, 1);
  context.fillRect(x, y + height - 1, width, 1);
  context.fillRect(x, y, 1, height);
  context.fillRect(x + width - 1, y, 1, height);
}

class SpaceView {
  constructor(app) {
    this.app = app;
    this.box = byId("space-box");
    this.canvas = byId("space");
    this.cursor = null;
    this.usedOf = new Map();
    this.box.addEventListener("scroll", () => this.draw());
    this.box.addEventListener("keydown", (event) => this.pressed(event));
    this.box.addEventListener("focus", () => this.draw());
    this.box.addEventListener("blur", () => this.draw());
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", hideTip);
    this.canvas.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell !== null) this.pick(cell);
    });
  }

  get isShown() { return this.app.state.shape === "space"; }

  show() {
    this.box.hidden = !this.isShown;
    if (!this.isShown) return;
    const { app } = this;
    const { data, state, result } = app;
    const isAll = isWhole(data, state);
    this.moment = momentAt(data, isAll ? data.to_ns : timeOf(data, state.last));
    this.ns = data.space.moments[this.moment].ns;
    const picked = app.pickedSites();
    this.marked = new Uint8Array(data.count);
    for (let site = 0; site < data.count; site += 1) this.marked[site] = picked ? 0 : result.mask[site];
    picked?.forEach((site) => { this.marked[site] = 1; });
    this.isPart = Boolean(picked) || isFiltered(state);
    this.rankKeys();
    this.sum();
    // The caption may take another line, and room from the picture.
    this.caption();
    this.legend();
    this.draw();
  }

  /** The rows of the table with most live bytes have colours, in this order. */
  rankKeys() {
    const { data, state, result, tree } = this.app;
    this.keys = ownKeys(data, tree, state.group);
    const sums = liveByKey(data, this.moment, (site) => result.mask[site], (site) => this.keys[site]);
    const sorted = [...sums].sort((a, b) => b[1].bytes - a[1].bytes || a[0] - b[0]);
    this.ranked = sorted.slice(0, SERIES_COLORS).map(([key]) => key);
    this.others = Math.max(sorted.length - SERIES_COLORS, 0);
    this.rankOf = new Map(this.ranked.map((key, rank) => [key, rank]));
  }

  sum() {
    const sums = liveByKey(this.app.data, this.moment, (site) => this.marked[site], () => 0).get(0);
    this.total = sums ?? { bytes: 0, blocks: 0 };
  }

  /** Which cells there are: their size, and the rows that they make. */
  layout() {
    const { data, state } = this.app;
    const width = Math.max(this.box.clientWidth - 1, 1);
    const room = Math.max(this.box.clientHeight - 2, 1);
    const gutter = 112;
    let perRow = 16;
    while ((width - gutter) / (perRow * 2) >= LEAST_CELL_WIDTH) perRow *= 2;
    const key = [width, room, state.cell].join();
    if (this.layoutKey === key) return this.known;
    this.layoutKey = key;
    const most = state.cell === "all" ? Math.ceil(room / CELL_ROW) : MOST_CELL_ROWS;
    for (let size = data.space.finest; ; size *= 2) {
      const used = this.used(size);
      const ranges = joined(used, Math.max(LEAST_FOLD / size, perRow / 4));
      // At the end there are rows to scroll after all.
      const isLast = size >= LARGEST_CELL;
      if (cellsOf(ranges) > most * perRow && !isLast) continue;
      const rows = rowsOf(ranges, size, perRow);
      let y = 0;
      for (const row of rows) {
        if (row.far) y += FOLD_ROW;
        row.y = y;
        y += CELL_ROW;
      }
      if (state.cell === "all" && y > room && !isLast) continue;
      this.known = { size, perRow, used, rows, height: y, gutter, wide: (width - gutter - 4) / perRow, width, room };
      return this.known;
    }
  }

  used(size) {
    if (!this.usedOf.has(size)) this.usedOf.set(size, usedCells(this.app.data, size));
    return this.usedOf.get(size);
  }

  /** What lives in a cell: all of it, and of what is shown; and whose most of that is. */
  about(cell) {
    const { data } = this.app;
    const { size } = this.known;
    const found = { bytes: 0, marked: 0, blocks: 0, oldest: Infinity, ranks: new Float64Array(SERIES_COLORS + 1), severity: 0, scored: 0, sites: new Map() };
    eachInCell(data, this.moment, size, cell, (site, bytes, blocks, oldest) => {
      found.bytes += bytes;
      if (!this.marked[site]) return;
      found.marked += bytes;
      found.blocks += blocks;
      found.oldest = Math.min(found.oldest, oldest);
      found.ranks[this.rankOf.get(this.keys[site]) ?? SERIES_COLORS] += bytes;
      if (data.severity[site] >= 0) {
        found.severity += data.severity[site] * bytes;
        found.scored += bytes;
      }
      const known = found.sites.get(data.sites.node[site]) || { bytes: 0, blocks: 0 };
      known.bytes += bytes;
      known.blocks += blocks;
      found.sites.set(data.sites.node[site], known);
    });
    return found;
  }

  /** The variable that a cell is coloured with. */
  colorOf(found) {
    if (this.app.state.cover === "score") return severityColor(found.scored > 0 ? Math.round(found.severity / found.scored) : -1);
    return seriesColor(found.ranks.reduce((best, bytes, rank) => (bytes > found.ranks[best] ? rank : best), 0));
  }

  /** A cell's look: { color, alpha, state }, the state one of live, other, free and unseen. */
  look(cell, found) {
    const { size, used } = this.known;
    if (found.marked > 0 || found.blocks > 0) return { color: this.colorOf(found), alpha: 0.3 + 0.7 * Math.min(found.marked / size, 1), state: "live" };
    if (found.bytes > 0) return { color: "--space-other", alpha: 1, state: "other" };
    return isUsed(used, cell) ? { color: "--space-free", alpha: 1, state: "free" } : { color: "--space-unseen", alpha: 1, state: "unseen" };
  }

  /** Calls back for what is between two heights: rows, what is left out before and in them, and cells with their places. */
  eachBetween(from, until, visit) {
    const { rows, gutter, wide } = this.known;
    const begin = Math.max(lastWhere(rows.length, (n) => rows[n].y <= from), 0);
    for (let number = begin; number < rows.length && rows[number].y - FOLD_ROW <= until; number += 1) {
      const row = rows[number];
      if (row.far) visit.far(row, row.y - FOLD_ROW);
      visit.row(row);
      row.pieces.forEach(({ cell, count, column }, piece) => {
        const x = gutter + column * wide;
        if (piece > 0) visit.fold(x - FOLD_CELLS * wide, row.y);
        for (let n = 0; n < count; n += 1) visit.cell(cell + n, x + n * wide, row.y);
      });
    }
  }

  draw() {
    if (!this.isShown) return;
    const { size, height, wide, width, room } = this.layout();
    byId("space-spacer").style.height = `${height}px`;
    const context = paper(this.canvas, width, room);
    const scrolled = this.box.scrollTop;
    context.textBaseline = "middle";
    this.drawn = [];
    const outlines = [];
    const picked = this.app.state.place === null ? null : Math.floor(this.app.state.place / size);
    const write = (text, x, y, pixels) => {
      context.globalAlpha = 1;
      context.fillStyle = css("--faint");
      context.font = `${pixels}px ${css("--mono")}`;
      context.fillText(text, x, y - scrolled);
    };
    this.eachBetween(scrolled, scrolled + room, {
      far: (row, y) => write(this.farText(row), 4, y + FOLD_ROW / 2, 10),
      row: ({ first, y }) => write(addressText(first * size), 4, y + CELL_ROW / 2, 11),
      fold: (x, y) => write("\u2026", x + wide / 2, y + CELL_ROW / 2 - 2, 11),
      cell: (cell, x, y) => {
        const look = this.look(cell, this.about(cell));
        context.globalAlpha = look.alpha;
        context.fillStyle = css(look.color);
        const place = { cell, x, y: y - scrolled, ...look };
        const [thick, tall] = [Math.max(wide - 1, 1), CELL_ROW - 1];
        // What is free is hollow, whatever colours what lives has.
        if (look.state === "unseen") context.fillRect(x, place.y + tall / 2 - 1, thick, 2);
        else if (look.state === "free") hollow(context, x, place.y, thick, tall);
        else context.fillRect(x, place.y, thick, tall);
        this.drawn.push(place);
        if (cell === picked) outlines.push([place, "--pick"]);
        if (cell === this.cursor && document.activeElement === this.box) outlines.push([place, "--text"]);
      },
    });
    context.globalAlpha = 1;
    context.lineWidth = 2;
    for (const [{ x, y }, color] of outlines) {
      context.strokeStyle = css(color);
      context.strokeRect(x - 1, y - 1, wide + 1, CELL_ROW + 1);
    }
  }

  /** What is left out before a row, and what is known of the arena there. */
  farText(row) {
    const { size } = this.known;
    const arena = this.app.data.arenas.find(({ address }) => address >= row.first * size && address < (row.last + 1) * size);
    const resident = arena ? `; then an arena of malloc, of which ${formatBytes(arena.resident_bytes)} were resident at the end` : "";
    return `\u2026 ${formatBytes(row.far * size)} left out${resident}`;
  }

  caption() {
    const { app, total } = this;
    this.layout();
    const { size } = this.known;
    const what = this.isPart ? (app.pickedSites() ? "of what is picked, " : "of what passes the filters, ") : "";
    const pages = size > PAGE_BYTES ? `a cell is ${bytesLabel(size)}` : "a cell is a page";
    const text = `${what}${formatBytes(total.bytes)} in ${counted(total.blocks, "block")} live at ${formatTime(this.ns)}; ${pages}, the fuller its colour the more of it lives`;
    byId("shown").textContent = text;
    byId("path").textContent = "";
    this.box.setAttribute("aria-label", `Addresses: ${text}. Arrows walk over cells, Enter picks one, Escape goes back.`);
  }

  legend() {
    const { app } = this;
    const { state } = app;
    const entries = [];
    if (state.cover === "score") entries.push(...severityLegend());
    else {
      this.ranked.forEach((key, rank) => {
        const entry = legendEntry(seriesColor(rank), "");
        const pick = button("plain", wholeName(rowName(app, state.group, key)), () => app.pickRow(key));
        entry.append(pick);
        entries.push(entry);
      });
      if (this.others) entries.push(legendEntry("--series-other", `${counted(this.others, "other row")}`));
    }
    if (this.isPart) entries.push(legendEntry("--space-other", "something else lives"));
    entries.push(legendEntry("--space-free", "free then", "hollow"), legendEntry("--space-unseen", "nothing was ever seen there", "line"));
    byId("modules").replaceChildren(...entries);
    byId("modules").dataset.paint = "space";
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const { wide } = this.known;
    return (this.drawn || []).find((one) => x >= one.x && x < one.x + wide && y >= one.y && y < one.y + CELL_ROW)?.cell ?? null;
  }

  hover(event) {
    const cell = this.cellAt(event);
    if (cell === null) return hideTip();
    const [title, ...lines] = this.describe(cell);
    return showTip(event, title, ...lines);
  }

  /** The largest sites of a cell: [node, { bytes, blocks }]. */
  largest(found) { return [...found.sites].sort((a, b) => b[1].bytes - a[1].bytes || a[0] - b[0]); }

  rangeText(cell) {
    const { size } = this.known;
    return `${addressText(cell * size)} \u2013 ${addressText((cell + 1) * size)}`;
  }

  describe(cell) {
    const { size } = this.known;
    const found = this.about(cell);
    const { state } = this.look(cell, found);
    const title = this.rangeText(cell);
    if (state === "unseen") return [title, "nothing was seen to live here at any of the moments"];
    if (state === "free") return [title, "nothing lives here now; something did at another moment"];
    if (state === "other") return [title, `${formatBytes(found.bytes)} live, nothing of what is shown`];
    const largest = this.largest(found);
    const sites = largest.slice(0, 3).map(([node, { bytes }]) => `${formatBytes(bytes)} ${siteName(this.app, node).name}`);
    const more = largest.length > 3 ? [`and ${counted(largest.length - 3, "other site")}`] : [];
    return [title, `${formatBytes(found.marked)} live, ${formatShare(found.marked, size)}; ${counted(found.blocks, "block")} begin here`,
      `the oldest is ${this.ageText(found)} old`, ...sites, ...more];
  }

  ageText(found) {
    const ns = Math.max(this.ns - found.oldest * 1e6, 0);
    return ns < 1e6 ? "less than 1 ms" : formatTime(ns);
  }

  pick(cell) {
    const { app } = this;
    const isPicked = app.state.place !== null && Math.floor(app.state.place / this.known.size) === cell;
    Object.assign(app.state, { place: isPicked ? null : cell * this.known.size, pick: null });
    this.cursor = cell;
    app.picked();
  }

  /** The number of the row that a cell is in; -1: none. */
  rowOf(cell) {
    const { rows } = this.known;
    const at = lastWhere(rows.length, (n) => rows[n].first <= cell);
    return at >= 0 && rows[at].pieces.some((piece) => cell >= piece.cell && cell < piece.cell + piece.count) ? at : -1;
  }

  /** The cell next to another one, over what is left out. */
  next(cell, key) {
    const { rows } = this.known;
    const at = this.rowOf(cell);
    const { pieces } = rows[at];
    const here = pieces.findIndex((piece) => cell >= piece.cell && cell < piece.cell + piece.count);
    const column = pieces[here].column + cell - pieces[here].cell;
    const inRow = (row) => {
      const piece = row.pieces.findLast((one) => one.column <= column) ?? row.pieces[0];
      return Math.min(piece.cell + Math.max(column - piece.column, 0), piece.cell + piece.count - 1);
    };
    switch (key) {
      case "ArrowLeft": return this.rowOf(cell - 1) >= 0 ? cell - 1 : here > 0 ? pieces[here - 1].cell + pieces[here - 1].count - 1 : (rows[at - 1]?.last ?? cell);
      case "ArrowRight": return this.rowOf(cell + 1) >= 0 ? cell + 1 : pieces[here + 1]?.cell ?? rows[at + 1]?.first ?? cell;
      case "ArrowUp": return rows[at - 1] ? inRow(rows[at - 1]) : cell;
      case "ArrowDown": return rows[at + 1] ? inRow(rows[at + 1]) : cell;
      case "Home": return rows[0].first;
      default: return rows[rows.length - 1].last;
    }
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.known?.rows.length) return;
    const { size, rows } = this.known;
    const isHere = (cell) => cell !== null && this.rowOf(cell) >= 0;
    const picked = this.app.state.place === null ? null : Math.floor(this.app.state.place / size);
    const from = [this.cursor, picked].find(isHere) ?? rows[0].first;
    if (/^(Arrow.*|Home|End)$/.test(event.key)) {
      this.moveTo(isHere(this.cursor) ? this.next(from, event.key) : from);
    } else if (event.key === "Enter" || event.key === " ") {
      this.pick(from);
      say(this.describe(from).join(", "));
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  /** Shows the cell that an address names. */
  revealPicked() {
    if (!this.isShown || this.app.state.place === null) return;
    const cell = Math.floor(this.app.state.place / this.known.size);
    if (this.rowOf(cell) >= 0) this.moveTo(cell);
  }

  moveTo(cell) {
    this.cursor = cell;
    const { y } = this.known.rows[this.rowOf(cell)];
    const { box } = this;
    if (y < box.scrollTop) box.scrollTop = y;
    if (y + CELL_ROW > box.scrollTop + box.clientHeight) box.scrollTop = y + CELL_ROW - box.clientHeight + 2;
    this.draw();
    say(this.describe(cell).join(", "));
  }
}
