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

/** Live of the sites of some spans of an order, if they pass the filters. The spans have no site in common and are in order. */
function overTimeOfSpans(data, order, begins, ends, mask, unit) {
  let count = 0;
  for (let i = 0; i < begins.length; i += 1) count += ends[i] - begins[i];
  const sums = new OverTime(data, unit);
  const add = (begin, end) => {
    for (let k = begin; k < end; k += 1) if (!mask || mask[order[k]]) sums.add(order[k]);
  };
  const isMost = !mask && count > order.length / 2;
  let from = 0;
  for (let i = 0; i < begins.length; i += 1) {
    if (isMost) add(from, begins[i]); else add(begins[i], ends[i]);
    from = ends[i];
  }
  if (!isMost) return sums.values();
  add(from, order.length);
  const less = sums.values();
  return allOverTime(data, unit).map((value, point) => value - less[point]);
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
