// The calls merged by label, root above: what graphs and sums by function are made from. It is made once for a list of
// hidden functions; a selection only changes the sums.

/** By node of a tree in which what is below a node follows it: the first node that is not below it. */
function lastBelow(parent) {
  const last = new Uint32Array(parent.length);
  for (let node = parent.length - 1; node >= 0; node -= 1) {
    if (last[node] <= node) last[node] = node + 1;
    if (node && last[parent[node]] < last[node]) last[parent[node]] = last[node];
  }
  return last;
}

/** Of a stack of hidden functions only, its innermost is shown: such a node is listed complemented, without what it calls. */
const isAlone = (listed) => listed < 0;

/** By node of the calls: the label of its frame; 0 of the root. */
function labelsOfCalls({ calls, labelOf }) {
  const labels = new Int32Array(calls.frame.length);
  for (let node = 1; node < labels.length; node += 1) labels[node] = labelOf[calls.frame[node]];
  return labels;
}

/** Calls that a step of the builder looks at: a few milliseconds. */
const WORK_OF_STEP = 20_000;

/** Builds a tree whose nodes are numbered as they are met on the way down, so what is below a node follows it. */
class TreeBuilder {
  constructor(data, hidden) {
    const count = data.calls.parent.length;
    data.callLabels ??= labelsOfCalls(data);
    data.lastCalls ??= lastBelow(data.calls.parent);
    Object.assign(this, { data, hidden, parent: new Int32Array(2 * count + 2), label: new Int32Array(2 * count + 2), count: 1 });
    this.parent[0] = -1;
    this.leaf = new Uint32Array(data.count);
    // By node of the calls: the node of the tree of the stacks that end there.
    this.merged = new Uint32Array(count);
    // Nodes of the calls whose own calls are still to be listed: those of a later node of the tree behind those of an earlier one.
    this.listed = new Int32Array(count + 1);
    // What is left to do: nodes of the tree by parent and label, and where their list begins; the last one is next.
    this.pending = { parent: new Int32Array(count + 1), label: new Int32Array(count + 1), begin: new Int32Array(count + 1) };
    // What one node calls, and its labels; by label one more than its place among these.
    this.found = new Int32Array(count + 1);
    this.groups = { label: new Int32Array(data.labels.function.length), end: new Int32Array(data.labels.function.length) };
    this.places = new Uint32Array(data.labels.function.length);
  }

  /** Adds the stacks of some sites below a node, in steps. */
  *add(root, isMember) {
    const { data, hidden, leaf, merged, listed, pending, found } = this;
    const { calls, sites, callLabels, lastCalls } = data;
    const [isUsed, isEnd] = [new Uint8Array(calls.parent.length), new Uint8Array(calls.parent.length)];
    for (let site = 0; site < data.count; site += 1) if (isMember[site]) isEnd[sites.node[site]] = 1;
    for (let node = calls.parent.length - 1; node > 0; node -= 1) {
      if (isEnd[node] || isUsed[node]) isUsed[node] = isUsed[calls.parent[node]] = 1;
    }
    listed[0] = 0;
    pending.parent[0] = -1;
    this.left = 1;
    let end = 1;
    let work = 0;
    yield;
    while (this.left) {
      if (work > WORK_OF_STEP) {
        work = 0;
        yield;
      }
      this.left -= 1;
      const isRoot = pending.parent[this.left] < 0;
      const node = isRoot ? root : this.node(pending.parent[this.left], pending.label[this.left]);
      const begin = pending.begin[this.left];
      let count = 0;
      work += end - begin;
      // Calls of hidden functions are calls of this node.
      for (let i = begin; i < end; i += 1) {
        const call = listed[i];
        if (isAlone(call)) {
          merged[~call] = node;
          continue;
        }
        merged[call] = node;
        if (isRoot && isEnd[call] && (call === 0 || hidden[callLabels[call]])) found[count++] = ~call;
        const last = lastCalls[call];
        for (let next = call + 1; next < last; next = lastCalls[next]) {
          if (!isUsed[next]) continue;
          if (hidden[callLabels[next]]) listed[end++] = next; else found[count++] = next;
        }
      }
      work += end - begin + count;
      end = count ? this.list(node, begin, count) : begin;
    }
    yield;
    for (let site = 0; site < data.count; site += 1) if (isMember[site]) leaf[site] = merged[sites.node[site]];
  }

  node(parent, label) {
    this.parent[this.count] = parent;
    this.label[this.count] = label;
    this.count += 1;
    return this.count - 1;
  }

  /** Puts what a node calls onto the list, that of each label together, and notes what is to be made of it; returns the end of the list. */
  list(node, begin, count) {
    const { data: { callLabels }, listed, found, groups, places, pending } = this;
    const labelAt = (i) => callLabels[isAlone(found[i]) ? ~found[i] : found[i]];
    const note = (label, at) => {
      pending.parent[this.left] = node;
      pending.label[this.left] = label;
      pending.begin[this.left] = at;
      this.left += 1;
    };
    if (count === 1) {
      listed[begin] = found[0];
      note(labelAt(0), begin);
      return begin + 1;
    }
    let groupCount = 0;
    for (let i = 0; i < count; i += 1) {
      const label = labelAt(i);
      if (!places[label]) {
        groups.label[groupCount] = label;
        groups.end[groupCount] = 0;
        groupCount += 1;
        places[label] = groupCount;
      }
      groups.end[places[label] - 1] += 1;
    }
    let end = begin;
    for (let group = 0; group < groupCount; group += 1) {
      const own = groups.end[group];
      note(groups.label[group], end);
      groups.end[group] = end;
      end += own;
    }
    for (let i = 0; i < count; i += 1) {
      const group = places[labelAt(i)] - 1;
      listed[groups.end[group]] = found[i];
      groups.end[group] += 1;
    }
    for (let group = 0; group < groupCount; group += 1) places[groups.label[group]] = 0;
    return end;
  }
}

/**
 * Stacks that were cut are below a frame of their own: their outermost frames are not where the program begins. By node,
 * `last` is the first node that is not below it; what a node calls begins behind it, and goes on behind the `last` of each.
 * The sites are in the `order` of their nodes, those of each beginning at its place in `starts`: those at or below a node
 * are together, so that sums and members of nodes need no walk over the tree. It is made in steps.
 */
function* treeSteps(data, hidden) {
  const builder = new TreeBuilder(data, hidden);
  yield;
  yield* builder.add(0, data.cut.map((isCut) => (isCut ? 0 : 1)));
  if (data.cut.some(Boolean)) yield* builder.add(builder.node(0, data.cutLabel), data.cut);
  const { count, leaf } = builder;
  const parent = builder.parent.slice(0, count);
  const label = builder.label.slice(0, count);
  yield;
  const starts = startsOf(countsOf(leaf, count));
  const next = starts.slice();
  const order = new Uint32Array(leaf.length);
  for (let site = 0; site < leaf.length; site += 1) order[next[leaf[site]]++] = site;
  yield;
  return { parent, label, last: lastBelow(parent), labelCount: data.labels.function.length, leaf, starts, order, byKey: {} };
}

/** Sums of whole numbers up to this are exact. */
const EXACT = 2 ** 53;

/**
 * Running sums of some columns, one after the other at each place of an order of sites, so that what is asked for together
 * lies together. Differences of them are exact, since amounts are whole numbers. Sums of variances may be larger than whole
 * numbers can be: such a column has another one, `low`, of what its sums are short of.
 */
class RunningSums {
  constructor(order, columns, mask = null) {
    this.low = new Uint8Array(columns.length);
    this.width = columns.length;
    columns.forEach((values, c) => {
      let most = 0;
      for (let site = 0; site < values.length; site += 1) most += Math.abs(values[site]);
      if (most >= EXACT) this.low[c] = this.width++;
    });
    const { low, width } = this;
    this.before = new Float64Array((order.length + 1) * width);
    columns.forEach((values, c) => this.add(order, values, mask, c, low[c]));
  }

  add(order, values, mask, column, low) {
    const { before, width } = this;
    let sum = 0;
    let short = 0;
    for (let k = 0, at = width + column; k < order.length; k += 1, at += width) {
      const site = order[k];
      const value = mask && !mask[site] ? 0 : values[site];
      const next = sum + value;
      if (low) {
        // What the sum was rounded by (Knuth's two-sum).
        const added = next - sum;
        short += (sum - (next - added)) + (value - added);
        before[at + low - column] = short;
      }
      sum = next;
      before[at] = sum;
    }
  }

  /** What the sites between two places of the order come to in the first column. */
  between(begin, end) {
    const { before, low, width } = this;
    const sum = before[end * width] - before[begin * width];
    return low[0] ? sum + (before[end * width + low[0]] - before[begin * width + low[0]]) : sum;
  }
}

/** What the values of some sites come to: by a node, of those at or below it, or of those that end there. */
class TreeSums {
  constructor(tree, values) {
    this.tree = tree;
    this.sums = new RunningSums(tree.order, [values]);
  }

  total(node) {
    const { starts, last } = this.tree;
    return this.sums.between(starts[node], starts[last[node]]);
  }

  self(node) { return this.sums.between(this.tree.starts[node], this.tree.starts[node + 1]); }
}

const labelText = (data, label) => (label ? data.strings[data.labels.function[label]] : "(no call stack)");

/** The sites that end at or below any of some nodes. */
const sitesBelow = (tree, nodes) => sitesOfSpans(tree, nodes.map((node) => tree.starts[node]), nodes.map((node) => tree.starts[tree.last[node]]));

/** The sites that end at any of some nodes. */
const sitesAt = (tree, nodes) => sitesOfSpans(tree, nodes.map((node) => tree.starts[node]), nodes.map((node) => tree.starts[node + 1]));

/** The sites of some spans of their order, each once, in the order of the run. */
function sitesOfSpans(tree, begins, ends) {
  const { order } = tree;
  const isFound = new Uint8Array(order.length);
  for (let i = 0; i < begins.length; i += 1) {
    const end = ends[i];
    for (let k = begins[i]; k < end; k += 1) isFound[order[k]] = 1;
  }
  const found = new Uint32Array(order.length);
  let count = 0;
  for (let site = 0; site < isFound.length; site += 1) if (isFound[site]) found[count++] = site;
  return found.slice(0, count);
}

/**
 * By function or module: the spans of the sites that have it on their stacks, each site once, since of calls below each
 * other only the outermost counts. Those of a key are together, from `starts` on, in order; neighbours are one.
 */
function spansByKey(data, tree, group) {
  const known = tree.byKey[group];
  if (known) return known;
  const keys = data.labels[group];
  const keyOf = Int32Array.from(keys, (key, label) => (label === data.cutLabel ? -1 : key));
  const count = data.strings.length;
  // By key: the first node that is not below the last one of it, where the sites of that one end, and its span.
  const [until, endOf, spanOf] = [new Uint32Array(count), new Int32Array(count).fill(-1), new Uint32Array(count)];
  const most = tree.label.length;
  const spans = { key: new Int32Array(most), begin: new Uint32Array(most), end: new Uint32Array(most) };
  let spanCount = 0;
  for (let node = 1; node < most; node += 1) {
    const key = keyOf[tree.label[node]];
    if (key < 0 || node < until[key]) continue;
    until[key] = tree.last[node];
    const begin = tree.starts[node];
    if (endOf[key] !== begin) {
      spanOf[key] = spanCount++;
      spans.key[spanOf[key]] = key;
      spans.begin[spanOf[key]] = begin;
    }
    endOf[key] = tree.starts[tree.last[node]];
    spans.end[spanOf[key]] = endOf[key];
  }
  const ofKey = spans.key.subarray(0, spanCount);
  const starts = startsOf(countsOf(ofKey, count));
  const next = starts.slice();
  const found = { starts, begin: new Uint32Array(spanCount), end: new Uint32Array(spanCount) };
  for (let span = 0; span < spanCount; span += 1) {
    const place = next[ofKey[span]]++;
    found.begin[place] = spans.begin[span];
    found.end[place] = spans.end[span];
  }
  tree.byKey[group] = found;
  return found;
}
