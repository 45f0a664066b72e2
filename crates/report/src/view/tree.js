// The calls merged by label, root above: what graphs and sums by function are made from. It is made once for a list of
// hidden functions; a selection only changes the sums.

/** Numbers of nodes by parent and label, in an open-addressing table: several times as fast as a Map. */
class Children {
  constructor(most) {
    this.size = 2 ** Math.ceil(Math.log2(2 * most + 4));
    this.nodes = new Int32Array(this.size);
    this.parent = new Int32Array(most + 2);
    this.label = new Int32Array(most + 2);
    this.parent[0] = -1;
    this.count = 1;
  }

  /** The child of a node with a label; it is added if there is none. */
  child(parent, label) {
    let at = (Math.imul(parent, 0x9e3779b1) ^ Math.imul(label, 0x85ebca6b)) >>> 0;
    for (at = (at ^ (at >>> 15)) & (this.size - 1); ; at = (at + 1) & (this.size - 1)) {
      const node = this.nodes[at];
      if (node === 0) {
        this.nodes[at] = this.count;
        this.parent[this.count] = parent;
        this.label[this.count] = label;
        this.count += 1;
        return this.count - 1;
      }
      if (this.parent[node] === parent && this.label[node] === label) return node;
    }
  }
}

/** Adds the stacks of some sites below a node of the tree, and tells where each of them ends. */
function mergeStacks(data, hidden, children, root, isMember, leaf) {
  const { calls, sites, labelOf } = data;
  const count = calls.parent.length;
  const isUsed = new Uint8Array(count);
  sites.node.forEach((node, site) => { if (isMember(site)) isUsed[node] = 1; });
  for (let node = count - 1; node > 0; node -= 1) if (isUsed[node]) isUsed[calls.parent[node]] = 1;
  const merged = new Int32Array(count).fill(root);
  for (let node = 1; node < count; node += 1) {
    if (!isUsed[node]) continue;
    const label = labelOf[calls.frame[node]];
    const parent = merged[calls.parent[node]];
    merged[node] = hidden[label] ? parent : children.child(parent, label);
  }
  sites.node.forEach((node, site) => {
    if (!isMember(site)) return;
    // A stack of hidden functions only is shown by its innermost; one without frames has label 0.
    leaf[site] = merged[node] === root ? children.child(root, node ? labelOf[calls.frame[node]] : 0) : merged[node];
  });
}

/** Stacks that were cut are below a frame of their own: their outermost frames are not where the program begins. */
function buildTree(data, hidden) {
  const children = new Children(2 * data.calls.parent.length + 2);
  const leaf = new Int32Array(data.count);
  mergeStacks(data, hidden, children, 0, (site) => !data.cut[site], leaf);
  if (data.cut.some(Boolean)) {
    mergeStacks(data, hidden, children, children.child(0, data.cutLabel), (site) => data.cut[site], leaf);
  }
  const nodes = children.count;
  const parent = children.parent.slice(0, nodes);
  const starts = new Uint32Array(nodes + 1);
  for (let i = 1; i < nodes; i += 1) starts[parent[i] + 1] += 1;
  for (let i = 0; i < nodes; i += 1) starts[i + 1] += starts[i];
  const next = starts.slice();
  const ordered = new Uint32Array(Math.max(nodes - 1, 0));
  for (let i = 1; i < nodes; i += 1) ordered[next[parent[i]]++] = i;
  return { parent, label: children.label.slice(0, nodes), leaf, starts, children: ordered, outermost: {}, byKey: {} };
}

/**
 * The sites in an order in which those at or below each node are together, from `begin` to `end`, the node's own first, up
 * to `ownEnd`. Sums and members of nodes need no walk over the tree then.
 */
function spansOf(tree) {
  if (tree.spans) return tree.spans;
  const { parent, leaf } = tree;
  const count = new Uint32Array(parent.length);
  for (const node of leaf) count[node] += 1;
  const ownEnd = count.slice();
  // A parent has a lower number than its children.
  for (let i = count.length - 1; i > 0; i -= 1) count[parent[i]] += count[i];
  const begin = new Uint32Array(parent.length);
  const next = ownEnd.slice();
  for (let i = 1; i < count.length; i += 1) {
    const at = next[parent[i]];
    next[parent[i]] = at + count[i];
    begin[i] = at;
    ownEnd[i] += at;
    next[i] = ownEnd[i];
  }
  const order = new Uint32Array(leaf.length);
  const at = begin.slice();
  for (let site = 0; site < leaf.length; site += 1) order[at[leaf[site]]++] = site;
  const end = count;
  for (let i = 0; i < end.length; i += 1) end[i] += begin[i];
  tree.spans = { begin, end, ownEnd, order };
  return tree.spans;
}

/** What the values of some sites come to: by a node, of those at or below it, or of those that end there. */
class TreeSums {
  constructor(tree, values) {
    this.spans = spansOf(tree);
    const { order } = this.spans;
    // Amounts are whole numbers, so differences of running sums are exact.
    this.before = new Float64Array(order.length + 1);
    let sum = 0;
    for (let k = 0; k < order.length; k += 1) {
      sum += values[order[k]];
      this.before[k + 1] = sum;
    }
  }

  total(node) { return this.before[this.spans.end[node]] - this.before[this.spans.begin[node]]; }

  self(node) { return this.before[this.spans.ownEnd[node]] - this.before[this.spans.begin[node]]; }
}

const labelText = (data, label) => (label ? data.strings[data.labels.function[label]] : "(no call stack)");

/** By node: 1 if no node above it has its function or module. Sums over these count recursive calls once. */
function outermost(data, tree, column) {
  if (tree.outermost[column]) return tree.outermost[column];
  const keys = data.labels[column];
  const above = new Uint32Array(data.strings.length);
  const found = new Uint8Array(tree.parent.length);
  // Down to the children, and back up: a node that is met again, complemented, has been left.
  const pending = [0];
  while (pending.length) {
    const node = pending.pop();
    if (node < 0) {
      above[keys[tree.label[~node]]] -= 1;
      continue;
    }
    if (node) {
      const key = keys[tree.label[node]];
      if (!above[key]) found[node] = 1;
      above[key] += 1;
      pending.push(~node);
    }
    for (let i = tree.starts[node]; i < tree.starts[node + 1]; i += 1) pending.push(tree.children[i]);
  }
  tree.outermost[column] = found;
  return found;
}

/** The sites that end at or below any of some nodes. */
const sitesBelow = (tree, nodes) => sitesWithin(tree, nodes, spansOf(tree).end);

/** The sites that end at any of some nodes. */
const sitesAt = (tree, nodes) => sitesWithin(tree, nodes, spansOf(tree).ownEnd);

function sitesWithin(tree, nodes, ends) {
  const { begin } = spansOf(tree);
  return sitesOfSpans(tree, nodes.length, (i) => begin[nodes[i]], (i) => ends[nodes[i]]);
}

/** The sites of some spans, each once, in the order of the run. */
function sitesOfSpans(tree, count, beginOf, endOf) {
  const { order } = spansOf(tree);
  const isFound = new Uint8Array(order.length);
  for (let i = 0; i < count; i += 1) {
    const end = endOf(i);
    for (let k = beginOf(i); k < end; k += 1) isFound[order[k]] = 1;
  }
  const found = [];
  for (let site = 0; site < isFound.length; site += 1) if (isFound[site]) found.push(site);
  return found;
}

/**
 * By function or module: the spans of the sites that have it on their stacks, each site once. Those of a key are together,
 * from `starts` on, in order; neighbours are one.
 */
function spansByKey(data, tree, group) {
  const known = tree.byKey[group];
  if (known) return known;
  const { begin, end, order } = spansOf(tree);
  const isOutermost = outermost(data, tree, group);
  const keys = data.labels[group];
  const isCounted = (node) => isOutermost[node] && tree.label[node] !== data.cutLabel;
  // Nodes by where their spans begin.
  const firsts = new Uint32Array(order.length + 1);
  for (let node = 1; node < begin.length; node += 1) if (isCounted(node)) firsts[begin[node] + 1] += 1;
  for (let k = 0; k < order.length; k += 1) firsts[k + 1] += firsts[k];
  const nodes = new Uint32Array(firsts[order.length]);
  for (let node = 1; node < begin.length; node += 1) if (isCounted(node)) nodes[firsts[begin[node]]++] = node;
  const starts = new Uint32Array(data.strings.length + 1);
  const last = new Int32Array(data.strings.length).fill(-1);
  for (const node of nodes) {
    const key = keys[tree.label[node]];
    if (last[key] !== begin[node]) starts[key + 1] += 1;
    last[key] = end[node];
  }
  for (let key = 0; key < last.length; key += 1) starts[key + 1] += starts[key];
  const found = { starts, begin: new Uint32Array(starts[last.length]), end: new Uint32Array(starts[last.length]) };
  const next = starts.slice();
  last.fill(-1);
  for (const node of nodes) {
    const key = keys[tree.label[node]];
    if (last[key] !== begin[node]) found.begin[next[key]++] = begin[node];
    last[key] = end[node];
    found.end[next[key] - 1] = end[node];
  }
  tree.byKey[group] = found;
  return found;
}
