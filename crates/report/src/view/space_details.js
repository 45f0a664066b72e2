// The panel on the right beside the addresses: a cell, or what is known of them at all.

const FIRST_CELL_SITES = 12;

/** A cell that was picked. */
function cellParts(app, cell) {
  const { space } = app;
  const { size } = space.known;
  const found = space.about(cell);
  const { state } = space.look(cell, found);
  const pages = size / PAGE_BYTES;
  const parts = [make("h2", "", space.rangeText(cell)), make("p", "empty", `${counted(pages, "page")}, at ${formatTime(space.ns)}`)];
  if (state !== "live") return [...parts, make("p", "", space.describe(cell)[1])];
  const numbers = make("div", "numbers");
  const line = (name, value, aside) => numbers.append(make("span", "", name), make("b", "", value), make("span", "", aside));
  line("live", formatBytes(found.marked), formatShare(found.marked, size));
  if (found.bytes > found.marked) line("others", formatBytes(found.bytes - found.marked), formatShare(found.bytes - found.marked, size));
  line("not live", formatBytes(Math.max(size - found.bytes, 0)), "free, headers, or not the heap's");
  line("blocks", formatCount(found.blocks), "begin here");
  line("oldest", space.ageText(found), "old");
  const entry = ([node, { bytes, blocks }]) => {
    const { name, callers } = siteName(app, node);
    const pick = button("plain name", [name, ...callers.slice(0, 2)].join(" \u2190 "), () => app.pickInference(node));
    pick.title = "Show this site";
    return make("li", "", pick, make("small", "", `${formatBytes(bytes)} in ${counted(blocks, "block")}`));
  };
  const list = app.details.lists.list("stack", space.largest(found), entry, { first: FIRST_CELL_SITES, isSeen: true });
  return [...parts, numbers, make("h3", "", "Allocated by"), list];
}

/** What the recording shows of addresses, and what it lacks. */
function spaceParts(app) {
  const { data, space } = app;
  const { moments } = data.space;
  const at = data.resident.reduce((best, point) => (!best || Math.abs(point.time_ms * 1e6 - space.ns) < Math.abs(best.time_ms * 1e6 - space.ns) ? point : best), null);
  const times = moments.map(({ ns }) => formatTime(ns));
  const lines = [
    `The recording's blocks are placed at ${counted(moments.length, "moment")} (${times.join(", ")}); the one nearest to the end of the window is shown.`,
    "Blocks from before the attach are not known. What is not live is free, the allocator's own, or no part of the heap: a recording does not tell which.",
    at ? `Of the whole process, ${formatBytes(at.anonymous_bytes + at.file_bytes + at.shared_bytes)} were resident then. Which pages these are is not in the recording.`
      : "Which pages are resident is not in the recording.",
  ];
  if (data.is_sampled) lines.unshift("Allocations were sampled: only the samples are shown, and what looks free need not be.");
  const parts = [make("h3", "", "Addresses"), ...lines.map((line) => make("p", "empty", line))];
  if (data.arenas.length) {
    const entry = ({ address, resident_bytes: resident, live_bytes: live }) => {
      const name = address !== data.arenas[0].address ? `arena at ${addressText(address)}` : "main arena";
      return make("li", "", make("span", "name", name), make("small", "", `${formatBytes(resident)} resident, ${formatBytes(live)} of it live`));
    };
    const list = app.details.lists.list("stack", data.arenas, entry, { key: "arenas" });
    parts.push(make("h3", "", "Arenas of malloc at the end, by the account of attach --rss"), list);
  }
  return parts;
}
