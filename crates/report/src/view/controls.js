// The controls: what they offer, and how they show the state.

function fillOptions(id, first, entries) {
  const option = ([value, text]) => {
    const element = make("option", "", text);
    element.value = value;
    return element;
  };
  byId(id).replaceChildren(...[[0, first], ...entries].map(option));
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

/** What does not change: the title, the sums of the run, the lists to choose from. */
function fillPage(app) {
  const { data } = app;
  byId("title").textContent = `${data.name} (${data.pid})`;
  document.body.classList.toggle("sampled", data.is_sampled);
  const began = new Date(data.began_unix_ms).toISOString().slice(0, 19).replace("T", " ");
  const lost = data.lost_events ? `, ${formatCount(data.lost_events)} events lost` : "";
  const exact = data.exact_allocations ?? null;
  const known = exact === null ? "" : `${counted(exact, "allocation")} counted, all others `;
  const sampled = data.is_sampled ? `, ${known}estimated from samples` : "";
  const unseenNs = data.gaps.reduce((sum, gap) => sum + (gap.to_s - gap.from_s) * 1e9, 0);
  const unseen = unseenNs ? `, nothing was seen for ${formatTime(unseenNs)}` : "";
  const cutBlocks = data.sites.allocated.blocks.reduce((sum, blocks, site) => sum + (data.cut[site] ? blocks : 0), 0);
  const share = formatShare(cutBlocks, sumOf(data.sites.allocated.blocks));
  const cutShare = share === "0.0 %" ? "less than 0.1 %" : share;
  const cut = cutBlocks ? `, stacks of ${cutShare} of the blocks are cut (--depth ${data.depth})` : "";
  const against = data.compared ? `, compared with ${data.compared.name} (${data.compared.pid}) of ${formatTime(data.compared.seconds * 1e9)}` : "";
  byId("subtitle").textContent = `${began} UTC, ${formatTime(data.to_ns - data.from_ns)}${unseen}${sampled}${lost}${cut}${against}`;
  const tiles = [["Live", "live"], ["Peak", "peak"], ["Allocated", "allocated"], ["Temporary", "temporary"]];
  byId("tiles").replaceChildren(...tiles.filter(([, name]) => name !== "temporary" || app.hasTemporary).map(([text, name]) => {
    const error = formatError(sumOf(data.sites[name].variance));
    const all = [...data.sites.node.keys()];
    const [bytes, blocks] = ["bytes", "blocks"].map((unit) => newAndOld(data, all, data.sites[name][unit]));
    const was = data.compared ? `, was ${formatBytes(bytes.old)}` : "";
    const aside = make("small", "", `${error && ` ${error},`} ${counted(blocks.fresh, "block")}${was}`);
    return make("div", "", make("dt", "", text), make("dd", "", formatBytes(bytes.fresh), aside));
  }));
  const named = (list) => [...list].map((index) => [index, data.strings[index]]).sort((a, b) => (a[1] < b[1] ? -1 : 1));
  fillOptions("module", "All modules", named(data.modules));
  fillOptions("thread", "All threads", named(data.threads));
  fillOptions("type", "All types", named(data.types));
  const buckets = [...Array(41).keys()].slice(1);
  fillOptions("least", "any", buckets.map((bucket) => [bucket, bytesLabel(2 ** (bucket - 1))]));
  fillOptions("most", "any", buckets.map((bucket) => [bucket, bytesLabel(2 ** bucket)]));
}

/** What the controls show of the state. */
function showControls(app) {
  const { data, state } = app;
  choice("measures", MEASURES, state.measure, (name) => app.setMeasure(name), (name) => name === "temporary" && !app.knowsTemporary());
  choice("units", UNITS, state.unit, (unit) => app.update({ unit }));
  choice("charts", CHARTS, state.chart, (chart) => app.update({ chart }));
  const lacksScores = (name) => !data.scores && name === "score";
  choice("shapes", SHAPES, state.shape, (shape) => app.setShape(shape), (name) => !hasShape(data, name));
  choice("paints", PAINTS.filter(([name]) => name !== "change" || data.compared), state.paint, (paint) => app.setPaint(paint), lacksScores);
  choice("talls", TALLS, state.tall, (tall) => app.update({ tall }));
  choice("cells", CELL_SIZES, state.cell, (cell) => app.update({ cell }));
  choice("covers", COVERS, state.cover, (cover) => app.update({ cover }), lacksScores);
  const isSpace = state.shape === "space";
  byId("flames").hidden = !hasFrames(state.shape);
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
  for (const id of ["module", "thread", "type", "least"]) byId(id).value = state[id];
  byId("most").value = state.most === LARGEST_BUCKET ? 0 : state.most;
  if (byId("search").value !== state.search) byId("search").value = state.search;
  byId("only").setAttribute("aria-pressed", String(state.only));
  byId("hides").checked = state.hides;
  byId("clear").disabled = !isFiltered(state) && !state.search;
  const isAll = isWhole(data, state);
  byId("whole").hidden = isAll;
  const [begin, end] = [timeOf(data, state.first), timeOf(data, state.last)];
  for (const [id, ns] of [["from", isAll ? data.from_ns : begin], ["to", isAll ? data.to_ns : end]]) {
    if (document.activeElement !== byId(id)) byId(id).value = formatTime(ns);
  }
  byId("window").textContent = isAll ? `Whole run, ${formatTime(data.to_ns - data.from_ns)}` : `${formatTime(end - begin)} of ${formatTime(data.to_ns - data.from_ns)}`;
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
  return paint === "score" ? severityLegend() : moduleLegend(data);
}

/** What the filters leave, and what the search has found. */
function showCounts(app) {
  const { data, state, result } = app;
  byId("found").textContent = searchText(state, result);
  byId("search").classList.toggle("wrong", Boolean(result.search && !result.search.functions));
  const shown = sumOf(result.positive);
  byId("filtered").textContent = isFiltered(state)
    ? `Filters leave ${formatShare(shown, result.whole[state.unit]) || "nothing"}: ${formatAmount(shown, state.unit)} of ${formatAmount(result.whole[state.unit], state.unit)}`
    : "";
  const names = new Set();
  app.hidden.forEach((isHidden, label) => { if (isHidden) names.add(data.labels.function[label]); });
  byId("hidden").textContent = state.hides ? `(${formatCount(names.size)} hidden)` : "";
}

function bindControls(app) {
  const { state } = app;
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
  byId("default-wrappers").onclick = () => { byId("list-of-wrappers").value = DEFAULT_WRAPPERS.join("\n"); };
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
