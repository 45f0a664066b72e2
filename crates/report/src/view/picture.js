// Frames of graphs, which are made when they are needed: of a million, a few thousand are wide enough to be drawn.

/** What the sites come to in some values, by node of the tree of a graph. Frames add up those of their nodes. */
function nodeSums(graph, values) {
  graph.known ??= new Map();
  if (!graph.known.has(values)) {
    graph.known.set(values, new TreeSums(graph.tree, values));
  }
  return graph.known.get(values);
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
    const byLabel = new Map();
    for (const node of this.nodes) {
      for (let i = tree.starts[node]; i < tree.starts[node + 1]; i += 1) {
        const child = tree.children[i];
        if (!(sums.total(child) > 0)) continue;
        const label = tree.label[child];
        if (byLabel.has(label)) byLabel.get(label).push(child); else byLabel.set(label, [child]);
      }
    }
    this.made = [...byLabel].map(([label, nodes]) => new CalleeFrame(this.graph, label, nodes, this)).sort(byValue);
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

/** A frame whose children are its callers. An entry is a node of the tree and the node at which the path to it began. */
class CallerFrame {
  constructor(graph, label, entries, parent) {
    Object.assign(this, { graph, label, entries, parent, depth: parent ? parent.depth + 1 : 0 });
    this.value = 0;
    for (const { origin } of entries) this.value += graph.weight(origin);
  }

  get children() {
    if (this.made) return this.made;
    const { tree } = this.graph;
    const byLabel = new Map();
    for (const { origin, at } of this.entries) {
      // The root of all begins with the innermost frames themselves.
      const next = at < 0 ? origin : tree.parent[at];
      if (next <= 0) continue;
      const label = tree.label[next];
      const entry = { origin, at: next };
      if (byLabel.has(label)) byLabel.get(label).push(entry); else byLabel.set(label, [entry]);
    }
    this.made = [...byLabel].map(([label, entries]) => new CallerFrame(this.graph, label, entries, this)).sort(byValue);
    return this.made;
  }

  get sites() {
    const { tree, endsAtOrigin } = this.graph;
    const origins = this.entries.map(({ origin }) => origin);
    return endsAtOrigin ? sitesAt(tree, origins) : sitesBelow(tree, origins);
  }

  sum(values) {
    const sums = nodeSums(this.graph, values);
    let sum = 0;
    const { endsAtOrigin } = this.graph;
    for (const { origin } of this.entries) sum += endsAtOrigin ? sums.self(origin) : sums.total(origin);
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
  const entries = [];
  for (let origin = 1; origin < self.length; origin += 1) if (self[origin] > 0) entries.push({ origin, at: -1 });
  return new CallerFrame({ tree, weight: (origin) => self[origin], endsAtOrigin: true }, -1, entries, null);
}

/** One function: what it calls, and what calls it. Where it calls itself, the outermost call counts. */
function sandwichGraphs(data, tree, values, name) {
  const sums = new TreeSums(tree, values);
  const isOutermost = outermost(data, tree, "function");
  const nodes = [];
  let label = -1;
  for (let node = 1; node < tree.parent.length; node += 1) {
    if (data.labels.function[tree.label[node]] !== name) continue;
    label = tree.label[node];
    if (isOutermost[node] && sums.total(node) > 0) nodes.push(node);
  }
  const entries = nodes.map((node) => ({ origin: node, at: node }));
  return {
    callees: new CalleeFrame({ tree, sums }, label, nodes, null),
    callers: new CallerFrame({ tree, weight: (origin) => sums.total(origin), endsAtOrigin: false }, label, entries, null),
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
