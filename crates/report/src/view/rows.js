// Rows of the table: sites, functions, modules, threads or types, and what each comes to.

const GROUPS = [["site", "Sites"], ["function", "Functions"], ["module", "Modules"], ["thread", "Threads"], ["type", "Types"]];

/** A block belongs to one site, one thread and one type, but to all functions and modules of its stack. */
const isPartition = (group) => group === "site" || group === "thread" || group === "type";

/** By site: the key of its row, where each block belongs to one row alone. */
const partitionKeys = (data, group) => (group === "site" ? data.sites.node : data.sites[group]);

const newRow = (key) => ({ key, value: 0, self: 0, other: 0, variance: 0, growth: 0 });

function makeRows(data, tree, group, selection, result) {
  const other = selection.unit === "bytes" ? "blocks" : "bytes";
  const columns = {
    value: result.values, other: result.shown[other], variance: result.shown.variance,
    growth: result.growth[selection.unit].map((value, site) => (result.mask[site] ? value : 0)),
  };
  if (data.compared) {
    // What the new run has, and how much more that is than in the old one.
    columns.growth = columns.value.map((value, site) => (isOldSite(data, site) ? -value : value));
    for (const name of ["value", "other", "variance"]) columns[name] = columns[name].map((value, site) => (isOldSite(data, site) ? 0 : value));
  }
  const rows = isPartition(group) ? partitionRows(data, group, result.mask, columns) : pathRows(data, tree, group, columns);
  return rows;
}

function partitionRows(data, group, mask, columns) {
  const keys = partitionKeys(data, group);
  const { value, other, variance, growth } = columns;
  const rows = [];
  // By key: one more than the index of its row.
  const known = new Uint32Array(Math.max(data.calls.parent.length, data.strings.length));
  for (let site = 0; site < data.count; site += 1) {
    if (!mask[site]) continue;
    const key = keys[site];
    if (!known[key]) known[key] = rows.push(newRow(key));
    const row = rows[known[key] - 1];
    row.value += value[site];
    row.other += other[site];
    row.variance += variance[site];
    row.growth += growth[site];
  }
  return rows.filter((row) => row.value !== 0 || row.growth !== 0);
}

function pathRows(data, tree, group, columns) {
  const keys = data.labels[group];
  const isOutermost = outermost(data, tree, group);
  const sums = {};
  const own = new Float64Array(data.strings.length);
  for (const name in columns) {
    const { self, total } = treeSums(tree, columns[name]);
    const ofKey = sums[name] = new Float64Array(data.strings.length);
    for (let node = 1; node < tree.parent.length; node += 1) {
      const label = tree.label[node];
      if (label === data.cutLabel) continue;
      if (isOutermost[node]) ofKey[keys[label]] += total[node];
      if (name === "value") own[keys[label]] += self[node];
    }
  }
  const rows = [];
  for (let key = 0; key < own.length; key += 1) {
    if (sums.value[key] === 0 && sums.growth[key] === 0) continue;
    rows.push({ ...newRow(key), self: own[key], value: sums.value[key], other: sums.other[key], variance: sums.variance[key], growth: sums.growth[key] });
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
  const keys = data.labels[group];
  const nodes = [];
  for (let node = 1; node < tree.parent.length; node += 1) if (keys[tree.label[node]] === key) nodes.push(node);
  return sitesBelow(tree, nodes);
}

/** The name of a row: { name, callers, frame, aside }. */
function rowName(app, group, key) {
  if (group === "site") return siteName(app, key);
  return { name: app.data.strings[key] || (group === "module" ? "(no module)" : "(no call stack)"), callers: [], frame: -1, aside: "" };
}

const wholeName = ({ name, aside }) => name + aside;
