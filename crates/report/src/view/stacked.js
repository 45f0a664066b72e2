// The largest rows over time, one above the other.

/** The rows with the largest sums, in order. */
function largestRows(sums, most) {
  const found = [];
  for (let row = 0; row < sums.length; row += 1) {
    if (sums[row] <= (found.length < most ? 0 : sums[found[most - 1]])) continue;
    const at = found.findIndex((other) => sums[other] < sums[row]);
    found.splice(at < 0 ? found.length : at, 0, row);
    found.length = Math.min(found.length, most);
  }
  return found;
}

/** [{ key, rank, name, values }], the largest first, all others together last. */
function stackedSeries(app) {
  const { data, state, result, tree } = app;
  const { keys, rowOf } = ownRows(data, tree, state.group);
  const sums = new Float64Array(keys.length);
  const add = (values) => {
    for (let site = 0; site < data.count; site += 1) if (result.mask[site] && values[site] > 0) sums[rowOf[site]] += values[site];
  };
  add(result.positive);
  // Nothing may live at the end: then what lived at the peak.
  if (!sums.some((sum) => sum > 0)) add(data.sites.peak[state.unit]);
  const largest = largestRows(sums, SERIES_COLORS);
  const top = largest.map((row) => keys[row]);
  const rankOf = new Uint8Array(keys.length).fill(top.length);
  largest.forEach((row, rank) => { rankOf[row] = rank; });
  const lives = [...top, null].map(() => new OverTime(data, state.unit));
  let hasOthers = false;
  for (let site = 0; site < data.count; site += 1) {
    if (!result.mask[site]) continue;
    const rank = rankOf[rowOf[site]];
    lives[rank].add(site);
    if (rank === top.length) hasOthers = true;
  }
  const series = lives.map((live, rank) => ({
    key: top[rank] ?? null,
    rank: rank < top.length ? rank : SERIES_COLORS,
    name: rank < top.length ? wholeName(rowName(app, state.group, top[rank])) : "all others",
    values: live.values(),
  }));
  return hasOthers ? series : series.slice(0, -1);
}

/** Draws the series on a plot; `x` and `y` turn times and amounts into pixels. */
function drawStacked(context, series, times, x, y) {
  const base = new Float64Array(times.length);
  for (const { values, rank } of series) {
    context.beginPath();
    for (let i = 0; i < times.length; i += 1) context.lineTo(x(times[i]), y(base[i]));
    for (let i = times.length - 1; i >= 0; i -= 1) {
      base[i] += values[i];
      context.lineTo(x(times[i]), y(base[i]));
    }
    context.closePath();
    context.fillStyle = css(seriesColor(rank));
    context.fill();
    // A line between neighbours helps where colours do not.
    context.strokeStyle = css("--card");
    context.lineWidth = 0.7;
    context.stroke();
  }
  context.lineWidth = 1;
}

/** The series that is drawn at a point and an amount. */
function seriesAt(series, point, amount) {
  let base = 0;
  for (const one of series) {
    base += one.values[point];
    if (amount < base) return one;
  }
  return null;
}
