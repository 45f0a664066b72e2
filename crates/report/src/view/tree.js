// Sites merged into a tree of calls. The tree itself is made once; a selection only changes its values.

/** `inverted`: begins at the innermost frames. */
function buildTree(data, inverted) {
  const { frames, stacks, sites } = data;
  const parent = [-1];
  const label = [0];
  const module = [0];
  const depth = [0];
  const known = new Map();
  const labels = data.strings.length + 1;
  const endOfStack = stacks.map((stack) => {
    let at = 0;
    const step = (name, moduleName) => {
      const key = at * labels + name;
      let next = known.get(key);
      if (next === undefined) {
        next = parent.length;
        known.set(key, next);
        parent.push(at);
        label.push(name);
        module.push(moduleName);
        depth.push(depth[at] + 1);
      }
      at = next;
    };
    // Number strings.length: no call stack.
    if (!stack.length) step(labels - 1, 0);
    const count = stack.length;
    for (let i = 0; i < count; i += 1) {
      const frame = stack[inverted ? i : count - 1 - i];
      step(frames.function[frame], frames.module[frame]);
    }
    return at;
  });
  const nodes = parent.length;
  const tree = {
    inverted,
    parent: Int32Array.from(parent),
    label: Uint32Array.from(label),
    module: Uint32Array.from(module),
    depth: Uint16Array.from(depth),
    leaf: Uint32Array.from(sites.stack, (stack) => endOfStack[stack]),
    starts: new Uint32Array(nodes + 1),
    children: new Uint32Array(Math.max(nodes - 1, 0)),
    values: new Float64Array(nodes),
  };
  for (let i = 1; i < nodes; i += 1) tree.starts[parent[i] + 1] += 1;
  for (let i = 0; i < nodes; i += 1) tree.starts[i + 1] += tree.starts[i];
  const next = tree.starts.slice();
  for (let i = 1; i < nodes; i += 1) tree.children[next[parent[i]]++] = i;
  return tree;
}

/** Sums the sites' values up to the root. */
function fillTree(tree, values) {
  const sums = tree.values.fill(0);
  for (let site = 0; site < values.length; site += 1) sums[tree.leaf[site]] += values[site];
  // A parent has a lower number than its children.
  for (let i = sums.length - 1; i > 0; i -= 1) sums[tree.parent[i]] += sums[i];
}

const labelText = (data, tree, node) => {
  if (node === 0) return "all";
  const text = data.strings[tree.label[node]];
  return text === undefined ? "(no call stack)" : text;
};

/** From a node to the root, the root left out. */
function pathOf(tree, node) {
  const path = [];
  for (let at = node; at > 0; at = tree.parent[at]) path.push(at);
  return path;
}

/** The sites below a node. */
function sitesBelow(tree, node) {
  const below = new Uint8Array(tree.parent.length);
  below[node] = 1;
  for (let i = node + 1; i < below.length; i += 1) below[i] = below[tree.parent[i]];
  const found = [];
  tree.leaf.forEach((leaf, site) => { if (below[leaf]) found.push(site); });
  return found;
}
