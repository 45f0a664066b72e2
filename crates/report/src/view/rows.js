// Rows of the table: sites, functions, modules, threads or types, and what each comes to.

const GROUPS = [["site", "Sites"], ["function", "Functions"], ["module", "Modules"], ["thread", "Threads"], ["type", "Types"]];

/** A block belongs to one site, one thread and one type, but to all functions and modules of its stack. */
const isPartition = (group) => group === "site" || group === "thread" || group === "type";

/** By site: the key of its row, where each block belongs to one row alone. */
const partitionKeys = (data, group) => (group === "site" ? data.sites.node : data.sites[group]);

/** An array with a number for each key of a row, all 0; it is the same one the next time. */
function scratch(data, name, Kind) {
  data.scratch ??= {};
  data.scratch[name] ??= new Kind(Math.max(data.calls.parent.length, data.strings.length));
  return data.scratch[name].fill(0);
}

const newRow = (key) => ({ key, value: 0, self: 0, other: 0, variance: 0, growth: 0, lost: 0 });

function makeRows(data, tree, group, selection, result) {
  const other = selection.unit === "bytes" ? "blocks" : "bytes";
  const columns = {
    value: result.values, other: result.shown[other], variance: result.shown.variance,
    growth: result.growth[selection.unit].map((value, site) => (result.mask[site] ? value : 0)),
  };
  if (data.is_searched) columns.lost = data.sites.unreachable[selection.unit].map((value, site) => (result.mask[site] && !isOldSite(data, site) ? value : 0));
  if (data.compared) {
    // What the new run has, and how much more that is than in the old one.
    columns.growth = columns.value.map((value, site) => (isOldSite(data, site) ? -value : value));
    for (const name of ["value", "other", "variance"]) columns[name] = columns[name].map((value, site) => (isOldSite(data, site) ? 0 : value));
  }
  const rows = isPartition(group) ? partitionRows(data, group, result.mask, columns) : pathRows(data, tree, group, columns);
  // What has changed without being lost is of no interest then.
  return selection.measure === "unreachable" ? rows.filter((row) => row.value > 0) : rows;
}

function partitionRows(data, group, mask, columns) {
  const keys = partitionKeys(data, group);
  const { value, other, variance, growth, lost } = columns;
  const rows = [];
  // By key: one more than the index of its row.
  const known = scratch(data, "known", Uint32Array);
  for (let site = 0; site < data.count; site += 1) {
    if (!mask[site]) continue;
    const key = keys[site];
    if (!known[key]) known[key] = rows.push(newRow(key));
    const row = rows[known[key] - 1];
    row.value += value[site];
    row.other += other[site];
    row.variance += variance[site];
    row.growth += growth[site];
    if (lost) row.lost += lost[site];
  }
  return rows.filter((row) => row.value !== 0 || row.growth !== 0);
}

function pathRows(data, tree, group, columns) {
  const keys = data.labels[group];
  const { starts, begin, end } = spansByKey(data, tree, group);
  const sums = {};
  for (const name in columns) {
    const { before } = new TreeSums(tree, columns[name]);
    const ofKey = sums[name] = new Float64Array(data.strings.length);
    for (let key = 0; key < ofKey.length; key += 1) {
      let sum = 0;
      for (let k = starts[key]; k < starts[key + 1]; k += 1) sum += before[end[k]] - before[begin[k]];
      ofKey[key] = sum;
    }
  }
  const own = new Float64Array(data.strings.length);
  for (let site = 0; site < data.count; site += 1) {
    const label = tree.label[tree.leaf[site]];
    if (label !== data.cutLabel) own[keys[label]] += columns.value[site];
  }
  const rows = [];
  for (let key = 0; key < own.length; key += 1) {
    if (sums.value[key] === 0 && sums.growth[key] === 0) continue;
    rows.push({ ...newRow(key), self: own[key], value: sums.value[key], other: sums.other[key], variance: sums.variance[key], growth: sums.growth[key], lost: sums.lost ? sums.lost[key] : 0 });
  }
  return rows;
}

/** By site: the key of the one row that its blocks belong to. A function or module has what it allocates itself. */
function ownKeys(data, tree, group) {
  if (isPartition(group)) return partitionKeys(data, group);
  return tree.leaf.map((leaf) => data.labels[group][tree.label[leaf]]);
}

/** The sites of a row that pass the filters. */
const membersOf = (app, key) => allMembers(app.data, app.tree, app.state.group, key).filter((site) => app.result.mask[site]);

function allMembers(data, tree, group, key) {
  const found = [];
  if (isPartition(group)) {
    const keys = ownKeys(data, tree, group);
    for (let site = 0; site < data.count; site += 1) if (keys[site] === key) found.push(site);
    return found;
  }
  const { starts, begin, end } = spansByKey(data, tree, group);
  const first = starts[key];
  return sitesOfSpans(tree, starts[key + 1] - first, (i) => begin[first + i], (i) => end[first + i]);
}

/** The name of a row: { name, callers, frame, aside }. */
function rowName(app, group, key) {
  if (group === "site") return siteName(app, key);
  return { name: app.data.strings[key] || (group === "module" ? "(no module)" : "(no call stack)"), callers: [], frame: -1, aside: "" };
}

const wholeName = ({ name, aside }) => name + aside;
