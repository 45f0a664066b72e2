// Puts the parts together: one selection, and what each part shows of it.

function start(data) {
  const selection = newSelection(data);
  let result = null;
  let pickedSites = null;
  let showDetails = () => {};

  const timeline = new TimelineView(data, (first, last) => {
    [selection.first, selection.last] = [first, last];
    if (selection.measure === "temporary" && !isWhole(data, selection)) selection.measure = "live";
    schedule();
  });
  const flame = new FlameView(data, (node) => pickNode(node));
  const table = new TableView(data, (row) => pickRow(row));
  const details = new DetailsView(data, (module) => flame.hue(module));

  function pickRow(row) {
    pickedSites = row.members;
    flame.picked = -1;
    const stack = table.group === "site" ? data.stacks[row.key] : [];
    const [name] = table.nameOf(row.key);
    showDetails = () => details.show(name, row.members, stack, selection, result);
    showDetails();
    details.box.scrollTop = 0;
    timeline.show(selection, overTime(data, pickedSites, selection.unit));
  }

  function pickNode(node) {
    table.picked = null;
    table.draw();
    if (node === 0) return clearPick();
    const { tree } = flame;
    pickedSites = sitesBelow(tree, node);
    // The frames of one of the stacks, from this node outwards.
    const example = data.stacks[data.sites.stack[pickedSites[0]]] || [];
    const levels = tree.depth[node];
    const frames = flame.shape === "inverted" ? example.slice(0, levels) : example.slice(Math.max(example.length - levels, 0));
    const [text, members] = [labelText(data, tree, node), pickedSites];
    showDetails = () => details.show(text, members, frames, selection, result);
    showDetails();
    details.box.scrollTop = 0;
    timeline.show(selection, overTime(data, pickedSites, selection.unit));
    return undefined;
  }

  function clearPick() {
    pickedSites = null;
    table.picked = null;
    flame.picked = -1;
    showDetails = () => {};
    details.empty();
    timeline.show(selection, null);
  }

  let scheduled = 0;
  /** Redraws once a frame, however many events there are. */
  function schedule() {
    cancelAnimationFrame(scheduled);
    scheduled = requestAnimationFrame(refresh);
  }

  function refresh() {
    controls();
    result = evaluate(data, selection);
    flame.show(selection, result);
    table.show(selection, result);
    showDetails();
    timeline.show(selection, pickedSites && overTime(data, pickedSites, selection.unit));
  }

  function choice(id, options, current, choose) {
    byId(id).replaceChildren(...options.map(([name, text, title]) => {
      const button = make("button", "", text);
      button.dataset.name = name;
      button.setAttribute("aria-pressed", String(name === current));
      button.disabled = name === "temporary" && !knowsTemporary();
      if (title) button.title = title;
      button.onclick = () => choose(name);
      return button;
    }));
  }

  // Recordings of sums do not have them.
  const hasTemporary = data.sites.temporary.blocks.some((blocks) => blocks > 0);
  const knowsTemporary = () => hasTemporary && isWhole(data, selection);
  const setMeasure = (name) => {
    if (name === "temporary" && !knowsTemporary()) return;
    selection.measure = name;
    schedule();
  };
  const setUnit = (name) => { selection.unit = name; schedule(); };
  const setShape = (name) => { flame.setShape(name); schedule(); };
  const setGroup = (name) => { table.group = name; table.picked = null; table.box.scrollTop = 0; schedule(); };

  function controls() {
    choice("measures", MEASURES, selection.measure, setMeasure);
    choice("units", UNITS, selection.unit, setUnit);
    choice("shapes", SHAPES, flame.shape, setShape);
    choice("groups", GROUPS, table.group, setGroup);
    byId("function").classList.toggle("wrong", !matcher(selection.pattern));
    const whole = isWhole(data, selection);
    byId("whole").hidden = whole;
    byId("hint").hidden = !whole;
    const [begin, end] = [timeOf(data, selection.first), timeOf(data, selection.last)];
    byId("window").textContent = whole ? `Whole run, ${formatTime(data.to_ns - data.from_ns)}`
      : `${formatTime(begin)} to ${formatTime(end)} (${formatTime(end - begin)})`;
  }

  function options(id, first, entries) {
    byId(id).replaceChildren(...[[0, first], ...entries].map(([value, text]) => {
      const option = make("option", "", text);
      option.value = value;
      return option;
    }));
  }

  function fill() {
    document.body.classList.toggle("sampled", data.is_sampled);
    byId("title").textContent = `${data.name} (${data.pid})`;
    const began = new Date(data.began_unix_ms);
    const lost = data.lost_events ? `, ${formatCount(data.lost_events)} events lost` : "";
    const sampled = data.is_sampled ? ", estimated from samples" : "";
    byId("subtitle").textContent = `${began.toISOString().slice(0, 19).replace("T", " ")} UTC, ${formatTime(data.to_ns - data.from_ns)}${sampled}${lost}`;
    const total = (name, column) => data.sites[name][column].reduce((a, b) => a + b, 0);
    byId("tiles").replaceChildren(...[["Live", "live"], ["Peak", "peak"], ["Allocated", "allocated"], ["Temporary", "temporary"]].filter(([, name]) => name !== "temporary" || hasTemporary).map(([text, name]) => {
      const error = formatError(total(name, "variance"));
      const aside = make("small", "", `${error && ` ${error},`} ${countedBlocks(total(name, "blocks"))}`);
      return make("div", "", make("dt", "", text), make("dd", "", formatBytes(total(name, "bytes")), aside));
    }));
    const named = (list) => list.map((index) => [index, data.strings[index]]).sort((a, b) => (a[1] < b[1] ? -1 : 1));
    options("module", "All modules", named(data.modules));
    options("thread", "All threads", named(data.threads));
    const buckets = [...Array(41).keys()].slice(1);
    options("least", "any", buckets.map((bucket) => [bucket, formatBytes(2 ** (bucket - 1))]));
    options("most", "any", buckets.map((bucket) => [bucket, formatBytes(2 ** bucket)]));
  }

  function clearFilters() {
    Object.assign(selection, { pattern: "", module: 0, thread: 0, least: 0, most: 64 });
    for (const id of ["function", "module", "thread", "least", "most"]) byId(id).value = id === "function" ? "" : 0;
    schedule();
  }

  function setWhole() {
    [selection.first, selection.last] = [0, data.points - 1];
    schedule();
  }

  function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
    if (result) refresh();
  }
  const toggleTheme = () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");

  /** Moves or scales the window, a tenth of it at a time. */
  function shift(move, grow) {
    const step = Math.max(Math.round((selection.last - selection.first) / 10), data.step);
    const first = selection.first + move * step - grow * step;
    const last = selection.last + move * step + grow * step;
    if (move && (first < 0 || last > data.points - 1)) return;
    if (last - first < 1) return;
    timeline.select(Math.max(first, 0), Math.min(last, data.points - 1));
  }

  const cycle = (list, current) => list[(list.findIndex(([name]) => name === current) + 1) % list.length][0];

  function stepBack() {
    const hasFilter = selection.pattern || selection.module || selection.thread || selection.least || selection.most < 64;
    if (flame.root) flame.zoom(0);
    else if (pickedSites) clearPick();
    else if (hasFilter) clearFilters();
    else setWhole();
  }

  const keys = {
    b: () => setUnit(cycle(UNITS, selection.unit)),
    f: () => setShape(cycle(SHAPES, flame.shape)),
    g: () => setGroup(cycle(GROUPS, table.group)),
    t: toggleTheme,
    j: () => table.move(1),
    k: () => table.move(-1),
    ArrowDown: () => table.move(1),
    ArrowUp: () => table.move(-1),
    "[": () => shift(-1, 0),
    "]": () => shift(1, 0),
    "-": () => shift(0, 1),
    "+": () => shift(0, -1),
    "=": () => shift(0, -1),
    "/": () => byId("function").focus(),
    "?": () => byId("keys").showModal(),
    Escape: stepBack,
  };
  MEASURES.forEach(([name], i) => { keys[i + 1] = () => setMeasure(name); });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
    const typing = event.target.matches("input, select");
    if (typing && event.key !== "Escape") return;
    if (typing) event.target.blur();
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });

  byId("theme").onclick = toggleTheme;
  byId("help").onclick = () => byId("keys").showModal();
  byId("whole").onclick = setWhole;
  byId("clear").onclick = clearFilters;
  byId("function").oninput = (event) => { selection.pattern = event.target.value; schedule(); };
  for (const id of ["module", "thread", "least"]) {
    byId(id).onchange = (event) => { selection[id] = +event.target.value; schedule(); };
  }
  byId("most").onchange = (event) => { selection.most = +event.target.value || 64; schedule(); };
  addEventListener("resize", schedule);

  fill();
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  refresh();
  document.body.dataset.ready = "yes";
}

unpack().then(prepare).then(start).catch((error) => {
  byId("subtitle").textContent = `This page could not be shown: ${error.message}`;
  throw error;
});
