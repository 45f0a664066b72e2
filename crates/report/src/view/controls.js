// The controls: what they offer, and how they show the state.

function fillOptions(id, first, entries) {
  const option = ([value, text]) => {
    const element = make("option", "", text);
    element.value = value;
    return element;
  };
  byId(id).replaceChildren(...[[0, first], ...entries].map(option));
}

/** Options of a filter at most: of more, those that allocated most. The others are picked in the table. */
const MOST_OPTIONS = 200;
/** Characters of an option. */
const MOST_OF_OPTION = 80;

/** The values of a column of the sites, those first that allocated most. */
function byAllocated(data, keys) {
  const sums = new Map();
  keys.forEach((key, site) => { sums.set(key, (sums.get(key) || 0) + data.sites.allocated.bytes[site]); });
  return [...sums].sort((a, b) => b[1] - a[1] || a[0] - b[0]).map(([key]) => key);
}

/** The first of some values as options, by name. */
function fillLargest(data, id, first, values) {
  const largest = values.slice(0, MOST_OPTIONS);
  const named = largest.map((value) => [value, fittingName(data.strings[value], MOST_OF_OPTION)]).sort((a, b) => (a[1] < b[1] ? -1 : 1));
  fillOptions(id, first, named);
  if (values.length === largest.length) return;
  const rest = make("option", "", `${formatCount(values.length - largest.length)} others: pick one in the table`);
  rest.disabled = true;
  byId(id).append(rest);
}

/** Chooses an option, which an address or a row may have named that is not among the largest. */
function showOption(data, id, value) {
  const list = byId(id);
  if (![...list.options].some((option) => option.value === String(value))) {
    const option = make("option", "", fittingName(data.strings[value], MOST_OF_OPTION));
    option.value = value;
    list.append(option);
  }
  list.value = value;
}

function choice(id, options, current, choose, isOff = () => false) {
  const box = byId(id);
  if (!box.children.length) {
    box.append(...options.map(([name, text, title]) => {
      const element = button("", text, () => choose(name));
      element.dataset.name = name;
      if (title) element.title = title;
      return element;
    }));
  }
  for (const element of box.children) {
    element.setAttribute("aria-pressed", String(element.dataset.name === current));
    element.disabled = isOff(element.dataset.name);
  }
}

/** Of how many blocks the stacks are cut for a reason. */
function cutText(data, reason, what) {
  const blocks = data.sites.allocated.blocks.reduce((sum, of, site) => sum + (data.cut[site] === reason ? of : 0), 0);
  const share = formatShare(blocks, sumOf(data.sites.allocated.blocks));
  return blocks ? `, stacks of ${share === "0.0 %" ? "less than 0.1 %" : share} of the blocks ${what}` : "";
}

/** What does not change: the title, the sums of the run, the lists to choose from. */
function fillPage(app) {
  const { data } = app;
  byId("title").textContent = `${data.name} (${data.pid})`;
  document.body.classList.toggle("sampled", data.is_sampled);
  const began = new Date(data.began_unix_ms).toISOString().slice(0, 19).replace("T", " ");
  const lost = data.lost_events ? `, ${formatCount(data.lost_events)} events lost` : "";
  const exact = data.exact_allocations ?? null;
  const unwatched = data.unwatched_libraries ? `, calls by opened libraries may be missing (${formatCount(data.unwatched_libraries)})` : "";
  const known = exact === null ? "" : `${counted(exact, "allocation")} counted, all others `;
  const sampled = data.is_sampled ? `, ${known}estimated from samples` : "";
  const unseenNs = data.gaps.reduce((sum, gap) => sum + (gap.to_s - gap.from_s) * 1e9, 0);
  const unseen = unseenNs ? `, nothing was seen for ${formatTime(unseenNs)}` : "";
  const cut = cutText(data, CUT_AT_DEPTH, `are cut (--depth ${data.depth})`) + cutText(data, NOT_FOLLOWED, "could not be followed to their end");
  const against = data.compared ? `, compared with ${data.compared.name} (${data.compared.pid}) of ${formatTime(data.compared.seconds * 1e9)}` : "";
  byId("subtitle").textContent = `${began} UTC, ${formatTime(data.to_ns - data.from_ns)}${unseen}${sampled}${lost}${unwatched}${cut}${against}`;
  const tiles = [["Live", "live"], ["Peak", "peak"], ["Allocated", "allocated"], ["Temporary", "temporary"], ["Unreachable", "unreachable"]];
  byId("tiles").replaceChildren(...tiles.filter(([, name]) => (name !== "temporary" || app.hasTemporary) && (name !== "unreachable" || data.is_searched)).map(([text, name]) => {
    const all = allSites(data);
    const [bytes, blocks] = ["bytes", "blocks"].map((unit) => newAndOld(data, all, data.sites[name][unit]));
    const was = data.compared ? `, was ${formatBytes(bytes.old)}` : "";
    // The number is large, its error small.
    const [amount, error] = withError(bytes.fresh, sumOf(data.sites[name].variance)).split(" \u00b1 ");
    const aside = make("small", "", `${error ? ` \u00b1 ${error},` : ""} ${counted(blocks.fresh, "block")}${was}`);
    return make("div", "", make("dt", "", text), make("dd", "", amount, aside));
  }));
  fillLargest(data, "module", "All modules", data.modules);
  fillLargest(data, "thread", "All threads", byAllocated(data, data.sites.thread));
  fillLargest(data, "type", "All types", byAllocated(data, data.sites.type));
  const buckets = [...Array(41).keys()].slice(1);
  fillOptions("least", "any", buckets.map((bucket) => [bucket, bytesLabel(2 ** (bucket - 1))]));
  fillOptions("most", "any", buckets.map((bucket) => [bucket, bytesLabel(2 ** bucket)]));
}

/** What the controls show of the state. */
function showControls(app) {
  const { data, state } = app;
  choice("measures", knownMeasures(data), state.measure, (name) => app.setMeasure(name), (name) => name === "temporary" && !app.knowsTemporary());
  choice("units", UNITS, state.unit, (unit) => app.update({ unit }));
  choice("charts", CHARTS, state.chart, (chart) => app.update({ chart }));
  for (const view of byId("open-charts").children) view.setAttribute("aria-pressed", String(state.open.includes(view.dataset.name)));
  byId("timeline").hidden = !state.open.includes("heap");
  for (const id of ["charts", "legend"]) byId(id).hidden = byId("timeline").hidden;
  byId("root").hidden = !hasRoot(state.shape);
  byId("root").setAttribute("aria-pressed", String(state.isWholeRoot));
  const filters = ["module", "thread", "type"].filter((name) => state[name]).length + (hasSizes(state) ? 1 : 0);
  byId("filters").textContent = filters ? `Filters (${filters})` : "Filters";
  const lacksScores = (name) => !data.scores && name === "score";
  choice("shapes", SHAPES, state.shape, (shape) => app.setShape(shape), (name) => !hasShape(data, name));
  choice("paints", knownPaints(data), state.paint, (paint) => app.setPaint(paint), lacksScores);
  choice("talls", TALLS, state.tall, (tall) => app.update({ tall }));
  choice("cells", CELL_SIZES, state.cell, (cell) => app.update({ cell }));
  choice("covers", COVERS, state.cover, (cover) => app.update({ cover }), lacksScores);
  const isSpace = state.shape === "space";
  byId("flames").hidden = !hasFrames(state.shape);
  byId("sandwich-hint").hidden = state.shape !== "sandwich" || Boolean(state.center);
  byId("talls").hidden = state.shape !== "chunks";
  byId("paints").hidden = !hasFrames(state.shape);
  byId("svg").disabled = state.shape === "chunks";
  byId("folded").hidden = isSpace;
  for (const id of ["cells", "covers", "cells-csv"]) byId(id).hidden = !isSpace;
  // Chunks have one colour, which is none of these; addresses have a legend of their own.
  const paint = hasFrames(state.shape) ? state.paint : "none";
  if (!isSpace && byId("modules").dataset.paint !== paint) {
    byId("modules").dataset.paint = paint;
    byId("modules").replaceChildren(...(paint === "none" ? [] : legendOf(data, paint)));
  }
  choice("groups", GROUPS, state.group, (group) => app.setGroup(group));
  for (const id of ["module", "thread", "type"]) showOption(data, id, state[id]);
  byId("least").value = state.least;
  byId("most").value = state.most === LARGEST_BUCKET ? 0 : state.most;
  if (byId("search").value !== state.search) byId("search").value = state.search;
  byId("only").setAttribute("aria-pressed", String(state.only));
  byId("hides").checked = state.hides;
  byId("clear").disabled = !isFiltered(state) && !state.search;
  const isAll = isWhole(data, state);
  byId("whole").hidden = isAll;
  byId("whole").textContent = `${coveredText(data)} (Esc)`;
  const [begin, end] = [timeOf(data, state.first), timeOf(data, state.last)];
  for (const [id, ns] of [["from", isAll ? data.from_ns : begin], ["to", isAll ? data.to_ns : end]]) {
    if (document.activeElement !== byId(id)) byId(id).value = formatTime(ns);
  }
  byId("window").textContent = isAll ? `${coveredText(data)}, ${formatTime(data.to_ns - data.from_ns)}` : `${formatTime(end - begin)} of ${formatTime(data.to_ns - data.from_ns)}`;
  for (const panel of ["graph", "list"]) {
    document.body.classList.toggle(`large-${panel}`, state.large === panel);
    const enlarge = byId(`enlarge-${panel}`);
    enlarge.textContent = state.large === panel ? "Restore" : "Enlarge";
    enlarge.setAttribute("aria-pressed", String(state.large === panel));
  }
  document.body.classList.toggle("stacked", state.chart === "stacked");
}

function legendOf(data, paint) {
  if (paint === "change") return changeLegend(data);
  if (isCustom(paint)) return severityLegend(customName(paint), ["smallest", "", "largest"]);
  return paint === "score" ? severityLegend() : moduleLegend(data);
}

/** What the filters leave, and what the search has found. */
function showCounts(app) {
  const { data, state, result } = app;
  byId("found").textContent = byId("found").title = searchText(state, result);
  byId("search").classList.toggle("wrong", Boolean(result.search && !result.search.functions));
  const shown = sumOf(result.positive);
  byId("filtered").textContent = isFiltered(state)
    ? `Filters leave ${formatShare(shown, result.whole[state.unit]) || "nothing"}: ${formatShown(shown, state)} of ${formatShown(result.whole[state.unit], state)}`
    : "";
  const names = new Set();
  app.hidden.forEach((isHidden, label) => { if (isHidden) names.add(data.labels.function[label]); });
  byId("hidden").textContent = state.hides ? `(${formatCount(names.size)} hidden)` : "";
}

/** Opens or closes the panel of filters. */
function showFilters(isOpen) {
  byId("filter-panel").hidden = !isOpen;
  byId("filters").setAttribute("aria-expanded", String(isOpen));
}

function bindControls(app) {
  const { state } = app;
  const offered = OPEN_CHARTS.filter(([name]) => name === "heap" || app.bands.some(({ id, hasPoints }) => id === name && hasPoints));
  byId("open-charts").replaceChildren(...offered.map(([name, text, title]) => {
    const toggle = button("", text, () => app.update({ open: state.open.includes(name) ? state.open.filter((one) => one !== name) : [...state.open, name] }));
    toggle.title = title;
    toggle.dataset.name = name;
    return toggle;
  }));
  byId("root").onclick = () => app.update({ isWholeRoot: !state.isWholeRoot });
  byId("filters").onclick = () => showFilters(byId("filter-panel").hidden);
  addEventListener("pointerdown", (event) => { if (!event.target.closest("#filter-panel, #filters, dialog")) showFilters(false); });
  byId("theme").onclick = () => app.toggleTheme();
  byId("help").onclick = () => byId("keys").showModal();
  byId("whole").onclick = () => app.setWindow(0, app.data.points - 1);
  byId("clear").onclick = () => app.clearFilters();
  byId("search").oninput = (event) => app.update({ search: event.target.value });
  byId("search").onkeydown = (event) => { if (event.key === "Enter") app.update({ only: !state.only }); };
  byId("only").onclick = () => app.update({ only: !state.only });
  for (const id of ["module", "thread", "type", "least"]) byId(id).onchange = (event) => app.update({ [id]: +event.target.value });
  byId("most").onchange = (event) => app.update({ most: +event.target.value || LARGEST_BUCKET });
  byId("hides").onchange = (event) => app.setWrappers(event.target.checked, state.wrappers);
  byId("edit").onclick = () => {
    byId("list-of-wrappers").value = state.wrappers.join("\n");
    byId("wrappers").showModal();
  };
  byId("default-wrappers").onclick = () => { byId("list-of-wrappers").value = USUAL_WRAPPERS.join("\n"); };
  byId("wrappers").onclose = () => {
    if (byId("wrappers").returnValue !== "use") return;
    const list = byId("list-of-wrappers").value.split("\n").map((name) => name.trim()).filter(Boolean);
    app.setWrappers(true, list);
  };
  for (const panel of ["graph", "list"]) {
    byId(`enlarge-${panel}`).onclick = () => app.update({ large: state.large === panel ? "" : panel });
  }
  byId("svg").onclick = () => {
    const isSpace = state.shape === "space";
    save(app, isSpace ? spaceSvg(app.space) : svgText(app.flame), "image/svg+xml", isSpace ? "addresses.svg" : "graph.svg");
  };
  byId("cells-csv").onclick = () => save(app, spaceCsv(app.space), "text/csv", "addresses.csv");
  byId("folded").onclick = () => save(app, foldedText(app), "text/plain", `${state.measure}.folded`);
  byId("csv").onclick = () => saveCsv(app, app.table.rows);
  for (const id of ["from", "to"]) {
    byId(id).onchange = () => {
      const ends = ["from", "to"].map((end) => parseTime(byId(end).value));
      byId(id).classList.toggle("wrong", ends.includes(null));
      if (!ends.includes(null)) app.setWindow(...ends.map((ns) => nearestPoint(app.data, ns)));
    };
  }
}
