// The calls as a picture: flame graph (root below), icicle (root above), callers (innermost frames above), or sandwich
// (one function between what calls it and what it calls).

const SHAPES = [["flame", "Flame"], ["icicle", "Icicle"], ["callers", "Callers"], ["sandwich", "Sandwich"], ["chunks", "Chunks"], ["space", "Addresses"]];
/** Whether a shape is made of frames. */
const hasFrames = (shape) => shape !== "chunks" && shape !== "space";
/** Recordings of sums and of samples do not tell everything. */
const hasShape = (data, shape) => (shape === "chunks" ? Boolean(data.scores) : shape !== "space" || data.space.moments.length > 0);
/** Whether the outermost frames of a shape may be one row: in a sandwich they are callers. */
const hasRoot = (shape) => shape === "flame" || shape === "icicle";
const ROW = 20;
/** Rows of frames for which there is room at least. */
const LEAST_ROWS = 6;
/** Narrower frames are not drawn, in pixels. */
const NARROWEST = 0.4;

/** Of a frame that has at least this part of what its caller has, the caller tells nothing. */
const COMMON = 0.99;

/** A root is common if this part of everything is below it. */
const MOST_OF_ALL = 0.5;
/** Frames that are too narrow to be drawn are one place together if that is at least so wide, in pixels. */
const LEAST_REST = 3;

/** The innermost of the frames below one that nearly everything below it has. The last one of a stack is always shown. */
function endOfRoot(frame) {
  let at = frame;
  // Children are in order, the largest first.
  while (at.children[0]?.value >= at.value * COMMON && at.children[0].children.length) [at] = at.children;
  return at;
}

/** The height that the graph needs with its head and legend; all that it may have if that is not known. */
function setGraphHeight(height) {
  const { style } = byId("graph").parentElement;
  if (style.getPropertyValue("--graph-height") !== height) style.setProperty("--graph-height", height);
}

class FlameView {
  constructor(app) {
    this.app = app;
    this.canvas = byId("flame");
    this.box = byId("flames");
    this.drawn = [];
    this.rests = [];
    this.cursor = null;
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", hideTip);
    this.canvas.addEventListener("click", (event) => {
      const hit = this.at(event);
      if (hit) this.open(hit.frame);
    });
    this.canvas.addEventListener("keydown", (event) => walk(this, event));
    this.canvas.addEventListener("focus", () => this.draw());
    this.canvas.addEventListener("blur", () => this.draw());
  }

  /** Makes the graph of what is selected. */
  show() {
    const { app } = this;
    const { state, result, tree, data } = app;
    this.root = null;
    this.callers = null;
    if (!hasFrames(state.shape)) {
      setGraphHeight("");
      return;
    }
    if (state.shape !== "sandwich") {
      const isCallers = state.shape === "callers";
      this.root = app.kept("graph", [result, tree, isCallers], () => (isCallers ? callerGraph : calleeGraph)(tree, result.positive));
      this.top = frameAt(this.root, state.zoom);
    } else if (state.center) {
      const { callees, callers } = sandwichGraphs(data, tree, result.positive, state.center);
      [this.root, this.top, this.callers] = [callees, callees, callers];
    }
    this.cursor = null;
    const isNewShape = this.shape !== state.shape;
    this.shape = state.shape;
    if (isNewShape) this.drawnHeights = "";
    this.draw();
    // The root is where one looks first: a flame graph's is below, which drawing it has seen to.
    if (isNewShape && state.shape !== "flame") this.box.scrollTop = 0;
    this.showCenter();
  }

  /** Zooms to a frame, or out of it if it is zoomed to; in a sandwich its function becomes the one in the middle. */
  open(frame) {
    const { app } = this;
    if (app.state.shape === "sandwich") {
      if (frame.label > 0) app.setCenter(app.data.labels.function[frame.label]);
      return;
    }
    const zoomed = frame === this.top && frame.parent ? frame.parent : frame;
    app.zoomTo(pathTo(zoomed), pathTo(frame));
  }

  /** The name, and the number of further callers that the row stands for. */
  placeText({ frame, folded }) {
    return folded ? `${isolated(this.text(frame))}  \u2190 ${counted(folded, "caller")}` : this.text(frame);
  }

  text(frame) {
    return frame.label < 0 ? "all" : labelText(this.app.data, frame.label);
  }

  /** What a frame comes to, and its share of everything. */
  amountText(frame) {
    const { data, state, result } = this.app;
    if (data.compared) return changeText(frameNewAndOld(frame, result.byRun), state.unit);
    const share = formatShare(frame.value, result.whole[state.unit]);
    const shareText = share && `, ${share} ${wholeText(state)}`;
    if (isCustom(state.measure)) return `${formatValue(frame.value)}${shareText}`;
    if (state.unit === "blocks") return `${counted(frame.value, "block")}${shareText}`;
    return `${withError(frame.value, data.is_sampled ? frame.sum(result.shown.variance) : 0)}${shareText}`;
  }

  /** Frames with their places: `row` counts away from the root. */
  layout(width) {
    this.rests = [];
    if (!this.root) return [];
    const drawn = [];
    const { state } = this.app;
    const folds = hasRoot(state.shape) && !state.isWholeRoot && this.top === this.root;
    for (let at = this.top.parent; at; at = at.parent) drawn.push({ frame: at, row: at.depth, x: 0, width, isOuter: true });
    const put = (root, sign) => {
      const pending = [{ frame: root, row: sign * root.depth, x: 0, width, isOuter: false }];
      while (pending.length) {
        const place = pending.pop();
        drawn.push(place);
        let x = place.x;
        const { children } = place.frame;
        for (const [at, child] of children.entries()) {
          const wide = root.value > 0 ? (child.value / root.value) * width : 0;
          if (wide < NARROWEST) {
            this.rest(children.slice(at), { row: place.row + sign, x, scale: width / root.value });
            break;
          }
          const isRoot = folds && place.frame === root && child.value >= root.value * MOST_OF_ALL;
          const inner = isRoot ? endOfRoot(child) : child;
          const folded = inner.depth - child.depth;
          const own = folded ? (inner.value / root.value) * width : wide;
          pending.push({ frame: inner, row: place.row + sign, x, width: own, isOuter: false, folded });
          x += wide;
        }
      }
    };
    put(this.top, 1);
    if (this.callers) {
      // The function itself is drawn once.
      const before = drawn.length;
      put(this.callers, -1);
      drawn.splice(before, 1);
    }
    return drawn;
  }

  /** The place of frames that are too narrow: together they may be most of a row. */
  rest(frames, { row, x, scale }) {
    const value = frames.reduce((sum, frame) => sum + frame.value, 0);
    const width = value * scale;
    if (width >= LEAST_REST) this.rests.push({ row, x, width, value, count: frames.length });
  }

  restText({ count }) { return `${counted(count, "function")}, each too narrow to be drawn`; }

  draw() {
    const { state } = this.app;
    if (!hasFrames(state.shape)) return;
    // The caption may take another line, and room from the picture.
    this.caption();
    const width = Math.max(this.box.clientWidth - 1, 1);
    this.drawn = this.layout(width);
    const places = [...this.drawn, ...this.rests];
    let [least, most] = [0, 0];
    for (const { row } of places) {
      least = Math.min(least, row);
      most = Math.max(most, row);
    }
    this.fit(most - least + 1);
    const height = Math.max((most - least + 1) * ROW + 4, this.box.clientHeight - 2);
    const isFlame = state.shape === "flame";
    for (const place of places) place.y = isFlame ? height - (place.row + 1) * ROW - 2 : (place.row - least) * ROW + 2;
    const context = paper(this.canvas, width, height);
    context.font = `12px ${css("--mono")}`;
    context.textBaseline = "middle";
    const advance = context.measureText("x").width;
    for (const place of this.rests) this.drawRest(context, place, advance);
    for (const place of this.drawn) this.drawFrame(context, place, advance);
    this.drawMarks(context);
    const heights = `${height} ${this.box.clientHeight}`;
    if (isFlame && this.drawnHeights !== heights) this.box.scrollTop = this.box.scrollHeight;
    this.drawnHeights = heights;
  }

  /**
   * Gives the box the height of its graph, up to a limit that the style sheet has: what a shallow one leaves is the table's.
   * While one zooms, the box only grows, so that nothing moves away from the mouse.
   */
  fit(rows) {
    if (this.fitted?.root !== this.root) this.fitted = { root: this.root, rows: LEAST_ROWS };
    this.fitted.rows = Math.max(this.fitted.rows, rows);
    const around = byId("graph").offsetHeight - this.box.clientHeight;
    setGraphHeight(this.root ? `${this.fitted.rows * ROW + 6 + around}px` : "");
  }

  /** Scrolls to the function between its callers and its callees. */
  showCenter() {
    const place = this.drawn.find(({ frame }) => frame === this.top);
    if (place && this.callers) this.box.scrollTop = place.y - this.box.clientHeight / 2 + ROW;
  }

  drawRest(context, place, advance) {
    const { x, y, width } = place;
    context.globalAlpha = 0.25;
    context.fillStyle = css("--module-other");
    context.fillRect(x, y, width, ROW - 1);
    context.globalAlpha = 1;
    context.fillStyle = css("--faint");
    if (width >= advance * 12) context.fillText(paintedName(context, this.restText(place), width - 8, advance), x + 4, y + ROW / 2);
  }

  drawFrame(context, place, advance) {
    const { frame, x, y, width, isOuter } = place;
    const { data, result } = this.app;
    const { search } = result;
    const isMatch = search && frame.label > 0 && search.byLabel[frame.label];
    // Neighbours of one module differ a little.
    const isSolid = this.app.state.paint !== "module";
    context.globalAlpha = isOuter || (search && !isMatch) ? 0.4 : isSolid ? 1 : 0.84 + 0.08 * (frame.label % 3);
    context.fillStyle = css(this.colorOf(frame));
    context.fillRect(x, y, Math.max(width - 0.6, NARROWEST), ROW - 1);
    if (isMatch) {
      context.fillStyle = css("--hit");
      context.fillRect(x, y, Math.max(width - 0.6, 1), 3);
    }
    if (width - 8 < 3 * advance) return;
    context.globalAlpha = isOuter ? 0.7 : 1;
    context.fillStyle = css("--text");
    context.fillText(paintedName(context, this.placeText(place), width - 8, advance), x + 4, y + ROW / 2);
  }

  /** The variable that a frame is coloured with. */
  colorOf(frame) {
    const { data, state, result } = this.app;
    if (frame.label < 0) return "--root";
    if (state.paint === "change") {
      frame.change ??= changeStep(frameNewAndOld(frame, result.byRun));
      return `--change-${frame.change}`;
    }
    if (state.paint === "module") return moduleColor(data, data.labels.module[frame.label]);
    frame.severities ??= {};
    frame.severities[state.paint] ??= severityOfFrame(frame, severitiesOf(data, result, state.paint));
    return severityColor(frame.severities[state.paint]);
  }

  drawMarks(context) {
    const { state } = this.app;
    context.globalAlpha = 1;
    const outline = ({ x, y, width }, color, thick) => {
      context.strokeStyle = css(color);
      context.lineWidth = thick;
      context.strokeRect(x + thick / 2, y + thick / 2, Math.max(width - thick - 0.6, 1), ROW - 1 - thick);
    };
    for (const place of this.ofPickedRow()) outline(place, "--pick", 2);
    if (state.pick?.kind === "frame" && this.root) {
      const picked = frameAt(this.root, state.pick.path);
      const place = this.drawn.find(({ frame }) => frame === picked);
      if (place && picked.parent && pathTo(picked).length === state.pick.path.length) outline(place, "--pick", 2);
    }
    const center = this.callers && this.drawn.find(({ frame }) => frame === this.top);
    if (center) outline(center, "--pick", 2);
    if (document.activeElement === this.canvas && this.drawn.length) outline(this.cursorPlace(), "--text", 3);
  }

  /** Frames of the row that is picked: the stack of a site, the calls of a function. */
  ofPickedRow() {
    const { data, state, tree } = this.app;
    if (state.pick?.kind !== "row" || !this.root || state.shape === "sandwich") return [];
    const { key } = state.pick;
    if (state.group === "function") {
      return this.drawn.filter(({ frame }) => frame.label > 0 && data.labels.function[frame.label] === key);
    }
    if (state.group !== "site") return [];
    const path = [];
    const site = data.sites.node.indexOf(key);
    for (let at = site < 0 ? 0 : tree.leaf[site]; at > 0; at = tree.parent[at]) path.push(tree.label[at]);
    if (state.shape !== "callers") path.reverse();
    const frames = new Set();
    for (let at = frameAt(this.root, path); at.parent; at = at.parent) frames.add(at);
    return this.drawn.filter(({ frame }) => frames.has(frame));
  }

  /** Where the keyboard is: the frame that it was moved to, else the one that is zoomed to. */
  cursorPlace() {
    return this.drawn.find(({ frame }) => frame === this.cursor) || this.drawn.find(({ frame }) => frame === this.top) || this.drawn[0];
  }

  caption() {
    const { data, state } = this.app;
    const isEmpty = !this.root || !(this.root.value > 0);
    byId("shown").textContent = byId("shown").title = isEmpty ? "nothing here" : this.amountText(this.top);
    byId("path").textContent = this.root && this.top !== this.root ? this.text(this.top)
      : state.shape === "sandwich" && state.center ? data.strings[state.center] : "";
  }

  at(event, places = this.drawn) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return places.find((f) => x >= f.x && x < f.x + Math.max(f.width, 1) && y >= f.y && y < f.y + ROW);
  }

  hover(event) {
    const hit = this.at(event);
    if (!hit) {
      const rest = this.at(event, this.rests);
      return rest ? showTip(event, this.restText(rest), formatShown(rest.value, this.app.state), "The table has each of them") : hideTip();
    }
    return showTip(event, this.placeText(hit), ...this.about(hit.frame));
  }

  about(frame) {
    const { data, state, result } = this.app;
    const module = frame.label > 0 ? data.strings[data.labels.module[frame.label]] : "";
    const ofTop = this.top.value < result.whole[state.unit] ? `${formatShare(frame.value, this.top.value)} of ${this.text(this.top)}` : "";
    const scored = frame.sites?.length === 1 ? data.scored.get(data.sites.node[frame.sites[0]]) : null;
    const custom = scored ? customScores(data).map(([key, name]) => `${name} ${formatValue(data.customOf.get(key).ofNode.get(data.sites.node[frame.sites[0]]))}`) : [];
    return [this.amountText(frame), frame !== this.top && ofTop, module, scored && `lifetime score ${formatScore(scored.lifetime)}`, ...custom];
  }
}
