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

/** Builds a tree whose nodes are numbered as they are met on the way down, so what is below a node follows it. */
class TreeBuilder {
  constructor(data, hidden) {
    const most = 2 * data.calls.parent.length + 2;
    Object.assign(this, { data, hidden, parent: new Int32Array(most), label: new Int32Array(most), count: 1 });
    this.parent[0] = -1;
    this.leaf = new Uint32Array(data.count);
    // By node of the calls: the node of the tree of the stacks that end there.
    this.merged = new Uint32Array(data.calls.parent.length);
    // By label: one more than its place among the calls of the node that is being made; else 0.
    this.places = new Uint32Array(data.labels.function.length);
    // Nodes of the calls whose own calls are still to be listed: those of a later node of the tree behind those of an earlier one.
    this.listed = new Int32Array(data.calls.parent.length + 1);
    this.found = new Int32Array(data.calls.parent.length + 1);
  }

  /** Adds the stacks of some sites below a node. */
  add(root, isMember) {
    const { data, hidden, leaf, merged, places, listed, found } = this;
    const { calls, sites, labelOf } = data;
    data.lastCalls ??= lastBelow(calls.parent);
    const last = data.lastCalls;
    const [isUsed, isEnd] = [new Uint8Array(calls.parent.length), new Uint8Array(calls.parent.length)];
    for (let site = 0; site < data.count; site += 1) if (isMember[site]) isEnd[sites.node[site]] = 1;
    for (let node = calls.parent.length - 1; node > 0; node -= 1) {
      if (isEnd[node] || isUsed[node]) isUsed[node] = isUsed[calls.parent[node]] = 1;
    }
    listed[0] = 0;
    // What is left to do: nodes of the tree by parent and label, and where their list begins; the last one is next.
    const pending = [{ parent: -1, label: 0, begin: 0 }];
    let end = 1;
    while (pending.length) {
      const { parent, label, begin } = pending.pop();
      const node = parent < 0 ? root : this.node(parent, label);
      let count = 0;
      // Calls of hidden functions are calls of this node.
      for (let i = begin; i < end; i += 1) {
        const call = listed[i];
        if (isAlone(call)) {
          merged[~call] = node;
          continue;
        }
        merged[call] = node;
        if (parent < 0 && isEnd[call] && (call === 0 || hidden[labelOf[calls.frame[call]]])) found[count++] = ~call;
        for (let next = call + 1; next < last[call]; next = last[next]) {
          if (!isUsed[next]) continue;
          if (!hidden[labelOf[calls.frame[next]]]) found[count++] = next;
          else listed[end++] = next;
        }
      }
      end = this.list(found, count, begin, node, pending, labelOf, calls.frame, places, listed);
    }
    for (let site = 0; site < data.count; site += 1) if (isMember[site]) leaf[site] = merged[sites.node[site]];
  }

  node(parent, label) {
    this.parent[this.count] = parent;
    this.label[this.count] = label;
    this.count += 1;
    return this.count - 1;
  }

  /** Puts what was found onto the list, that of each label together, and notes what is to be made of it; returns the end of the list. */
  list(found, count, begin, parent, pending, labelOf, frame, places, listed) {
    const labelAt = (call) => (isAlone(call) ? (call === ~0 ? 0 : labelOf[frame[~call]]) : labelOf[frame[call]]);
    if (count === 1) {
      listed[begin] = found[0];
      pending.push({ parent, label: labelAt(found[0]), begin });
      return begin + 1;
    }
    const groups = [];
    for (let i = 0; i < count; i += 1) {
      const label = labelAt(found[i]);
      if (!places[label]) places[label] = groups.push({ parent, label, begin: 0, count: 0 });
      groups[places[label] - 1].count += 1;
    }
    let end = begin;
    for (const group of groups) {
      group.begin = end;
      end += group.count;
      group.count = group.begin;
    }
    for (let i = 0; i < count; i += 1) listed[groups[places[labelAt(found[i])] - 1].count++] = found[i];
    for (const group of groups) {
      places[group.label] = 0;
      pending.push(group);
    }
    return end;
  }
}

/**
 * Stacks that were cut are below a frame of their own: their outermost frames are not where the program begins. By node,
 * `last` is the first node that is not below it; what a node calls begins behind it, and goes on behind the `last` of each.
 * The sites are in the `order` of their nodes, those of each beginning at its place in `starts`: those at or below a node
 * are together, so that sums and members of nodes need no walk over the tree.
 */
function buildTree(data, hidden) {
  const builder = new TreeBuilder(data, hidden);
  builder.add(0, data.cut.map((isCut) => (isCut ? 0 : 1)));
  if (data.cut.some(Boolean)) builder.add(builder.node(0, data.cutLabel), data.cut);
  const { count, leaf } = builder;
  const parent = builder.parent.slice(0, count);
  const starts = startsOf(countsOf(leaf, count));
  const next = starts.slice();
  const order = new Uint32Array(leaf.length);
  for (let site = 0; site < leaf.length; site += 1) order[next[leaf[site]]++] = site;
  return { parent, label: builder.label.slice(0, count), last: lastBelow(parent), leaf, starts, order, byKey: {} };
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
  const ofLabel = Int32Array.from(data.labels[group]);
  const keyOf = tree.label.map((label) => (label === data.cutLabel ? -1 : ofLabel[label]));
  const count = data.strings.length;
  // By key: how far the nodes are below the last one of it, and where the sites of that one end.
  const [until, endOf] = [new Uint32Array(count), new Int32Array(count)];
  const eachSpan = (visit) => {
    until.fill(0);
    endOf.fill(-1);
    for (let node = 1; node < keyOf.length; node += 1) {
      const key = keyOf[node];
      if (key < 0 || node < until[key]) continue;
      until[key] = tree.last[node];
      const [begin, end] = [tree.starts[node], tree.starts[tree.last[node]]];
      visit(key, begin, end, endOf[key] === begin);
      endOf[key] = end;
    }
  };
  const starts = new Uint32Array(count + 1);
  eachSpan((key, begin, end, goesOn) => { if (!goesOn) starts[key + 1] += 1; });
  for (let key = 0; key < count; key += 1) starts[key + 1] += starts[key];
  const found = { starts, begin: new Uint32Array(starts[count]), end: new Uint32Array(starts[count]) };
  const next = starts.slice();
  eachSpan((key, begin, end, goesOn) => {
    if (!goesOn) found.begin[next[key]++] = begin;
    found.end[next[key] - 1] = end;
  });
  tree.byKey[group] = found;
  return found;
}
