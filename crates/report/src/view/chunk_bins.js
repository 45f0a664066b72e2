// Chunks as rows of a picture. Where a pixel is less high than a chunk's row would be, several share a row.

/** The chunks of some scored sites by the time of their allocation: { order, step, most, least }. */
function chunksOf(data, scored) {
  const ranges = scored.flatMap((one) => one.chunks).filter(({ begin, end }) => end > begin);
  const count = ranges.reduce((sum, { begin, end }) => sum + end - begin, 0);
  const order = new Uint32Array(count);
  let at = 0;
  for (const { begin, end } of ranges) for (let i = begin; i < end; i += 1) order[at++] = i;
  const { start, size } = data.chunks;
  if (ranges.length > 1) sortByStart(order, start);
  let [least, most] = [Infinity, 0];
  for (const i of order) {
    least = Math.min(least, size[i]);
    most = Math.max(most, size[i]);
  }
  return { order, step: ranges.reduce((most, { step }) => Math.max(most, step), 1), least, most };
}

/** Sorts by start. Numbers are sorted several times as fast as by a function: each has its index in its last digits. */
function sortByStart(order, start) {
  const count = order.length;
  const last = order.reduce((most, i) => Math.max(most, start[i]), 0);
  const step = Math.max(Math.ceil(((last + 1) * count) / Number.MAX_SAFE_INTEGER), 1);
  const keys = Float64Array.from(order, (i, k) => Math.floor(start[i] / step) * count + k).sort();
  const unsorted = order.slice();
  keys.forEach((key, k) => { order[k] = unsorted[key % count]; });
}

/** What is known of a chunk's accesses. */
const ACCESS = { unknown: 0, none: 1, severalThreads: 3 };

/** When a chunk was first and last accessed; null if that is not known, or never. */
function accessTimes(data, chunk) {
  const { start, access, wait, used } = data.chunks;
  if (access[chunk] <= ACCESS.none) return null;
  const first = start[chunk] + wait[chunk];
  return { first, last: first + used[chunk] };
}

/** What was read and written of a chunk, in words; nothing if that is not known. */
function accessLines(data, chunk) {
  const { start, lifetime, access, reads, writes } = data.chunks;
  if (access[chunk] === ACCESS.unknown) return [];
  if (access[chunk] === ACCESS.none) return ["never read or written"];
  const { first, last } = accessTimes(data, chunk);
  const time = (ticks) => (ticks > 0 ? formatTime(ticks * CHUNK_TICK_NS) : "less than 1 \u00b5s");
  const threads = access[chunk] === ACCESS.severalThreads ? "several threads" : "one thread";
  return [
    `${counted(reads[chunk], "read")} and ${counted(writes[chunk], "write")} by ${threads}`,
    `first used after ${time(first - start[chunk])}, not used in the last ${time(start[chunk] + lifetime[chunk] - last)}`,
  ];
}

/** Those of them that are there at some time from one moment to another. */
function chunksWithin(data, order, fromTick, toTick) {
  const { start, lifetime } = data.chunks;
  return order.filter((i) => start[i] <= toTick && start[i] + lifetime[i] >= fromTick);
}

/** Rows from one to another, of which each has this many chunks: when they begin and end, their sizes, how many. */
function chunkRows(data, order, first, last, perRow) {
  const { start, lifetime, size } = data.chunks;
  const rows = [];
  for (let row = first; row < last; row += 1) {
    const begin = Math.round(row * perRow);
    const end = Math.min(Math.max(Math.round((row + 1) * perRow), begin + 1), order.length);
    if (begin >= end) break;
    let [from, to, bytes, lives] = [Infinity, 0, 0, 0];
    for (let k = begin; k < end; k += 1) {
      const i = order[k];
      from = Math.min(from, start[i]);
      to = Math.max(to, start[i] + lifetime[i]);
      bytes += size[i];
      lives += lifetime[i];
    }
    const count = end - begin;
    rows.push({ row, begin, count, from, to, size: bytes / count, lifetime: lives / count });
  }
  return rows;
}
