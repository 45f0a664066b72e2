// Frames of graphs, which are made when they are needed: of a million, a few thousand are wide enough to be drawn.

/** What the sites come to in some values, by node of the tree of a graph. Frames add up those of their nodes. */
function nodeSums(graph, values) {
  graph.known ??= new Map();
  if (!graph.known.has(values)) {
    graph.known.set(values, new TreeSums(graph.tree, values));
  }
  return graph.known.get(values);
}

/** Numbers by label, kept from one frame to the next: 0 but while children are counted. */
const labelNumbers = (tree) => (tree.labelNumbers ??= new Uint32Array(tree.labelCount));

/** Places of a list of nodes, those of each label together: [label, places], by first place. */
function byLabel(tree, nodes, count) {
  const numbers = labelNumbers(tree);
  const labels = [];
  const counts = [];
  for (let i = 0; i < count; i += 1) {
    const label = tree.label[nodes[i]];
    if (!numbers[label]) {
      numbers[label] = labels.push(label);
      counts.push(0);
    }
    counts[numbers[label] - 1] += 1;
  }
  const places = counts.map((of) => new Uint32Array(of));
  counts.fill(0);
  for (let i = 0; i < count; i += 1) {
    const number = numbers[tree.label[nodes[i]]] - 1;
    places[number][counts[number]++] = i;
  }
  for (const label of labels) numbers[label] = 0;
  return labels.map((label, number) => [label, places[number]]);
}

/** A frame whose children are called by it: nodes of the tree with the same way to them. */
class CalleeFrame {
  constructor(graph, label, nodes, parent) {
    Object.assign(this, { graph, label, nodes, parent, depth: parent ? parent.depth + 1 : 0 });
    this.value = 0;
    for (const node of nodes) this.value += graph.sums.total(node);
  }

  get children() {
    if (this.made) return this.made;
    const { tree, sums } = this.graph;
    const found = [];
    for (const node of this.nodes) {
      for (let child = node + 1; child < tree.last[node]; child = tree.last[child]) if (sums.total(child) > 0) found.push(child);
    }
    this.made = byLabel(tree, found, found.length).map(([label, places]) => new CalleeFrame(this.graph, label, places.map((i) => found[i]), this)).sort(byValue);
    return this.made;
  }

  get sites() { return sitesBelow(this.graph.tree, this.nodes); }

  /** What the sites below come to in other values than those of the graph. */
  sum(values) {
    const sums = nodeSums(this.graph, values);
    let sum = 0;
    for (const node of this.nodes) sum += sums.total(node);
    return sum;
  }
}

/**
 * A frame whose children are its callers. It is a list of nodes of the tree, `at`, and of those at which the way to each
 * began, `origins`.
 */
class CallerFrame {
  constructor(graph, label, origins, at, parent) {
    Object.assign(this, { graph, label, origins, at, parent, depth: parent ? parent.depth + 1 : 0 });
    this.value = 0;
    for (let i = 0; i < origins.length; i += 1) this.value += graph.weights[origins[i]];
  }

  get children() {
    if (this.made) return this.made;
    const { tree } = this.graph;
    const { at, origins } = this;
    const next = new Uint32Array(at.length);
    const from = new Uint32Array(at.length);
    let count = 0;
    for (let i = 0; i < at.length; i += 1) {
      // The root of all begins with the innermost frames themselves.
      const caller = this.parent || !this.graph.endsAtOrigin ? tree.parent[at[i]] : at[i];
      if (caller <= 0) continue;
      next[count] = caller;
      from[count++] = origins[i];
    }
    const child = ([label, places]) => new CallerFrame(this.graph, label, places.map((i) => from[i]), places.map((i) => next[i]), this);
    this.made = byLabel(tree, next, count).map(child).sort(byValue);
    return this.made;
  }

  get sites() {
    const { tree, endsAtOrigin } = this.graph;
    const { origins } = this;
    return endsAtOrigin ? sitesAt(tree, origins) : sitesBelow(tree, origins);
  }

  sum(values) {
    const sums = nodeSums(this.graph, values);
    let sum = 0;
    const { endsAtOrigin } = this.graph;
    for (const origin of this.origins) sum += endsAtOrigin ? sums.self(origin) : sums.total(origin);
    return sum;
  }
}

const byValue = (a, b) => b.value - a.value || a.label - b.label;

/** All calls, root first. */
function calleeGraph(tree, values) {
  const sums = new TreeSums(tree, values);
  return new CalleeFrame({ tree, sums }, -1, [0], null);
}

/** All calls, innermost frames first. */
function callerGraph(tree, values) {
  const self = new Float64Array(tree.parent.length);
  for (let site = 0; site < values.length; site += 1) self[tree.leaf[site]] += values[site];
  const origins = new Uint32Array(self.length);
  let count = 0;
  for (let origin = 1; origin < self.length; origin += 1) if (self[origin] > 0) origins[count++] = origin;
  const used = origins.slice(0, count);
  return new CallerFrame({ tree, weights: self, endsAtOrigin: true }, -1, used, used, null);
}

/** One function: what it calls, and what calls it. Where it calls itself, the outermost call counts. */
function sandwichGraphs(data, tree, values, name) {
  const sums = new TreeSums(tree, values);
  const isOfName = Uint8Array.from(data.labels.function, (one) => (one === name ? 1 : 0));
  const found = [];
  let label = -1;
  for (let node = 1; node < tree.parent.length; node += 1) {
    if (!isOfName[tree.label[node]]) continue;
    label = tree.label[node];
    if (sums.total(node) > 0) found.push(node);
    // What it calls itself counts once.
    node = tree.last[node] - 1;
  }
  const nodes = Uint32Array.from(found);
  const weights = new Float64Array(tree.parent.length);
  for (const node of nodes) weights[node] = sums.total(node);
  return {
    callees: new CalleeFrame({ tree, sums }, label, nodes, null),
    callers: new CallerFrame({ tree, weights, endsAtOrigin: false }, label, nodes, nodes, null),
  };
}

/** The labels from a graph's root to a frame, without the root's: what the frame is found by again. */
function pathTo(frame) {
  const path = [];
  for (let at = frame; at.parent; at = at.parent) path.unshift(at.label);
  return path;
}

/** The frame at the end of a path, or the last one on the way that is still shown. */
function frameAt(root, path) {
  let frame = root;
  for (const label of path) {
    const next = frame.children.find((child) => child.label === label);
    if (!next) break;
    frame = next;
  }
  return frame;
}
