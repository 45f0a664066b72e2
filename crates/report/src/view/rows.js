// Rows of the table: sites, functions, modules, threads or types, and what each comes to. They are columns of numbers: a
// large program has a hundred thousand rows, of which some twenty are on the screen.

const GROUPS = [["site", "Sites"], ["function", "Functions"], ["module", "Modules"], ["thread", "Threads"], ["type", "Types"]];

/** A block belongs to one site, one thread and one type, but to all functions and modules of its stack. */
const isPartition = (group) => group === "site" || group === "thread" || group === "type";

/** By site: the key of its row, where each block belongs to one row alone. */
const partitionKeys = (data, group) => (group === "site" ? data.sites.node : data.sites[group]);

/** Numbers of rows, in the order of their keys: { keys, rowOf by site }. */
function numbered(keys) {
  const rowOf = new Uint32Array(keys.length);
  let most = 0;
  for (let site = 0; site < keys.length; site += 1) most = Math.max(most, keys[site]);
  // By key: whether it is there, then one more than its number.
  const numbers = new Uint32Array(most + 1);
  for (let site = 0; site < keys.length; site += 1) numbers[keys[site]] = 1;
  const found = [];
  for (let key = 0; key <= most; key += 1) if (numbers[key]) numbers[key] = found.push(key);
  for (let site = 0; site < keys.length; site += 1) rowOf[site] = numbers[keys[site]] - 1;
  return { keys: Int32Array.from(found), rowOf };
}

/** The rows of a group in which each block belongs to one, with the sites of each together. Made once. */
function partition(data, group) {
  data.partitions ??= {};
  if (data.partitions[group]) return data.partitions[group];
  const { keys, rowOf } = numbered(partitionKeys(data, group));
  const starts = startsOf(countsOf(rowOf, keys.length));
  const next = starts.slice();
  const sites = new Uint32Array(data.count);
  for (let site = 0; site < data.count; site += 1) sites[next[rowOf[site]]++] = site;
  data.partitions[group] = { keys, rowOf, starts, sites };
  return data.partitions[group];
}

/** By site: the one row that its blocks belong to. A function or module has what it allocates itself. */
function ownRows(data, tree, group) {
  if (isPartition(group)) return partition(data, group);
  tree.own ??= {};
  tree.own[group] ??= numbered(tree.leaf.map((leaf) => data.labels[group][tree.label[leaf]]));
  return tree.own[group];
}

/** By site: the key of that row. */
function ownKeys(data, tree, group) {
  if (isPartition(group)) return partitionKeys(data, group);
  const { keys, rowOf } = ownRows(data, tree, group);
  return rowOf.map((row) => keys[row]);
}

function numbersTo(count) {
  const numbers = new Int32Array(count);
  for (let i = 0; i < count; i += 1) numbers[i] = i;
  return numbers;
}

/** Rows in an order, of which `at` makes objects. */
class Rows {
  constructor(keys, sums, isShown) {
    Object.assign(this, { keys, sums });
    const all = new Uint32Array(keys.length);
    let count = 0;
    for (let row = 0; row < all.length; row += 1) if (isShown(row)) all[count++] = row;
    /** Numbers of rows, by key. */
    this.byKey = all.subarray(0, count);
    this.order = this.byKey;
    this.sortedBy = "";
  }

  get length() { return this.order.length; }

  at(index) {
    const row = this.order[index];
    const found = { row, key: this.keys[row] };
    for (const name in this.sums) found[name] = this.sums[name][row];
    return found;
  }

  /** All of them, for files. */
  all() { return Array.from(this.order, (_, index) => this.at(index)); }

  indexOf(key) { return this.order.indexOf(this.keys.indexOf(key)); }

  /** Sorts by a column; of the same amount those with the largest value are first, and of the same value the first key. */
  sort(name, column, isAscending) {
    const sortedBy = `${name} ${isAscending}`;
    if (this.sortedBy === sortedBy) return;
    this.sortedBy = sortedBy;
    const { value } = this.sums;
    if (column === value) {
      this.order = sorted(this.byKey, value, isAscending);
      return;
    }
    this.byValue ??= sorted(this.byKey, value, false);
    this.order = sorted(this.byValue, column, isAscending);
  }
}

function makeRows(data, tree, group, selection, result) {
  const other = selection.unit === "bytes" ? "blocks" : "bytes";
  const columns = { value: result.values, other: result.shown[other], variance: result.shown.variance, growth: result.growth[selection.unit] };
  if (data.is_searched) columns.lost = data.sites.unreachable[selection.unit].map((value, site) => (isOldSite(data, site) ? 0 : value));
  if (data.is_timed) columns.took = tookOf(data, selection);
  if (data.compared) {
    // What the new run has, and how much more that is than in the old one.
    columns.growth = columns.value.map((value, site) => (isOldSite(data, site) ? 0 - value : value));
    for (const name of ["value", "other", "variance"]) columns[name] = columns[name].map((value, site) => (isOldSite(data, site) ? 0 : value));
  }
  const names = Object.keys(columns);
  const all = Object.values(columns);
  const columnsOfRows = isPartition(group) ? all.map((values) => sumsOfPartition(data, group, result, values)) : sumsByKey(data, tree, group, result.mask, all);
  const sums = Object.fromEntries(names.map((name, at) => [name, columnsOfRows[at]]));
  const { value, growth } = sums;
  const keys = isPartition(group) ? partition(data, group).keys : data.keysOfStrings ??= numbersTo(data.strings.length);
  sums.self = isPartition(group) ? new Float64Array(keys.length) : ownSums(data, tree, group, columns.value);
  sums.lost ??= new Float64Array(keys.length);
  sums.took ??= new Float64Array(keys.length);
  if (group === "site") Object.assign(sums, customSums(data, keys));
  // What has changed without being lost is of no interest when that is the question.
  const isShown = selection.measure === "unreachable" ? (row) => value[row] > 0 : (row) => value[row] !== 0 || growth[row] !== 0;
  return new Rows(keys, sums, isShown);
}

/** By row of sites, threads or types: what those sites come to that pass the filters. */
function sumsOfPartition(data, group, { mask }, values) {
  const { keys, rowOf } = partition(data, group);
  const sums = new Float64Array(keys.length);
  for (let site = 0; site < values.length; site += 1) if (mask[site]) sums[rowOf[site]] += values[site];
  return sums;
}

/** By function or module: what the sites with it on their stacks come to, in each of some values. */
function sumsByKey(data, tree, group, mask, columns) {
  const { starts, begin, end } = spansByKey(data, tree, group);
  const { before, low, width } = new RunningSums(tree.order, columns, mask);
  const sums = columns.map(() => new Float64Array(starts.length - 1));
  const found = new Float64Array(width);
  for (let key = 0; key + 1 < starts.length; key += 1) {
    const last = starts[key + 1];
    if (starts[key] === last) continue;
    found.fill(0);
    for (let k = starts[key]; k < last; k += 1) {
      const [to, from] = [end[k] * width, begin[k] * width];
      for (let c = 0; c < width; c += 1) found[c] += before[to + c] - before[from + c];
    }
    for (let c = 0; c < sums.length; c += 1) sums[c][key] = low[c] ? found[c] + found[low[c]] : found[c];
  }
  return sums;
}

/** By function or module: what it allocates itself. */
function ownSums(data, tree, group, values) {
  const keys = data.labels[group];
  const sums = new Float64Array(data.strings.length);
  for (let site = 0; site < data.count; site += 1) {
    const label = tree.label[tree.leaf[site]];
    if (label !== data.cutLabel) sums[keys[label]] += values[site];
  }
  return sums;
}

/** By row: what was live at the peak of the run, of the sites that pass the filters. */
function peakSums(data, tree, group, unit, result) {
  const values = data.sites.peak[unit].map((value, site) => (result.mask[site] && !isOldSite(data, site) ? value : 0));
  return isPartition(group) ? sumsOfPartition(data, group, result, values) : sumsByKey(data, tree, group, result.mask, [values])[0];
}

/** The sites of a row that pass the filters, in order. The last lists are kept, and with them what is known of each. */
function membersOf(app, key) {
  const { tree, state } = app;
  return app.kept("members", [key, state.group, tree, filterText(state)], () => passingMembers(app, key));
}

function passingMembers({ data, tree, state, result }, key) {
  const members = allMembers(data, tree, state.group, key);
  return isFiltered(state) ? members.filter((site) => result.mask[site]) : members;
}

function allMembers(data, tree, group, key) {
  if (isPartition(group)) {
    const { keys, starts, sites } = partition(data, group);
    const row = keys.indexOf(key);
    return row < 0 ? new Uint32Array(0) : sites.subarray(starts[row], starts[row + 1]);
  }
  const { starts, begin, end } = spansByKey(data, tree, group);
  return sitesOfSpans(tree, begin.subarray(starts[key], starts[key + 1]), end.subarray(starts[key], starts[key + 1]));
}

/** What lives of a row that passes the filters, at each point of the timeline. */
function rowOverTime(app, key) {
  const { data, tree, state, result } = app;
  if (isPartition(state.group)) return overTime(data, passingMembers(app, key), state.unit);
  const { starts, begin, end } = spansByKey(data, tree, state.group);
  const [first, last] = [starts[key], starts[key + 1]];
  return overTimeOfSpans(data, tree, begin.subarray(first, last), end.subarray(first, last), isFiltered(state) ? result.mask : null, state.unit);
}

/** The name of a row: { name, callers, frame, aside }. */
function rowName(app, group, key) {
  if (group === "site") return siteName(app, key);
  return { name: app.data.strings[key] || (group === "module" ? "(no module)" : "(no call stack)"), callers: [], frame: -1, aside: "" };
}

const wholeName = ({ name, aside }) => name + aside;
