// The panel on the right: what was picked, with its numbers and its stack; else what is shown as a whole.

const FIRST_RELEASES = 3;

/** What the search for leaks at the end came to; nothing of a run without one. */
function searchParts(app) {
  const { data } = app;
  if (!data.is_searched && !data.search_gaps.length) return [];
  const parts = [make("h3", "", "Leaks at the end of the run")];
  if (data.is_searched) {
    const { bytes, blocks } = data.sites.unreachable;
    const lost = sumOf(blocks);
    const text = lost
      ? `Nothing points any more to ${formatBytes(sumOf(bytes))} in ${counted(lost, "block")}.`
      : "Every block that is recorded and live can be reached.";
    parts.push(make("p", "", text));
    if (lost && app.state.measure !== "unreachable") parts.push(button("", "Show them", () => app.setMeasure("unreachable")));
  }
  for (const gap of data.search_gaps) parts.push(make("p", "empty", gap));
  return parts;
}

/** Measures of the whole run that the panel has whatever is selected. */
const runMeasures = (data) => ["live", "peak", "allocated", "released", "temporary", ...(data.is_searched ? ["unreachable"] : [])];

/** What some sites come to in the columns of a measure: of each { fresh, old }. */
const amountsOf = (data, members, columns) => Object.fromEntries(["bytes", "blocks", "variance"].map((name) => [name, newAndOld(data, members, columns[name])]));

/** Names that some sites have in a column, as the panel shows them. */
function namesIn(data, members, column) {
  const isFound = new Uint8Array(data.strings.length);
  const found = [];
  for (let at = 0; at < members.length; at += 1) {
    const name = column[members[at]];
    if (isFound[name]) continue;
    isFound[name] = 1;
    found.push(boundedName(data.strings[name]));
  }
  return [...new Set(found)];
}

/** By releaser of blocks: what each has released of those of some sites. */
function releasedOf(data, members) {
  const { flows } = data;
  const isMember = nodeMarks(data, members);
  flows.releasers ??= numbered(flows.released);
  const { keys, rowOf } = flows.releasers;
  const [bytes, blocks, variance] = [0, 1, 2].map(() => new Float64Array(keys.length));
  for (let i = 0; i < rowOf.length; i += 1) {
    if (!isMember[flows.allocated[i]]) continue;
    const row = rowOf[i];
    bytes[row] += flows.bytes[i];
    blocks[row] += flows.blocks[i];
    variance[row] += flows.variance[i];
  }
  const seen = new Uint32Array(keys.length);
  let count = 0;
  for (let row = 0; row < keys.length; row += 1) if (blocks[row] > 0) seen[count++] = row;
  return { keys, seen: seen.slice(0, count), bytes, blocks, variance };
}

/** What does not go by measure, unit or window: found once for a list of sites, since most clicks change only those. */
function factsOf(app, members) {
  const { data } = app;
  const { sites } = data;
  return app.kept("facts", [members], () => ({
    amounts: runMeasures(data).map((name) => [name, amountsOf(data, members, sites[name])]),
    ...Object.fromEntries(["kind", "thread", "type"].map((name) => [name, namesIn(data, members, sites[name])])),
    scores: scoresOf(data, members),
    released: data.has_flows ? releasedOf(data, members) : null,
    sizes: bucketSums(data.sizes, members),
    lifetimes: bucketSums(data.lifetimes, members),
  }));
}

class DetailsView {
  constructor(app) {
    this.app = app;
    this.box = byId("details");
    this.lists = new LongLists(app, this.box);
  }

  /** The cell of addresses in which this one is. */
  cell(address) {
    this.lists.begin();
    this.box.replaceChildren(...cellParts(this.app, Math.floor(address / this.app.space.known.size)));
  }

  /** Nothing is picked. */
  overview() {
    const { app } = this;
    const { data, state, result } = app;
    const { sizes, lifetimes } = app.kept("overview", [filterText(state)], () => {
      const members = sitesWhere(data, (site) => result.mask[site]);
      return { sizes: bucketSums(data.sizes, members), lifetimes: bucketSums(data.lifetimes, members) };
    });
    const choose = (bucket) => {
      const isChosen = state.least === bucket && state.most === bucket;
      app.update(isChosen ? { least: 0, most: LARGEST_BUCKET } : { least: bucket, most: bucket });
    };
    const isChosen = (bucket) => hasSizes(state) && bucket >= state.least && bucket <= state.most;
    this.lists.begin();
    const what = isFiltered(state) ? "of what passes the filters, " : "";
    this.box.replaceChildren(
      make("h2", "", "Overview"),
      make("p", "empty", "Pick a row or a frame to see its numbers, its call stack and its source."),
      ...searchParts(app),
      ...(state.shape === "space" ? spaceParts(app) : []),
      ...runScoreParts(app),
      ...histogramParts(`Block sizes (${what}all allocations, ${coveredWords(data)})`, sizes, sizeText, choose, isChosen),
      ...histogramParts(`Lifetimes of released blocks (${what}${coveredWords(data)})`, lifetimes, lifetimeText),
    );
  }

  /** Some sites together; the frames are those of the stack that is shown, innermost first. */
  show(title, members, frames) {
    const { data, state, result } = this.app;
    const { sites } = data;
    const facts = factsOf(this.app, members);
    this.lists.begin();
    const heading = make("h2", "", boundedName(title));
    heading.title = title;
    const when = isWhole(data, state) ? state.measure : `${state.measure} in the window`;
    const shown = isCustom(state.measure) ? [] : [[when, amountsOf(data, members, result.shown)]];
    const parts = [heading, this.numbers(shown), ...this.onlyThis()];
    if (frames.length) {
      parts.push(make("h3", "", "Call stack, innermost first"), stackList(this.app, frames));
      const [first] = members;
      if (sites.truncated[first] === NOT_FOLLOWED) parts.push(make("p", "empty", "The stack continues, but was not followed any further: there was no unwind information, or too little memory for stacks."));
      else if (data.cut[first]) parts.push(make("p", "empty", `The stack continues, but was cut at --depth ${data.depth}.`));
    }
    parts.push(make("h3", "", coveredText(data)));
    parts.push(this.numbers(facts.amounts));
    const { kind: kinds, thread: threads, type: types } = facts;
    parts.push(make("h3", "", "Allocated by"));
    parts.push(make("p", "", `${kinds.join(", ")}, on ${threads.length > 3 ? `${threads.length} threads` : threads.join(", ")}`));
    parts.push(make("p", "", `Type of the blocks: ${types.length > 3 ? `${types.length} types` : types.join(", ")}`));
    parts.push(...this.releases(facts));
    parts.push(...siteScoreParts(this.app, facts.scores));
    parts.push(...histogramParts(`Block sizes (${coveredWords(data)})`, facts.sizes, sizeText));
    parts.push(...histogramParts(`Lifetimes of released blocks (${coveredWords(data)})`, facts.lifetimes, lifetimeText));
    this.box.replaceChildren(...parts);
  }

  /** The row of a module, thread or type as a filter. */
  onlyThis() {
    const { app } = this;
    const { group, pick } = app.state;
    if (pick?.kind !== "row" || !["module", "thread", "type"].includes(group) || app.state[group] === pick.key || !pick.key) return [];
    const only = button("only-this", `Only this ${group}`, () => app.update({ [group]: pick.key }));
    only.title = "Filter by it";
    return [only];
  }

  numbers(measures) {
    const { data } = this.app;
    const numbers = make("div", "numbers");
    for (const [name, { bytes, blocks, variance }] of measures) {
      const was = data.compared ? `, was ${formatBytes(bytes.old)}` : "";
      numbers.append(make("span", "", name), make("b", "", withError(bytes.fresh, variance.fresh)), make("span", "", `in ${counted(blocks.fresh, "block")}${was}`));
    }
    return numbers;
  }

  /** Who releases the blocks of some sites. */
  releases({ released }) {
    const { app } = this;
    const { data, state } = app;
    const title = make("h3", "", `Released by (${coveredWords(data)})`);
    if (!released) return [title, make("p", "empty", "Not recorded: attach with --stacks all to see who releases these blocks.")];
    const { keys, seen, bytes, blocks, variance } = released;
    if (!seen.length) return [title, make("p", "empty", "None of these blocks was seen being released.")];
    const largest = sorted(seen, state.unit === "bytes" ? bytes : blocks, false);
    const entry = (row) => {
      const frames = framesOf(data, keys[row]);
      const isDull = dullTest(app, frames);
      const frame = frames.find((one) => !isDull(one)) ?? frames[0];
      const names = frames.slice(frames.indexOf(frame), frames.indexOf(frame) + 3).map((one) => isolated(boundedName(functionOf(data, one))));
      const item = make("li", "");
      const opener = button("plain name", names.join(" \u2190 ") || "(no call stack)", () => item.append(stackList(app, frames)));
      opener.title = "The whole stack";
      opener.addEventListener("click", () => { opener.disabled = true; }, { once: true });
      const place = frame === undefined ? "" : placeOf(data, frame);
      item.append(opener, make("small", "", [`${withError(bytes[row], variance[row])} in ${counted(blocks[row], "block")}`, place].filter(Boolean).join("  ")));
      return item;
    };
    return [title, this.lists.list("stack", largest, entry, { first: FIRST_RELEASES, isSeen: true })];
  }
}
