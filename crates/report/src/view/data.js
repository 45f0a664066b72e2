// The run: what the page carries, unpacked into arrays.

async function unpack() {
  const packed = atob(byId("data").textContent.trim());
  const bytes = Uint8Array.from(packed, (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

const amounts = (columns) => {
  const variance = new Float64Array(columns.bytes.length);
  variance.set(columns.variance);
  return { bytes: Float64Array.from(columns.bytes), blocks: Float64Array.from(columns.blocks), variance };
};

/** Turns differences into a position, and counts what belongs to whom: where each one's changes begin. */
function startsOf(owners, count) {
  const starts = new Uint32Array(count + 1);
  for (const owner of owners) starts[owner + 1] += 1;
  for (let i = 0; i < count; i += 1) starts[i + 1] += starts[i];
  return starts;
}

function prepare(data) {
  const sites = data.sites;
  for (const name of ["before", "live", "peak", "allocated", "released", "temporary"]) {
    sites[name] = amounts(sites[name]);
  }
  const count = sites.stack.length;
  const { timeline, changes } = data;
  for (const name of ["live", "allocated", "temporary"]) timeline[name] = amounts(timeline[name]);
  const points = timeline.time_ns.length;
  const point = Uint32Array.from(changes.point);
  for (let i = 1; i < point.length; i += 1) point[i] += point[i - 1];
  const site = Uint32Array.from(changes.site);
  const pointStarts = startsOf(point, points);
  const siteStarts = startsOf(site, count);
  const ofSite = new Uint32Array(site.length);
  const next = siteStarts.slice();
  for (let i = 0; i < site.length; i += 1) ofSite[next[site[i]]++] = i;
  data.count = count;
  data.points = points;
  data.changes = {
    point, site, pointStarts, siteStarts, ofSite,
    live: amounts(changes.live), allocated: amounts(changes.allocated),
  };
  const exe = data.exe.split("/").pop();
  // The target's own code first: colours go by this order.
  data.modules = [...new Set(data.frames.module)].filter((m) => m)
    .sort((a, b) => (data.strings[b] === exe) - (data.strings[a] === exe));
  data.threads = [...new Set(sites.thread)];
  data.sourceOf = new Map();
  for (const source of data.sources) {
    const known = data.sourceOf.get(source.file) || [];
    known.push(source);
    data.sourceOf.set(source.file, known);
  }
  return data;
}

/** What every site has come to at a point of the timeline: live there, allocated since the begin. */
function stateAt(data, point) {
  const { changes, sites, count } = data;
  const { before } = sites;
  const state = {
    live: { bytes: before.bytes.slice(), blocks: before.blocks.slice(), variance: before.variance.slice() },
    allocated: { bytes: new Float64Array(count), blocks: new Float64Array(count), variance: new Float64Array(count) },
  };
  const end = point < 0 ? 0 : changes.pointStarts[point + 1];
  for (const name of ["live", "allocated"]) {
    for (const column of ["bytes", "blocks", "variance"]) {
      const [from, to] = [changes[name][column], state[name][column]];
      for (let i = 0; i < end; i += 1) to[changes.site[i]] = from[i];
    }
  }
  return state;
}

/** Live of some sites together at each point of the timeline. */
function overTime(data, members, unit) {
  const { changes, sites } = data;
  const steps = new Float64Array(data.points);
  let base = 0;
  for (const site of members) {
    let last = sites.before[unit][site];
    base += last;
    for (let k = changes.siteStarts[site]; k < changes.siteStarts[site + 1]; k += 1) {
      const i = changes.ofSite[k];
      steps[changes.point[i]] += changes.live[unit][i] - last;
      last = changes.live[unit][i];
    }
  }
  let sum = base;
  for (let p = 0; p < steps.length; p += 1) {
    sum += steps[p];
    steps[p] = sum;
  }
  return steps;
}
