// Where blocks live at some moments: cells of one or several pages, and what lives in each of which site.

/** Nothing smaller is known of. */
const PAGE_BYTES = 4096;
/** Where nothing lives at any moment for longer than this, addresses are left out. */
const LEAST_FOLD = 1 << 20;

const addressText = (address) => `0x${address.toString(16)}`;

function prepareSpace(data, column) {
  const names = ["start", "more", "site", "blocks", "bytes", "oldest"];
  const starts = startsOf(column("space.count"));
  data.space = Object.fromEntries(names.map((name) => [name, column(`cells.${name}`)]));
  data.space.moments = Array.from(column("space.time_ns"), (ns, i) => (
    { ns, size: 2 ** column("space.shift")[i], begin: starts[i], end: starts[i + 1] }));
  /** As small as cells are known at all moments. */
  data.space.finest = data.space.moments.reduce((size, moment) => Math.max(size, moment.size), PAGE_BYTES);
  /** By moment: the entries that cover several cells. */
  data.space.runs = data.space.moments.map(({ begin, end }) => {
    const runs = [];
    for (let i = begin; i < end; i += 1) if (data.space.more[i] > 0) runs.push(i);
    return runs;
  });
}

/** The number of the moment that is nearest to a time. */
function momentAt({ space }, ns) {
  const far = (at) => Math.abs(space.moments[at].ns - ns);
  return space.moments.reduce((best, _, at) => (far(at) <= far(best) ? at : best), 0);
}

/** Cells of a size in which something lives at any moment: [first, last], in order. */
function usedCells({ space }, size) {
  const found = [];
  for (const moment of space.moments) {
    for (let i = moment.begin; i < moment.end; i += 1) {
      const first = Math.floor((space.start[i] * moment.size) / size);
      const last = Math.ceil(((space.start[i] + space.more[i] + 1) * moment.size) / size) - 1;
      const before = found[found.length - 1];
      if (before && first >= before[0] && first <= before[1] + 1) before[1] = Math.max(before[1], last);
      else found.push([first, last]);
    }
  }
  found.sort((a, b) => a[0] - b[0]);
  return joined(found, 1);
}

/** Those with fewer cells than this between them become one. */
function joined(parts, distance) {
  const found = [];
  for (const [first, last] of parts) {
    const before = found[found.length - 1];
    if (before && first - before[1] <= distance) before[1] = Math.max(before[1], last);
    else found.push([first, last]);
  }
  return found;
}

/** Between two ranges that are so far from each other, a row ends: another part of the address space. */
const FAR = 1 << 30;
/** Cells of a row that stand for addresses which are left out between two ranges. */
const FOLD_CELLS = 2;

/** How many cells there are at most when what is left out takes its place, too. */
const cellsOf = (ranges) => ranges.reduce((sum, [first, last]) => sum + last - first + 1 + FOLD_CELLS, 0);

/** Rows of cells: { first, last, pieces: [{ cell, count, column }], far }; `far`: what is left out before the row, in cells. */
function rowsOf(ranges, size, perRow) {
  const rows = [];
  let column = 0;
  const begin = (first, far = 0) => { rows.push({ first, last: first, pieces: [], far }); column = 0; };
  let before = null;
  for (const [first, last] of ranges) {
    const gap = before === null ? 0 : first - before - 1;
    if (before === null || gap * size >= FAR) begin(first, gap);
    else if (column + FOLD_CELLS >= perRow) begin(first);
    else column += FOLD_CELLS;
    for (let cell = first; cell <= last;) {
      if (column >= perRow) begin(cell);
      const count = Math.min(perRow - column, last - cell + 1);
      const row = rows[rows.length - 1];
      row.pieces.push({ cell, count, column });
      row.last = cell + count - 1;
      column += count;
      cell += count;
    }
    before = last;
  }
  return rows;
}

/** The last entry of an ordered list for which a test is true, if it is true from the first one on up to there; -1: none. */
function lastWhere(length, test) {
  let [low, high] = [0, length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (test(middle)) low = middle + 1; else high = middle;
  }
  return low - 1;
}

const isUsed = (used, cell) => {
  const at = lastWhere(used.length, (i) => used[i][0] <= cell);
  return at >= 0 && cell <= used[at][1];
};

/** Calls back for each site with something in a cell: site, bytes, blocks that begin there, when the oldest was allocated in ms. */
function eachInCell({ space }, moment, size, cell, visit) {
  const { size: own, begin, end } = space.moments[moment];
  const { start, more, site, blocks, bytes, oldest } = space;
  const [from, to] = [(cell * size) / own, ((cell + 1) * size) / own];
  // Cells are as large as those of the moment or larger, so no entry of one cell is cut.
  for (let i = begin + 1 + lastWhere(end - begin, (n) => start[begin + n] < from); i < end && start[i] < to; i += 1) {
    if (more[i] === 0) visit(site[i], bytes[i], blocks[i], oldest[i]);
  }
  // Blocks do not overlap, so neither do these.
  const runs = space.runs[moment];
  for (let at = lastWhere(runs.length, (n) => start[runs[n]] < to); at >= 0; at -= 1) {
    const i = runs[at];
    const [first, last] = [Math.max(start[i], from), Math.min(start[i] + more[i] + 1, to)];
    if (last <= first) return;
    visit(site[i], (bytes[i] * (last - first)) / (more[i] + 1), start[i] >= from ? blocks[i] : 0, oldest[i]);
  }
}

/** What lives at a moment of the sites that pass a test: bytes and blocks by a key of the site. */
function liveByKey({ space }, moment, passes, keyOf) {
  const { begin, end } = space.moments[moment];
  const sums = new Map();
  for (let i = begin; i < end; i += 1) {
    const site = space.site[i];
    if (!passes(site)) continue;
    const key = keyOf(site);
    const known = sums.get(key) || { bytes: 0, blocks: 0 };
    known.bytes += space.bytes[i];
    known.blocks += space.blocks[i];
    sums.set(key, known);
  }
  return sums;
}
