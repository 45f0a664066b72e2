// What sites were at points of the timeline.

/** What is known of this many points is kept: the ends of a window are asked for again and again. */
const MOST_STATES = 3;

const noAmounts = (count) => ({ bytes: new Float64Array(count), blocks: new Float64Array(count), variance: new Float64Array(count) });

/** What every site has come to at a point of the timeline: live there, allocated since the start. */
function stateAt(data, point) {
  data.states ??= new Map();
  const known = data.states.get(point) ?? madeStateAt(data, point);
  data.states.delete(point);
  data.states.set(point, known);
  if (data.states.size > MOST_STATES) data.states.delete(data.states.keys().next().value);
  return known;
}

function madeStateAt(data, point) {
  const { changes, sites, count } = data;
  const { before } = sites;
  const state = {
    live: { bytes: before.bytes.slice(), blocks: before.blocks.slice(), variance: before.variance.slice() },
    allocated: noAmounts(count),
  };
  // By site: one more than the place of its last change up to the point; 0 if there is none.
  const ends = new Uint32Array(count);
  for (let site = 0; site < count; site += 1) {
    const start = changes.starts[site];
    let [low, high] = [start, changes.starts[site + 1]];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (changes.point[middle] <= point) low = middle + 1; else high = middle;
    }
    ends[site] = low > start ? low : 0;
  }
  for (const name of ["live", "allocated"]) {
    for (const column of ["bytes", "blocks", "variance"]) {
      const [from, to] = [changes[name][column], state[name][column]];
      for (let site = 0; site < count; site += 1) if (ends[site]) to[site] = from[ends[site] - 1];
    }
  }
  return state;
}

/** Live of all sites together at each point of the timeline. */
function allOverTime(data, unit) {
  data.whole ??= {};
  data.whole[unit] ??= summedOverTime(data, allSites(data), unit);
  return data.whole[unit];
}

/** Live of some sites together at each point of the timeline. Of most sites it is what all come to less the others. */
function overTime(data, members, unit) {
  if (members.length <= data.count / 2) return summedOverTime(data, members, unit);
  const isMember = new Uint8Array(data.count);
  for (let at = 0; at < members.length; at += 1) isMember[members[at]] = 1;
  const less = summedOverTime(data, sitesWhere(data, (site) => !isMember[site]), unit);
  return allOverTime(data, unit).map((value, point) => value - less[point]);
}

/** Adds up what lives of some sites at each point of the timeline. */
class OverTime {
  constructor(data, unit) {
    Object.assign(this, { changes: data.changes, live: data.changes.live[unit], before: data.sites.before[unit], steps: new Float64Array(data.points), sum: 0 });
  }

  add(site) {
    const { changes: { starts, point }, live, before, steps } = this;
    let last = before[site];
    this.sum += last;
    const end = starts[site + 1];
    for (let i = starts[site]; i < end; i += 1) {
      steps[point[i]] += live[i] - last;
      last = live[i];
    }
  }

  /** The sums; nothing is added any more. */
  values() {
    const { steps } = this;
    let { sum } = this;
    for (let p = 0; p < steps.length; p += 1) {
      sum += steps[p];
      steps[p] = sum;
    }
    return steps;
  }
}

function summedOverTime(data, members, unit) {
  const sums = new OverTime(data, unit);
  for (let at = 0; at < members.length; at += 1) sums.add(members[at]);
  return sums.values();
}

/** Blocks of an order of sites of which what lives is known at each point. */
const BLOCKS = 64;

/**
 * By block of a tree's order of sites: what lives of all sites before it at each point, one block after the other. It is
 * made in steps, once for each unit. So of a span of sites only those at its ends are looked at.
 */
function* orderSteps(data, tree, unit) {
  tree.blocks ??= {};
  if (tree.blocks[unit]) return tree.blocks[unit];
  const { order } = tree;
  const size = Math.max(Math.ceil(order.length / BLOCKS), 1);
  const count = Math.ceil(order.length / size);
  const before = new Float64Array((count + 1) * data.points);
  for (let block = 0; block < count; block += 1) {
    const values = summedOverTime(data, order.subarray(block * size, (block + 1) * size), unit);
    const [from, to] = [block * data.points, (block + 1) * data.points];
    for (let p = 0; p < data.points; p += 1) before[to + p] = before[from + p] + values[p];
    if (block % 8 === 7) yield;
  }
  tree.blocks[unit] = { size, before };
  return tree.blocks[unit];
}

/** Live of the sites of some spans of a tree's order, if they pass the filters. The spans have no site in common. */
function overTimeOfSpans(data, tree, begins, ends, mask, unit) {
  const { order } = tree;
  const sums = new OverTime(data, unit);
  const add = (begin, end) => {
    for (let k = begin; k < end; k += 1) if (!mask || mask[order[k]]) sums.add(order[k]);
  };
  if (mask) {
    for (let i = 0; i < begins.length; i += 1) add(begins[i], ends[i]);
    return sums.values();
  }
  const { size, before } = finished(orderSteps(data, tree, unit));
  const whole = new Float64Array(data.points);
  for (let i = 0; i < begins.length; i += 1) {
    const [first, last] = [Math.ceil(begins[i] / size), ends[i] === order.length ? Math.ceil(ends[i] / size) : Math.floor(ends[i] / size)];
    if (first >= last) {
      add(begins[i], ends[i]);
      continue;
    }
    add(begins[i], first * size);
    add(last * size, ends[i]);
    const [from, to] = [first * data.points, last * data.points];
    for (let p = 0; p < whole.length; p += 1) whole[p] += before[to + p] - before[from + p];
  }
  return sums.values().map((value, point) => value + whole[point]);
}

/** The point of the timeline that is nearest to a time: points are in order. */
function nearestPoint(data, ns) {
  const times = data.timeline.time_ns;
  let [low, high] = [0, Math.max(times.length - 1, 0)];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < ns) low = middle + 1; else high = middle;
  }
  const before = Math.max(low - 1, 0);
  return ns - times[before] < times[low] - ns ? before : low;
}

const timeOf = (data, point) => (data.points ? data.timeline.time_ns[Math.min(Math.max(point, 0), data.points - 1)] : 0);
