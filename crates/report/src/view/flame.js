// The tree as a picture: flame graph (root below), icicle (root above), or inverted (callers of allocations).

const SHAPES = [["flame", "Flame"], ["icicle", "Icicle"], ["inverted", "Callers"]];
const ROW = 20;

class FlameView {
  constructor(data, onPick) {
    this.data = data;
    this.onPick = onPick;
    this.canvas = byId("flame");
    this.box = byId("flames");
    this.shape = "flame";
    this.trees = {};
    this.root = 0;
    this.picked = -1;
    this.drawn = [];
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => { byId("tip").hidden = true; });
    this.canvas.addEventListener("click", (event) => {
      const hit = this.at(event);
      if (hit) this.zoom(hit.node);
    });
  }

  get tree() {
    const inverted = this.shape === "inverted";
    this.trees[inverted] ||= buildTree(this.data, inverted);
    return this.trees[inverted];
  }

  setShape(shape) {
    // Flame and icicle are the same tree; the zoom stays.
    if ((shape === "inverted") !== (this.shape === "inverted")) this.root = 0;
    this.picked = -1;
    this.shape = shape;
  }

  show(selection, result) {
    this.selection = selection;
    this.result = result;
    fillTree(this.tree, result.positive);
    this.draw();
  }

  /** What a node comes to, and its share of all. */
  amountText(node) {
    const { tree, data, selection, result } = this;
    const value = tree.values[node];
    const share = formatShare(value, tree.values[0]);
    if (selection.unit === "blocks") return `${formatCount(value)}, ${share}`;
    const sites = data.is_sampled ? sitesBelow(tree, node) : [];
    const variance = sites.reduce((sum, site) => sum + result.variance[site], 0);
    return `${withError(value, variance)}, ${share}`;
  }

  zoom(node) {
    this.root = node === this.root && node ? this.tree.parent[node] : node;
    this.picked = node;
    this.draw();
    this.onPick(node);
  }

  /** A hue for each module, in the order in which they appear; the target's own is the warm one. */
  hue(module) {
    const hues = [24, 205, 45, 160, 265, 340, 95, 185];
    const rank = this.data.modules.indexOf(module);
    return rank < 0 ? 30 : hues[rank % hues.length];
  }

  color(node) {
    if (node === 0) return css("--root");
    const text = labelText(this.data, this.tree, node);
    let hash = 0;
    for (let i = 0; i < text.length; i += 1) hash = (hash * 31 + text.charCodeAt(i)) | 0;
    const hue = this.hue(this.tree.module[node]);
    const isDark = document.documentElement.dataset.theme === "dark";
    const light = (isDark ? 36 : 70) + (Math.abs(hash) % 9);
    return `hsl(${hue} ${isDark ? 42 : 62}% ${light}%)`;
  }

  layout(width) {
    const { tree, root } = this;
    const drawn = [];
    const levels = pathOf(tree, root).length;
    // The way to the zoomed node, then what is below it.
    const above = root ? [...pathOf(tree, root).slice(1), 0].reverse() : [];
    above.forEach((node, depth) => drawn.push({ node, depth, x: 0, width, outer: true }));
    const total = tree.values[root];
    const pending = [{ node: root, depth: levels, x: 0, width }];
    while (pending.length) {
      const frame = pending.pop();
      drawn.push(frame);
      const children = [...tree.children.subarray(tree.starts[frame.node], tree.starts[frame.node + 1])]
        .filter((child) => tree.values[child] > 0)
        .sort((a, b) => tree.values[b] - tree.values[a] || a - b);
      let x = frame.x;
      for (const child of children) {
        const wide = total > 0 ? (tree.values[child] / total) * width : 0;
        if (wide >= 0.4) pending.push({ node: child, depth: frame.depth + 1, x, width: wide });
        x += wide;
      }
    }
    return drawn;
  }

  draw() {
    const width = this.box.clientWidth - 1;
    this.drawn = this.layout(width);
    const depths = this.drawn.reduce((most, frame) => Math.max(most, frame.depth), 0) + 1;
    const height = Math.max(depths * ROW + 4, this.box.clientHeight - 2);
    const context = paper(this.canvas, width, height);
    const grows = this.shape === "flame";
    context.font = `12px ${css("--mono")}`;
    context.textBaseline = "middle";
    const advance = context.measureText("x").width;
    const ink = css("--text");
    for (const frame of this.drawn) {
      frame.y = grows ? height - (frame.depth + 1) * ROW - 2 : frame.depth * ROW + 2;
      context.globalAlpha = frame.outer ? 0.5 : 1;
      context.fillStyle = this.color(frame.node);
      context.fillRect(frame.x, frame.y, Math.max(frame.width - 0.6, 0.4), ROW - 1);
      if (frame.node === this.picked && frame.node) {
        context.strokeStyle = css("--pick");
        context.lineWidth = 2;
        context.strokeRect(frame.x + 1, frame.y + 1, Math.max(frame.width - 2.6, 1), ROW - 3);
      }
      const room = Math.floor((frame.width - 8) / advance);
      if (room >= 3) {
        const text = labelText(this.data, this.tree, frame.node);
        context.fillStyle = ink;
        context.fillText(text.length <= room ? text : text.slice(0, room - 1) + "\u2026", frame.x + 4, frame.y + ROW / 2);
      }
    }
    context.globalAlpha = 1;
    // The root is where one looks first.
    if (grows && this.height !== height) this.box.scrollTop = this.box.scrollHeight;
    this.height = height;
    byId("shown").textContent = this.tree.values[0] > 0 ? this.amountText(this.root) : "nothing here";
    byId("path").textContent = this.root ? labelText(this.data, this.tree, this.root) : "";
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return this.drawn.find((f) => x >= f.x && x < f.x + f.width && y >= f.y && y < f.y + ROW);
  }

  hover(event) {
    const tip = byId("tip");
    const hit = this.at(event);
    tip.hidden = !hit;
    if (!hit) return;
    const { tree, data } = this;
    const module = data.strings[tree.module[hit.node]] || "";
    tip.replaceChildren(
      make("b", "", labelText(data, tree, hit.node)),
      make("span", "", `${this.amountText(hit.node)}${module ? `, ${module}` : ""}`),
    );
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)}px`;
  }
}
