// The selection: a window of time, a measure, filters; and the sums of each site under it.

const MEASURES = [
  ["live", "Live", "Live at the end of the window", (unit) => `of all live ${unit}`],
  ["peak", "Peak", "Live when most bytes were live within the window", (unit) => `of all ${unit} at the peak`],
  ["growth", "Growth", "Live at the end of the window less live at its start", (unit) => `of all added ${unit}`],
  ["allocated", "Allocated", "Allocated within the window", (unit) => `of all allocated ${unit}`],
  ["released", "Released", "Released within the window", (unit) => `of all released ${unit}`],
  ["temporary", "Temporary", "Released before the thread's next allocation; known for the whole run only", (unit) => `of all temporary ${unit}`],
  ["unreachable", "Unreachable", "Live at the end of the run, and nothing pointed to it any more: leaked", (unit) => `of all unreachable ${unit}`],
];
const UNITS = [["bytes", "Bytes"], ["blocks", "Blocks"]];
const LARGEST_BUCKET = 64;
/** Amounts of this many measures and windows are kept. */
const MOST_MEASURED = 4;

/** "of all live bytes" */
const wholeText = ({ measure, unit }) => (isCustom(measure) ? `of all ${customName(measure)}` : MEASURES.find(([name]) => name === measure)[3](unit));

/** The measures that the run knows. */
const knownMeasures = (data) => [...MEASURES.filter(([name]) => name !== "unreachable" || data.is_searched), ...customMeasures(data)];

/** What lives at the end; of a program that has released everything, what lived at the peak. */
const firstMeasure = (data) => (data.compared || data.sites.live.blocks.some((blocks) => blocks > 0) ? "live" : "peak");

function newSelection(data) {
  return {
    first: 0,
    last: Math.max(data.points - 1, 0),
    measure: firstMeasure(data),
    unit: "bytes",
    search: "",
    only: false,
    module: 0,
    thread: 0,
    type: 0,
    least: 0,
    most: LARGEST_BUCKET,
    hides: true,
    wrappers: USUAL_WRAPPERS,
  };
}

/** What the page covers: the whole run, or the window of it that `view --from` or `--to` cut out. */
const coveredText = (data) => (data.is_part ? `From ${formatTime(data.from_ns)} to ${formatTime(data.to_ns)}` : "Whole run");
/** The same in the middle of a sentence. */
const coveredWords = (data) => (data.is_part ? `from ${formatTime(data.from_ns)} to ${formatTime(data.to_ns)}` : "whole run");

const isWhole = (data, selection) => selection.first <= 0 && selection.last >= data.points - 1;
const hasSizes = (selection) => selection.least > 0 || selection.most < LARGEST_BUCKET;
const isFiltered = (selection) => Boolean((selection.only && selection.search) || selection.module || selection.thread || selection.type || hasSizes(selection));

/** Equal for selections with the same filters. */
const filterText = (selection) => JSON.stringify([selection.only && selection.search, selection.module, selection.thread, selection.type, selection.least, selection.most]);

/** The site amounts of a measure: { bytes, blocks, variance }, before any filter. */
function measured(data, selection) {
  const { sites, timeline } = data;
  const { first, last, measure } = selection;
  const difference = (a, b) => {
    const found = a.slice();
    for (let i = 0; i < found.length; i += 1) found[i] -= b[i];
    return found;
  };
  // The blocks of b are some of those of a: what is left has the rest of the variance.
  const less = (a, b) => ({
    bytes: difference(a.bytes, b.bytes), blocks: difference(a.blocks, b.blocks), variance: difference(a.variance, b.variance),
  });
  // Not so here: how many blocks live at both moments is not known, so neither is the error.
  const grown = (a, b) => ({ ...less(a, b), variance: new Float64Array(data.count).fill(NaN) });
  // It is about the end of the run, whatever the window.
  if (measure === "unreachable") return sites.unreachable;
  // They are no amounts of bytes or blocks, and known of the whole run.
  if (isCustom(measure)) return { bytes: data.customOf.get(measure).values, blocks: data.customOf.get(measure).values, variance: new Float64Array(data.count) };
  if (isWhole(data, selection)) {
    if (measure === "growth") return grown(sites.live, sites.before);
    return sites[measure];
  }
  switch (measure) {
    case "live": return stateAt(data, last).live;
    case "growth": return grown(stateAt(data, last).live, stateAt(data, first).live);
    case "allocated": return less(stateAt(data, last).allocated, stateAt(data, first).allocated);
    case "released": {
      const [begin, end] = [stateAt(data, first), stateAt(data, last)];
      return less(less(end.allocated, begin.allocated), less(end.live, begin.live));
    }
    case "peak": {
      let highest = first;
      for (let p = first; p <= last; p += 1) {
        if (timeline.live.bytes[p] > timeline.live.bytes[highest]) highest = p;
      }
      return stateAt(data, highest).live;
    }
    default: return noAmounts(data.count);
  }
}

/** By site: nanoseconds in the allocator, in a window as much of them as of the site's allocations. */
function tookOf(data, selection) {
  const { took, allocated } = data.sites;
  if (isWhole(data, selection)) return took;
  const within = keptMeasured(data, { ...selection, measure: "allocated" }).blocks;
  return took.map((time, site) => (allocated.blocks[site] > 0 ? (time * within[site]) / allocated.blocks[site] : 0));
}

/** 1 for each site that passes the filters. `found` says by node of the calls whether the search matches it or a caller. */
/** The last few are kept: another unit, and the column of growth, need them again. */
function keptMeasured(data, selection) {
  const key = `${selection.measure} ${selection.first} ${selection.last}`;
  data.measured ??= new Map();
  const known = data.measured.get(key) ?? measured(data, selection);
  data.measured.delete(key);
  data.measured.set(key, known);
  if (data.measured.size > MOST_MEASURED) data.measured.delete(data.measured.keys().next().value);
  return known;
}

function passing(data, selection, found) {
  const { frames, calls, sites, sizes } = data;
  const mask = new Uint8Array(data.count).fill(1);
  const keep = (test) => { for (let site = 0; site < data.count; site += 1) if (mask[site] && !test(site)) mask[site] = 0; };
  if (selection.only && found) keep((site) => found[sites.node[site]]);
  if (selection.module) {
    const inModule = markedBelow(calls, Uint8Array.from(frames.module, (module) => (module === selection.module ? 1 : 0)));
    keep((site) => inModule[sites.node[site]]);
  }
  if (selection.thread) keep((site) => sites.thread[site] === selection.thread);
  if (selection.type) keep((site) => sites.type[site] === selection.type);
  if (hasSizes(selection)) {
    keep((site) => {
      for (let i = sizes.starts[site]; i < sizes.starts[site + 1]; i += 1) {
        if (sizes.bucket[i] >= selection.least && sizes.bucket[i] <= selection.most) return true;
      }
      return false;
    });
  }
  return mask;
}

/** By node of the calls: 1 if a frame on the way from the root to it, its own included, is marked. */
function markedBelow({ parent, frame }, byFrame) {
  const marked = new Uint8Array(parent.length);
  for (let node = 1; node < parent.length; node += 1) marked[node] = marked[parent[node]] | byFrame[frame[node]];
  return marked;
}

function sumOf(values) {
  let sum = 0;
  for (let i = 0; i < values.length; i += 1) sum += values[i];
  return sum;
}

/** What is above zero of some values: the values themselves if all are, as those of most measures. */
function positive(values) {
  let at = 0;
  while (at < values.length && !(values[at] < 0)) at += 1;
  if (at === values.length) return values;
  const found = values.slice();
  for (let i = at; i < found.length; i += 1) if (found[i] < 0) found[i] = 0;
  return found;
}

/** Equal for selections of the same sites and amounts. */
const selectionText = (selection) => JSON.stringify([selection.first, selection.last, selection.measure, selection.unit, selection.search, filterText(selection)]);

/** Everything that the parts of the page draw from. */
function evaluate(data, selection) {
  const amounts = keptMeasured(data, selection);
  const search = searched(data, selection);
  const mask = passing(data, selection, search && search.below);
  const isAll = !isFiltered(selection);
  const masked = (column) => {
    if (isAll) return column;
    const passed = new Float64Array(column.length);
    for (let site = 0; site < column.length; site += 1) if (mask[site]) passed[site] = column[site];
    return passed;
  };
  const shown = { bytes: masked(amounts.bytes), blocks: masked(amounts.blocks), variance: masked(amounts.variance) };
  amounts.whole ??= { bytes: sumOf(positive(amounts.bytes)), blocks: sumOf(positive(amounts.blocks)) };
  const growth = selection.measure === "growth" ? amounts : keptMeasured(data, { ...selection, measure: "growth" });
  const result = {
    amounts, shown, mask, growth, search,
    values: shown[selection.unit],
    positive: positive(shown[selection.unit]),
    /** What percentages are of: everything that the measure covers, whatever the filters say. */
    whole: amounts.whole,
  };
  if (data.compared) result.byRun = byRun(data, result.positive);
  if (search) Object.assign(search, searchTotals(data, result));
  return result;
}
