// The run: what the page carries, unpacked into arrays. packed.rs describes how it is packed.

const MEASURE_COLUMNS = ["before", "live", "peak", "allocated", "released", "temporary", "unreachable"];

function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const packed = atob(text);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = packed.charCodeAt(i);
  return bytes;
}

async function unpack() {
  const element = byId("data");
  const bytes = decodeBase64(element.textContent.trim());
  element.remove();
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return prepare(head, unpackColumns(head.columns, new Uint8Array(buffer, 4 + length)));
}

/** Indices fit into 32 bits; amounts and times do not. */
const isAmount = (name) => /\.(blocks|bytes|variance|time_ns|start|lifetime|size|more|oldest)$/.test(name);

function unpackColumns(list, bytes) {
  const columns = new Map();
  let at = 0;
  for (const [name, length, isRunning] of list) {
    const values = isAmount(name) ? new Float64Array(length) : new Int32Array(length);
    let last = 0;
    for (let i = 0; i < length; i += 1) {
      let byte = bytes[at++];
      let low = byte & 127;
      let shift = 7;
      while (byte > 127 && shift < 28) {
        byte = bytes[at++];
        low |= (byte & 127) << shift;
        shift += 7;
      }
      // The bits beyond those that 32-bit arithmetic keeps.
      let value = low;
      for (let scale = 2 ** 28; byte > 127; scale *= 128) {
        byte = bytes[at++];
        value += (byte & 127) * scale;
      }
      value = low & 1 ? -(value + 1) / 2 : value / 2;
      if (isRunning) {
        value += last;
        last = value;
      }
      values[i] = value;
    }
    columns.set(name, values);
  }
  return columns;
}

/** Where what belongs to each owner begins, if it is in the order of the owners. */
function startsOf(counts) {
  const starts = new Uint32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i += 1) starts[i + 1] = starts[i] + counts[i];
  return starts;
}

function countsOf(owners, count) {
  const counts = new Uint32Array(count);
  for (let i = 0; i < owners.length; i += 1) counts[owners[i]] += 1;
  return counts;
}

function prepare(head, columns) {
  const data = { ...head };
  unhitVariance = head.unhit_variance;
  const column = (name) => columns.get(name);
  const amounts = (name) => {
    const bytes = column(`${name}.bytes`);
    const variance = column(`${name}.variance`);
    return { bytes, blocks: column(`${name}.blocks`), variance: variance.length ? variance : new Float64Array(bytes.length) };
  };
  const group = (name, members) => Object.fromEntries(members.map((member) => [member, column(`${name}.${member}`)]));
  data.frames = group("frames", ["function", "module", "file", "shown_file", "role", "line", "inlined"]);
  data.calls = group("calls", ["parent", "frame"]);
  data.sites = group("sites", ["node", "kind", "thread", "type", "truncated"]);
  for (const name of MEASURE_COLUMNS) data.sites[name] = amounts(`sites.${name}`);
  data.sites.took = column("sites.took.time_ns");
  data.count = data.sites.node.length;
  for (const name of ["sizes", "lifetimes"]) {
    data[name] = { starts: startsOf(column(`${name}.count`)), ...group(name, ["bucket", "blocks"]) };
  }
  data.flows = { ...group("flows", ["allocated", "released"]), ...amounts("flows.amount") };
  data.timeline = { time_ns: column("timeline.time_ns") };
  for (const name of ["live", "allocated", "temporary"]) data.timeline[name] = amounts(`timeline.${name}`);
  data.points = data.timeline.time_ns.length;
  data.changes = prepareChanges(data, group("changes", ["point", "site"]), { live: amounts("changes.live"), allocated: amounts("changes.allocated") });
  prepareNames(data);
  data.asides = new Map(Array.from(column("asides.node"), (node, i) => [node, data.strings[column("asides.text")[i]]]));
  data.cut = cutSites(data);
  data.isWrapper = new Uint8Array(data.strings.length);
  for (const name of column("wrappers.name")) data.isWrapper[name] = 1;
  prepareScores(data, column);
  prepareCustom(data, column);
  prepareSpace(data, column);
  return data;
}

/**
 * Differences become sums, and the changes of each site come together, in the order of time: whoever asks for a site, or
 * for what all were at a point, reads neighbours.
 */
function prepareChanges(data, { point, site }, measures) {
  const starts = startsOf(countsOf(site, data.count));
  const places = new Uint32Array(site.length);
  const next = starts.slice();
  for (let i = 0; i < site.length; i += 1) places[i] = next[site[i]]++;
  const changes = { starts, point: new Int32Array(site.length) };
  for (let i = 0; i < site.length; i += 1) changes.point[places[i]] = point[i];
  for (const [name, columns] of Object.entries(measures)) {
    changes[name] = {};
    for (const [unit, values] of Object.entries(columns)) {
      const last = name === "live" ? data.sites.before[unit].slice() : new Float64Array(data.count);
      const ordered = changes[name][unit] = new Float64Array(site.length);
      for (let i = 0; i < values.length; i += 1) {
        last[site[i]] += values[i];
        ordered[places[i]] = last[site[i]];
      }
    }
  }
  return changes;
}

/** Labels are what frames are called in graphs: pairs of a function and its module. */
function prepareNames(data) {
  const { frames, calls } = data;
  const numbers = new Map();
  const labels = { function: [0], module: [0] };
  data.labelOf = frames.function.map((name, i) => {
    const key = name * data.strings.length + frames.module[i];
    if (!numbers.has(key)) {
      numbers.set(key, labels.function.length);
      labels.function.push(name);
      labels.module.push(frames.module[i]);
    }
    return numbers.get(key);
  });
  // The frame that stands for the callers of a stack that was cut.
  data.cutLabel = labels.function.length;
  labels.function.push(data.strings.push("\u2026 (callers were not recorded)") - 1);
  labels.module.push(0);
  data.labels = labels;
  // The target's own code first, then what is called most: colours go by this order.
  const uses = new Float64Array(data.strings.length);
  for (let node = 1; node < calls.frame.length; node += 1) uses[frames.module[calls.frame[node]]] += 1;
  const exe = data.exe.split("/").pop();
  const isOwn = (module) => (data.strings[module] === exe ? 1 : 0);
  data.modules = [...new Set(frames.module)].filter((module) => module).sort((a, b) => isOwn(b) - isOwn(a) || uses[b] - uses[a] || a - b);
  data.moduleRank = new Map(data.modules.map((module, rank) => [module, rank]));
  data.sourceOf = new Map();
  for (const source of data.sources) {
    if (!data.sourceOf.has(source.file)) data.sourceOf.set(source.file, []);
    data.sourceOf.get(source.file).push(source);
  }
}

/** Why a stack has no outermost frames. */
const [NOT_FOLLOWED, CUT_AT_DEPTH] = [1, 2];

/** By site: why its stack continues, but is cut; 0 if it does not. */
const cutSites = ({ sites: { node, truncated } }) => Uint8Array.from(node, (end, site) => (end ? truncated[site] : 0));

/** The frames of a stack, innermost first. */
function framesOf(data, node) {
  const found = [];
  for (let at = node; at > 0; at = data.calls.parent[at]) found.push(data.calls.frame[at]);
  return found;
}

const functionOf = (data, frame) => data.strings[data.frames.function[frame]];

/** All sites, in order. */
const allSites = (data) => sitesWhere(data, () => true);

/** The sites that pass a test, in order. */
function sitesWhere(data, test) {
  const found = new Uint32Array(data.count);
  let count = 0;
  for (let site = 0; site < data.count; site += 1) if (test(site)) found[count++] = site;
  return found.subarray(0, count);
}

/** File and line of a frame, the file from the source root on; empty if they are not known. */
function placeOf(data, frame) {
  const file = data.strings[data.frames.shown_file[frame]];
  const line = data.frames.line[frame];
  return file ? `${file}${line ? `:${line}` : ""}` : "";
}
