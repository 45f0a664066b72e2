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
  return { parent, label: children.label.slice(0, nodes), leaf, starts, children: ordered, outermost: {} };
}

/** What sites come to, by node: of those that end there, and of all below. */
function treeSums(tree, values) {
  const self = new Float64Array(tree.parent.length);
  for (let site = 0; site < values.length; site += 1) self[tree.leaf[site]] += values[site];
  const total = self.slice();
  // A parent has a lower number than its children.
  for (let i = total.length - 1; i > 0; i -= 1) total[tree.parent[i]] += total[i];
  return { self, total };
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
function sitesBelow(tree, nodes) {
  const below = new Uint8Array(tree.parent.length);
  for (const node of nodes) below[node] = 1;
  for (let i = 1; i < below.length; i += 1) if (below[tree.parent[i]]) below[i] = 1;
  const found = [];
  for (let site = 0; site < tree.leaf.length; site += 1) if (below[tree.leaf[site]]) found.push(site);
  return found;
}

/** The sites that end at any of some nodes. */
function sitesAt(tree, nodes) {
  const isEnd = new Uint8Array(tree.parent.length);
  for (const node of nodes) isEnd[node] = 1;
  const found = [];
  for (let site = 0; site < tree.leaf.length; site += 1) if (isEnd[tree.leaf[site]]) found.push(site);
  return found;
}
