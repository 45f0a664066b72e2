// What is looked at: a window of time, a measure, filters; and what each site comes to under it.

const MEASURES = [
  ["live", "Live", "live at the end of the window"],
  ["peak", "Peak", "live when most bytes were, within the window"],
  ["growth", "Growth", "live at the end less live at the begin"],
  ["allocated", "Allocated", "allocated within the window"],
  ["released", "Released", "released within the window"],
  ["temporary", "Temporary", "released before the thread's next allocation; known for the whole run only"],
];
const UNITS = [["bytes", "Bytes"], ["blocks", "Blocks"]];

function newSelection(data) {
  return {
    first: 0,
    last: data.points - 1,
    measure: "live",
    unit: "bytes",
    pattern: "",
    module: 0,
    thread: 0,
    least: 0,
    most: 64,
  };
}

const isWhole = (data, selection) => selection.first <= 0 && selection.last >= data.points - 1;
const timeOf = (data, point) => (data.points ? data.timeline.time_ns[Math.min(Math.max(point, 0), data.points - 1)] : 0);

/** The site amounts of a measure: { bytes, blocks, variance }, before any filter. */
function measured(data, selection) {
  const { sites, timeline } = data;
  const { first, last, measure } = selection;
  const difference = (a, b) => a.map((value, i) => value - b[i]);
  // The blocks of b are some of those of a: what is left has the rest of the variance.
  const less = (a, b) => ({
    bytes: difference(a.bytes, b.bytes), blocks: difference(a.blocks, b.blocks), variance: difference(a.variance, b.variance),
  });
  // Not so here: how many blocks live at both moments is not known, so neither is the error.
  const grown = (a, b) => ({ ...less(a, b), variance: new Float64Array(data.count) });
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
    default: return grown(sites.before, sites.before);
  }
}

/** A test of function names, or null if the pattern is not a regular expression. */
function matcher(pattern) {
  if (!pattern) return () => true;
  try {
    const expression = new RegExp(pattern, "i");
    return (name) => expression.test(name);
  } catch {
    return null;
  }
}

/** 1 for each site that passes the filters. */
function passing(data, selection) {
  const { frames, stacks, sites } = data;
  const mask = new Uint8Array(data.count).fill(1);
  const test = matcher(selection.pattern) || (() => true);
  if (selection.pattern || selection.module) {
    const named = new Map();
    const isNamed = (string) => {
      if (!named.has(string)) named.set(string, test(data.strings[string]));
      return named.get(string);
    };
    const passes = stacks.map((stack) =>
      (!selection.pattern || stack.some((f) => isNamed(frames.function[f]))) &&
      (!selection.module || stack.some((f) => frames.module[f] === selection.module)));
    sites.stack.forEach((stack, site) => { if (!passes[stack]) mask[site] = 0; });
  }
  if (selection.thread) sites.thread.forEach((thread, site) => { if (thread !== selection.thread) mask[site] = 0; });
  if (selection.least > 0 || selection.most < 64) {
    const inRange = ([bucket]) => bucket >= selection.least && bucket <= selection.most;
    sites.sizes.forEach((sizes, site) => { if (!sizes.some(inRange)) mask[site] = 0; });
  }
  return mask;
}

/** Everything that the parts of the page draw from. */
function evaluate(data, selection) {
  const amounts = measured(data, selection);
  const mask = passing(data, selection);
  const masked = (column) => column.map((value, site) => (mask[site] ? value : 0));
  const values = masked(amounts[selection.unit]);
  const growth = selection.measure === "growth" ? amounts
    : measured(data, { ...selection, measure: "growth" });
  return { amounts, mask, values, variance: masked(amounts.variance), growth, positive: values.map((value) => Math.max(value, 0)) };
}
