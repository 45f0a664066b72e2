// Histograms of blocks by size and by lifetime. Bucket n holds values of n significant bits.

/** [[bucket, blocks]], ordered, of some sites. */
function bucketSums(histogram, members) {
  const sums = new Float64Array(LARGEST_BUCKET + 1);
  for (let at = 0; at < members.length; at += 1) {
    const site = members[at];
    for (let i = histogram.starts[site]; i < histogram.starts[site + 1]; i += 1) sums[histogram.bucket[i]] += histogram.blocks[i];
  }
  return [...sums.entries()].filter(([, blocks]) => blocks > 0);
}

/** As in other reports: the whole milliseconds in it, since lifetimes are known to those. */
function lifetimeText(bucket) {
  if (bucket === 0) return "less than 1 ms";
  const [first, last] = [Math.ceil(2 ** (bucket - 1) / 1e6), Math.floor((2 ** bucket - 1) / 1e6)];
  return first < last ? `${formatTime(first * 1e6)} to ${formatTime(last * 1e6)}` : formatTime(first * 1e6);
}

const sizeText = (bucket) => (bucket === 0 ? "0 B" : `${bytesLabel(2 ** (bucket - 1))} to ${bytesLabel(2 ** bucket)}`);

/** A title and bars, or nothing without blocks. With `choose`, a bar is a button. */
function histogramParts(title, sums, textOf, choose, isChosen = () => false) {
  if (!sums.length) return [];
  const most = sums.reduce((largest, [, blocks]) => Math.max(largest, blocks), 1);
  const all = sums.reduce((sum, [, blocks]) => sum + blocks, 0);
  const bars = make("ul", "bars");
  for (const [bucket, blocks] of sums) {
    const text = textOf(bucket);
    const bar = make("div", "bar");
    bar.style.width = `${Math.max((100 * blocks) / most, 0.5)}%`;
    const range = choose ? button("plain", text, () => choose(bucket)) : make("span", "", text);
    if (choose) {
      range.setAttribute("aria-pressed", String(isChosen(bucket)));
      range.title = "Only sites that allocated blocks of this size";
    }
    const row = make("li", "", range, make("div", "room", bar), make("span", "", formatCount(blocks)));
    row.title = `${text}: ${counted(blocks, "block")}, ${formatShare(blocks, all)}`;
    bars.append(row);
  }
  return [make("h3", "", title), bars];
}
