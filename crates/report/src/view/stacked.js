// The largest rows over time, one above the other.

/** The keys of the largest sums, in order. */
function largestKeys(sums, most) {
  const found = [];
  for (let key = 0; key < sums.length; key += 1) {
    if (sums[key] <= (found.length < most ? 0 : sums[found[most - 1]])) continue;
    const at = found.findIndex((other) => sums[other] < sums[key]);
    found.splice(at < 0 ? found.length : at, 0, key);
    found.length = Math.min(found.length, most);
  }
  return found;
}

/** [{ key, rank, name, values }], the largest first, all others together last. */
function stackedSeries(app) {
  const { data, state, result, tree } = app;
  const keys = ownKeys(data, tree, state.group);
  const sums = scratch(data, "sums", Float64Array);
  const add = (values) => {
    for (let site = 0; site < data.count; site += 1) if (result.mask[site] && values[site] > 0) sums[keys[site]] += values[site];
  };
  add(result.positive);
  // Nothing may live at the end: then what lived at the peak.
  if (!sums.some((sum) => sum > 0)) add(data.sites.peak[state.unit]);
  const top = largestKeys(sums, SERIES_COLORS);
  const members = [...top, null].map(() => []);
  const rankOf = scratch(data, "ranks", Uint8Array).fill(top.length);
  top.forEach((key, rank) => { rankOf[key] = rank; });
  for (let site = 0; site < data.count; site += 1) if (result.mask[site]) members[rankOf[keys[site]]].push(site);
  const series = members.map((sites, rank) => ({
    key: top[rank] ?? null,
    rank: rank < top.length ? rank : SERIES_COLORS,
    name: rank < top.length ? wholeName(rowName(app, state.group, top[rank])) : "all others",
    values: overTime(data, sites, state.unit),
  }));
  return members[top.length].length ? series : series.slice(0, -1);
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
