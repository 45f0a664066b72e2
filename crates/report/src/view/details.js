// The panel on the right: what was picked, its numbers, its stack with source lines.

class DetailsView {
  constructor(data, hueOf) {
    this.data = data;
    this.hueOf = hueOf;
    this.box = byId("details");
    this.empty();
  }

  empty() {
    const legend = this.data.modules.map((module) => {
      const swatch = make("i", "swatch");
      swatch.style.background = `hsl(${this.hueOf(module)} 60% 62%)`;
      return make("li", "", swatch, this.data.strings[module]);
    });
    this.box.replaceChildren(
      make("p", "empty", "Pick a row or a frame to see its numbers, its call stack and its source."),
      make("h3", "", "Modules"), make("ul", "legend", ...legend),
    );
  }

  /** Some sites together; the frames are those of the stack that is shown, innermost first. */
  show(title, members, frames, selection, result) {
    const { sites } = this.data;
    const sum = (columns, name) => members.reduce((all, site) => all + columns[name][site], 0);
    const amount = (columns) => withError(sum(columns, "bytes"), sum(columns, "variance"));
    const numbers = make("div", "numbers");
    for (const name of ["live", "peak", "allocated", "released", "temporary"]) {
      numbers.append(make("span", "", name), make("b", "", amount(sites[name])),
        make("span", "", `in ${countedBlocks(sum(sites[name], "blocks"))}`));
    }
    const window = [];
    if (!isWhole(this.data, selection)) {
      const { measure } = selection;
      const shown = make("div", "numbers");
      shown.append(make("span", "", measure), make("b", "", amount(result.amounts)),
        make("span", "", `in ${countedBlocks(sum(result.amounts, "blocks"))}`));
      window.push(make("h3", "", "Window"), shown);
    }
    const distinct = (columns) => [...new Set(members.map((site) => this.data.strings[columns[site]]))];
    const kinds = distinct(sites.kind).join(", ");
    const threads = distinct(sites.thread);
    const parts = [
      make("h2", "", title), ...window, make("h3", "", "Whole run"), numbers,
      make("h3", "", "Allocated by"),
      make("p", "", `${kinds}, on ${threads.length > 3 ? `${threads.length} threads` : threads.join(", ")}`),
    ];
    if (frames.length) {
      const cut = members.length && sites.truncated[members[0]];
      parts.push(make("h3", "", "Call stack, innermost first"), this.stack(frames));
      if (cut) parts.push(make("p", "empty", "The stack goes on, but could not be followed."));
    }
    parts.push(...this.histogram("Block sizes", members, sites.sizes, formatBytes));
    parts.push(...this.histogram("Lifetimes of released blocks", members, sites.lifetimes, formatTime));
    parts.push(...this.releases(members, selection));
    this.box.replaceChildren(...parts);
  }

  stack(frames) {
    const { strings, frames: columns } = this.data;
    const list = make("ol", "stack");
    let opened = false;
    let folded = null;
    for (const frame of frames) {
      // What the C++ library does between two functions is one line until somebody wants it.
      const isFolded = PLUMBING.test(strings[columns.function[frame]]);
      if (isFolded && !folded) {
        const [members, line] = [[], make("li", "folded")];
        folded = { members, line };
        line.onclick = () => line.replaceWith(...members);
        list.append(line);
      }
      const file = strings[columns.file[frame]];
      const line = columns.line[frame];
      const place = file ? `${file.split("/").slice(-2).join("/")}${line ? `:${line}` : ""}` : "";
      const module = strings[columns.module[frame]];
      const note = [place, module, columns.inlined[frame] ? "inlined" : ""].filter(Boolean).join("  ");
      const item = make("li", "", make("code", "", strings[columns.function[frame]]), make("small", "", note));
      const source = this.source(file, line);
      if (source) {
        item.append(source);
        // The innermost that is not the library's.
        source.hidden = opened || isFolded || file.startsWith("/usr/include");
        opened ||= !source.hidden;
        item.onclick = () => { source.hidden = !source.hidden; };
        item.title = "Click for the source";
      }
      item.classList.toggle("here", Boolean(source && !source.hidden));
      if (isFolded) {
        folded.members.push(item);
        folded.line.textContent = `${folded.members.length} of the C++ library`;
      } else {
        folded = null;
        list.append(item);
      }
    }
    return list;
  }

  source(file, line) {
    const known = this.data.sourceOf.get(file) || [];
    const found = known.find((s) => line >= s.first && line < s.first + s.lines.length);
    if (!line || !found) return null;
    const from = Math.max(line - 4, found.first);
    const to = Math.min(line + 4, found.first + found.lines.length - 1);
    const pre = make("pre", "source");
    for (let n = from; n <= to; n += 1) {
      pre.append(make("span", n === line ? "here" : "", make("i", "", String(n)), found.lines[n - found.first]));
    }
    return pre;
  }

  /** Bucket n holds values of n significant bits. */
  histogram(title, members, columns, format) {
    const sums = new Map();
    for (const site of members) {
      for (const [bucket, blocks] of columns[site]) sums.set(bucket, (sums.get(bucket) || 0) + blocks);
    }
    if (!sums.size) return [];
    const most = Math.max(...sums.values());
    const bars = make("div", "bars");
    for (const [bucket, blocks] of [...sums].sort((a, b) => a[0] - b[0])) {
      const bar = make("div", "");
      bar.style.width = `${(100 * blocks) / most}%`;
      const range = bucket === 0 ? format(0) : `${format(2 ** (bucket - 1))} to ${format(2 ** bucket)}`;
      bars.append(make("span", "", range), bar, make("span", "", formatCount(blocks)));
    }
    return [make("h3", "", title), bars];
  }

  releases(members, selection) {
    const stacks = new Set(members.map((site) => this.data.sites.stack[site]));
    const unit = selection.unit === "bytes" ? 3 : 2;
    const flows = this.data.flows.filter((flow) => stacks.has(flow[0])).sort((a, b) => b[unit] - a[unit]).slice(0, 5);
    if (!flows.length) return [];
    const { strings, frames, stacks: all } = this.data;
    const list = make("ol", "stack");
    for (const [, released, blocks, bytes, variance] of flows) {
      const names = all[released].slice(0, 3).map((f) => strings[frames.function[f]]);
      list.append(make("li", "", make("code", "", names.join(" \u2190 ") || "(no call stack)"),
        make("small", "", `${withError(bytes, variance)} in ${countedBlocks(blocks)}`)));
    }
    return [make("h3", "", "Released by"), list];
  }
}
