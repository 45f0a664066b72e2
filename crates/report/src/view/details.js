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
    const members = sitesWhere(data, (site) => result.mask[site]);
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
      ...histogramParts(`Block sizes (${what}all allocations, ${coveredWords(data)})`, bucketSums(data.sizes, members), sizeText, choose, isChosen),
      ...histogramParts(`Lifetimes of released blocks (${what}${coveredWords(data)})`, bucketSums(data.lifetimes, members), lifetimeText),
    );
  }

  /** Some sites together; the frames are those of the stack that is shown, innermost first. */
  show(title, members, frames) {
    const { data, state, result } = this.app;
    const { sites } = data;
    this.lists.begin();
    const heading = make("h2", "", boundedName(title));
    heading.title = title;
    const parts = [heading, this.numbers([[isWhole(data, state) ? state.measure : `${state.measure} in the window`, result.shown]], members), ...this.onlyThis()];
    if (frames.length) {
      parts.push(make("h3", "", "Call stack, innermost first"), stackList(this.app, frames));
      const [first] = members;
      if (sites.truncated[first] === NOT_FOLLOWED) parts.push(make("p", "empty", "The stack goes on, but was not followed any further: there was no unwind information, or too little memory for stacks."));
      else if (data.cut[first]) parts.push(make("p", "empty", `The stack goes on, but was cut at --depth ${data.depth}.`));
    }
    parts.push(make("h3", "", coveredText(data)));
    parts.push(this.numbers(["live", "peak", "allocated", "released", "temporary", ...(data.is_searched ? ["unreachable"] : [])].map((name) => [name, sites[name]]), members));
    const distinct = (column) => {
      const isFound = new Uint8Array(data.strings.length);
      const found = [];
      for (let at = 0; at < members.length; at += 1) {
        const name = column[members[at]];
        if (isFound[name]) continue;
        isFound[name] = 1;
        found.push(boundedName(data.strings[name]));
      }
      return [...new Set(found)];
    };
    const threads = distinct(sites.thread);
    parts.push(make("h3", "", "Allocated by"));
    parts.push(make("p", "", `${distinct(sites.kind).join(", ")}, on ${threads.length > 3 ? `${threads.length} threads` : threads.join(", ")}`));
    const types = distinct(sites.type);
    parts.push(make("p", "", `Type of the blocks: ${types.length > 3 ? `${types.length} types` : types.join(", ")}`));
    parts.push(...this.releases(members));
    parts.push(...siteScoreParts(this.app, members));
    parts.push(...histogramParts(`Block sizes (${coveredWords(data)})`, bucketSums(data.sizes, members), sizeText));
    parts.push(...histogramParts(`Lifetimes of released blocks (${coveredWords(data)})`, bucketSums(data.lifetimes, members), lifetimeText));
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

  numbers(measures, members) {
    const { data } = this.app;
    const sums = (columns, name) => newAndOld(data, members, columns[name]);
    const sum = (columns, name) => sums(columns, name).fresh;
    const was = (columns) => (data.compared ? `, was ${formatBytes(sums(columns, "bytes").old)}` : "");
    const numbers = make("div", "numbers");
    for (const [name, columns] of measures) {
      numbers.append(make("span", "", name), make("b", "", withError(sum(columns, "bytes"), sum(columns, "variance"))),
        make("span", "", `in ${counted(sum(columns, "blocks"), "block")}${was(columns)}`));
    }
    return numbers;
  }

  /** Who releases the blocks of some sites. */
  releases(members) {
    const { app } = this;
    const { data, state } = app;
    const title = make("h3", "", `Released by (${coveredWords(data)})`);
    if (!data.has_flows) return [title, make("p", "empty", "Not recorded: attach with --stacks all to see who releases these blocks.")];
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
    const seen = Uint32Array.from(keys, (_, row) => row).filter((row) => blocks[row] > 0);
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
