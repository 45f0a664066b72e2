// Puts the parts together: one state, and what each part shows of it.

/** Results of this many inputs are kept of each kind. */
const MOST_KEPT = 3;

class App {
  constructor(data) {
    this.data = data;
    this.state = stateOf(data, location.hash.slice(1));
    // Recordings of sums do not have these.
    this.hasTemporary = data.sites.temporary.blocks.some((blocks) => blocks > 0);
    this.preferred = matchMedia("(prefers-color-scheme: dark)");
    this.made = new Map();
    this.ahead = new Ahead();
    this.setTree();
    this.timeline = new TimelineView(this);
    this.bands = [residentView(this), ...agingViews(this)];
    this.flame = new FlameView(this);
    this.chunks = new ChunkView(this);
    this.space = new SpaceView(this);
    this.table = new TableView(this);
    this.details = new DetailsView(this);
    fillPage(this);
    bindControls(this);
    bindKeys(this);
    this.showTheme();
    this.preferred.addEventListener("change", () => { this.showTheme(); this.schedule(); });
    addEventListener("resize", () => this.schedule());
    addEventListener("hashchange", () => this.readAddress());
    this.refresh();
    this.table.revealPicked();
    this.space.revealPicked();
  }

  setTree() {
    const { hidden, tree } = finished(this.treeSteps(this.state.hides));
    Object.assign(this, { hidden, tree });
    this.prepare();
  }

  /** Makes the tree with or without the functions that may be hidden, or goes on where that was interrupted. */
  *treeSteps(hides) {
    const { state, data } = this;
    const begun = this.kept("tree", [hides && state.wrappers.join("\n")], () => {
      const hidden = hiddenLabels(data, { ...state, hides });
      return { hidden, steps: treeSteps(data, hidden) };
    });
    while (!begun.tree) {
      const { value, done } = begun.steps.next();
      if (done) {
        begun.tree = value;
        begun.steps = null;
      } else yield;
    }
    return begun;
  }

  /** Makes what the first clicks on other rows, units and trees need while nobody waits for it. */
  prepare() {
    const { data, tree, state } = this;
    const rowsOf = function* rowsOf(of) {
      for (const group of ["function", "module"]) {
        spansByKey(data, of, group);
        yield;
        ownRows(data, of, group);
        yield;
      }
    };
    const linesOf = function* linesOf(of) {
      for (const [unit] of UNITS) yield* orderSteps(data, of, unit);
    };
    const other = () => this.treeSteps(!state.hides);
    const otherUnit = function* otherUnit(app) {
      const selection = { ...state, unit: nextOf(UNITS, state.unit) };
      const result = app.kept("result", [selectionText(selection)], () => evaluate(data, selection));
      yield;
      const found = app.kept("rows", [result, tree, state.group], () => makeRows(data, tree, state.group, selection, result));
      yield;
      found.sort("value", found.sums.value, false);
    };
    this.ahead.start([
      rowsOf(tree), linesOf(tree),
      (function* names() { ranksOfNames(data); })(),
      otherUnit(this),
      (function* otherTree() {
        const { tree: made } = yield* other();
        yield;
        yield* rowsOf(made);
        yield* linesOf(made);
      })(),
    ]);
  }

  /** What was made of the same inputs before, else what is made now. The last few are kept: one goes back and forth. */
  kept(name, inputs, make) {
    const all = this.made.get(name) ?? [];
    const known = all.find((one) => one.inputs.every((input, i) => input === inputs[i])) ?? { inputs, value: make() };
    this.made.set(name, [known, ...all.filter((one) => one !== known)].slice(0, MOST_KEPT));
    return known.value;
  }

  knowsTemporary() { return this.hasTemporary && isWhole(this.data, this.state); }

  update(changes) {
    Object.assign(this.state, changes);
    this.schedule();
  }

  /** Redraws once a frame, however many events there are. */
  schedule() {
    cancelAnimationFrame(this.scheduled);
    this.scheduled = requestAnimationFrame(() => this.refresh());
  }

  refreshNow() {
    cancelAnimationFrame(this.scheduled);
    this.refresh();
  }

  refresh() {
    showControls(this);
    this.result = this.kept("result", [selectionText(this.state)], () => evaluate(this.data, this.state));
    showCounts(this);
    this.flame.show();
    this.table.show();
    this.chunks.show();
    this.space.show();
    this.showPick();
    this.changed();
  }

  /** Writes the state into the address, not at every step: browsers limit how often a page may do that. */
  changed() {
    clearTimeout(this.writing);
    this.writing = setTimeout(() => {
      const address = addressOf(this.data, this.state);
      if (address === location.hash.slice(1)) return;
      this.written = address;
      history.replaceState(null, "", `#${address}`);
    }, 100);
  }

  readAddress() {
    const address = location.hash.slice(1);
    if (address === this.written) return;
    clearTimeout(this.writing);
    Object.assign(this.state, stateOf(this.data, address));
    this.setTree();
    this.table.clearSeries();
    this.showTheme();
    this.schedule();
  }

  /** The panel on the right and the line on the chart. */
  showPick() {
    const { data, state, flame, details } = this;
    const { pick } = state;
    let [members, text] = [null, "picked"];
    if (pick?.kind === "row") {
      members = membersOf(this, pick.key);
      const name = wholeName(rowName(this, state.group, pick.key));
      if (members.length) details.show(name, members, state.group === "site" ? framesOf(data, pick.key) : []);
    } else if (pick?.kind === "frame" && flame.root && state.shape !== "sandwich" && hasFrames(state.shape)) {
      const frame = frameAt(flame.root, pick.path);
      members = frame.parent ? frame.sites.filter((site) => this.result.mask[site]) : [];
      if (members.length) details.show(flame.text(frame), members, this.framesOfPick(members[0], pick.path));
    }
    if (!members?.length) {
      if (state.shape === "space" && state.place !== null) details.cell(state.place);
      else details.overview();
      members = null;
      if (isFiltered(state)) {
        text = "what passes the filters";
        members = sitesWhere(data, (site) => this.result.mask[site]);
      }
    }
    // The line of a row is the table's, too.
    const isRow = members && pick?.kind === "row";
    this.timeline.show(members && (isRow ? this.table.series(pick) : overTime(data, members, state.unit)), text);
    this.bands.forEach((view) => view.draw());
  }

  /** Of the stack of a site, the frames on the way to a frame of the graph: one example of what may be many. */
  framesOfPick(site, path) {
    const { data, hidden, state } = this;
    const frames = framesOf(data, data.sites.node[site]);
    const isCallers = state.shape === "callers";
    if (!isCallers) frames.reverse();
    const levels = path.filter((label) => label !== data.cutLabel).length;
    if (!levels) return [];
    let shown = 0;
    const end = frames.findIndex((frame) => {
      if (!hidden[data.labelOf[frame]]) shown += 1;
      return shown === levels;
    });
    const way = end < 0 ? frames : frames.slice(0, end + 1);
    return isCallers ? way : way.reverse();
  }

  pickRow(key) {
    this.state.pick = { kind: "row", key };
    if (this.state.shape === "sandwich") this.setShape("sandwich");
    this.picked();
  }

  picked() {
    this.flame.draw();
    this.table.draw();
    this.chunks.show();
    this.space.show();
    this.showPick();
    this.details.box.scrollTop = 0;
    this.changed();
  }

  /** Zooms the graph, and picks a frame or nothing. */
  zoomTo(zoom, path) {
    this.state.zoom = zoom;
    this.state.pick = path?.length ? { kind: "frame", path } : null;
    this.flame.top = frameAt(this.flame.root, zoom);
    this.picked();
  }

  /** The sites of what is picked; null if nothing is. */
  pickedSites() {
    const { state, flame } = this;
    const { pick } = state;
    if (pick?.kind === "row") {
      const members = membersOf(this, pick.key);
      return members.length ? members : null;
    }
    if (pick?.kind !== "frame" || !this.tree) return null;
    const root = flame.root || calleeGraph(this.tree, this.result.positive);
    const frame = frameAt(root, pick.path);
    return frame.parent ? frame.sites.filter((site) => this.result.mask[site]) : null;
  }

  /** Picks the site of an inference, under a measure that shows it. */
  pickInference(node) {
    const { data, state } = this;
    const isShown = allMembers(data, this.tree, "site", node).some((site) => this.result.shown[state.unit][site] > 0);
    Object.assign(state, { group: "site", measure: isShown ? state.measure : "allocated" });
    this.refreshNow();
    this.pickRow(node);
    this.table.revealPicked();
  }

  setMeasure(measure) {
    if (measure !== "temporary" || this.knowsTemporary()) this.update({ measure });
  }

  /** Ends are moved to points at which the sites are known. */
  setWindow(begin, end) {
    const { data, state } = this;
    // Of the old run nothing is known but its end.
    if (data.compared) return;
    const last = data.points - 1;
    const snap = (point) => Math.max(last - Math.round((last - point) / data.step) * data.step, 0);
    // Of the whole run everything is known, wherever its first point is.
    const isAll = Math.min(begin, end) <= 0 && Math.max(begin, end) >= last;
    const [first, until] = isAll ? [0, last] : [snap(Math.min(begin, end)), snap(Math.max(begin, end))];
    if (first >= until) return;
    this.update({ first, last: until });
    if (state.measure === "temporary" && !isWhole(data, state)) state.measure = "live";
  }

  /** Moves or scales the window, a tenth of it at a time. */
  shift(move, grow) {
    const { data, state } = this;
    const step = Math.max(Math.round((state.last - state.first) / 10), data.step);
    const first = state.first + move * step - grow * step;
    const last = state.last + move * step + grow * step;
    if (move && (first < 0 || last > data.points - 1)) return;
    if (last - first < 1) return;
    this.setWindow(Math.max(first, 0), Math.min(last, data.points - 1));
  }

  setShape(shape) {
    // Flame and icicle are the same tree; zoom and pick stay.
    if (!hasShape(this.data, shape)) return;
    const isSame = new Set([shape, this.state.shape, "flame", "icicle", "chunks", "space"]).size === 4;
    if (shape === "sandwich") this.state.center = this.functionOfPick() || this.state.center;
    const keepsPick = isSame || this.state.pick?.kind === "row";
    this.update({ shape, zoom: isSame ? this.state.zoom : [], pick: keepsPick ? this.state.pick : null });
  }

  setPaint(paint) {
    const isKnown = knownPaints(this.data).some(([name]) => name === paint);
    if (isKnown && (paint !== "score" || this.data.scores)) this.update({ paint });
  }

  setGroup(group) {
    const { state, table } = this;
    if ((state.sorted === "self" && isPartition(group)) || (isCustom(state.sorted) && group !== "site")) state.sorted = "value";
    table.box.scrollTop = 0;
    this.update({ group, pick: state.pick?.kind === "row" ? null : state.pick });
  }

  setWrappers(hides, wrappers) {
    const { pick } = this.state;
    Object.assign(this.state, { hides, wrappers, zoom: [], pick: pick?.kind === "frame" ? null : pick });
    this.setTree();
    this.table.clearSeries();
    this.schedule();
  }

  /** The function of what is picked, or 0. */
  functionOfPick() {
    const { data, state } = this;
    const { pick } = state;
    if (pick?.kind === "row" && state.group === "function") return pick.key;
    if (pick?.kind === "row" && state.group === "site") return Math.max(data.strings.indexOf(siteName(this, pick.key).name), 0);
    if (pick?.kind === "frame") return data.labels.function[pick.path[pick.path.length - 1]] || 0;
    return 0;
  }

  /** Shows callers and callees of a function. */
  setCenter(name) {
    this.update({ shape: "sandwich", center: name, zoom: [], pick: this.state.pick?.kind === "row" ? this.state.pick : null });
  }

  clearFilters() {
    this.update({ search: "", only: false, module: 0, thread: 0, type: 0, least: 0, most: LARGEST_BUCKET });
  }

  /** One step towards the first view. */
  stepBack() {
    const { state } = this;
    if (!byId("filter-panel").hidden) showFilters(false);
    else if (state.large) this.update({ large: "" });
    else if (state.zoom.length) this.zoomTo([], null);
    else if (state.shape === "sandwich") this.setShape("flame");
    else if (state.pick) this.zoomTo([], null);
    else if (state.place !== null) this.update({ place: null });
    else if (isFiltered(state) || state.search) this.clearFilters();
    else this.setWindow(0, this.data.points - 1);
  }

  showTheme() {
    setTheme(this.state.theme || (this.preferred.matches ? "dark" : "light"));
  }

  toggleTheme() {
    this.state.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    this.showTheme();
    this.schedule();
  }
}

unpack().then((data) => {
  window.app = new App(data);
  // Lists that are in view are made by then.
  requestAnimationFrame(() => requestAnimationFrame(() => { document.body.dataset.ready = "yes"; }));
}).catch((error) => {
  byId("subtitle").textContent = `This page could not be shown: ${error.message}`;
  throw error;
});
