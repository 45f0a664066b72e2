// Scores by formulas of users: of any size, the larger the worse. They are columns of the table of sites, colours, and
// measures: frames are then as wide as the sum over their sites.

/** The name of a score as a column, a colour or a measure is this and its own. */
const CUSTOM = "score:";
const isCustom = (name) => name.startsWith(CUSTOM);
const customName = (name) => name.slice(CUSTOM.length);

/** The scores, each as [key, name, title]. */
const customScores = (data) => data.custom.map(({ name, formula }) => [`${CUSTOM}${name}`, name, `${name} = ${formula}`]);
const customMeasures = (data) => (data.compared ? [] : customScores(data).map(([key, name, title]) => [key, name, `${title}: the sum over sites, in ${coveredWords(data)}`]));
const customPaints = (data) => customScores(data).map(([key, name, title]) => [key, name, `Colours by ${title}: the larger among the sites, the darker`]);

/** Doubles that are packed as two numbers of 32 bits; NaN is what has no value. */
function unpackDoubles(high, low) {
  const bits = new Int32Array(2 * high.length);
  for (let i = 0; i < high.length; i += 1) [bits[2 * i], bits[2 * i + 1]] = [low[i], high[i]];
  return new Float64Array(bits.buffer);
}

/** By score: `ofNode`, and by site `values`, the part of its node's value that its blocks make up, and `severity`. */
function prepareCustom(data, column) {
  const node = column("scores.node");
  const values = unpackDoubles(column("custom.high"), column("custom.low"));
  const { sites } = data;
  // A call stack on several threads is several sites.
  const blocks = new Map();
  for (let site = 0; site < data.count; site += 1) blocks.set(sites.node[site], (blocks.get(sites.node[site]) ?? 0) + sites.allocated.blocks[site]);
  data.customOf = new Map(data.custom.map(({ name }, at) => {
    const ofNode = new Map();
    for (let i = 0; i < node.length; i += 1) {
      const value = values[at * node.length + i];
      if (!Number.isNaN(value)) ofNode.set(node[i], value);
    }
    const isNew = (site) => !isOldSite(data, site);
    const known = (site) => (isNew(site) ? ofNode.get(sites.node[site]) : undefined);
    const severityOfValue = rankSeverity([...ofNode.values()]);
    const part = (site) => {
      const all = blocks.get(sites.node[site]);
      return all > 0 ? sites.allocated.blocks[site] / all : 0;
    };
    return [`${CUSTOM}${name}`, {
      ofNode, severityOfValue,
      values: Float64Array.from(sites.node, (_, site) => (known(site) ?? 0) * part(site)),
      severity: Int8Array.from(sites.node, (_, site) => severityOfValue(known(site))),
    }];
  }));
}

/** From a value to its severity among all: the smallest have the first, and the largest alone the last. */
function rankSeverity(values) {
  const order = Float64Array.from(values).sort();
  const steps = Math.max(order.length - 1, 1);
  return (value) => {
    if (value === undefined) return -1;
    let [begin, end] = [0, order.length];
    while (begin < end) {
      const middle = (begin + end) >> 1;
      if (order[middle] < value) begin = middle + 1; else end = middle;
    }
    return Math.round(((SEVERITIES - 1) * begin) / steps);
  };
}

/** By site. */
const severityBySite = (data, paint) => (isCustom(paint) ? data.customOf.get(paint).severity : data.severity);

/** A value with three digits behind the point at most, as text.rs has it. */
function formatValue(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 0.001)) return value.toExponential(3);
  const [whole, part = ""] = size.toFixed(3).replace(/\.?0+$/, "").split(".");
  return `${value < 0 ? "-" : ""}${formatCount(Number(whole))}${part && `.${part}`}`;
}

/** What a measure comes to, as text. */
const formatShown = (value, { measure, unit }) => (isCustom(measure) ? formatValue(value) : formatAmount(value, unit));

/** By row of sites, for columns of the table. */
const customSums = (data, keys) => Object.fromEntries([...data.customOf].map(([key, { ofNode }]) => [key, Float64Array.from(keys, (node) => ofNode.get(node) ?? NaN)]));

/** A column in which what has no value comes last, whatever the order. */
const knownFirst = (column, isAscending) => column.map((value) => (Number.isNaN(value) ? (isAscending ? Infinity : -Infinity) : value));

/** The scores of the run as entries of the panel. */
function customRunEntries(data) {
  return data.custom.map(({ name, formula, sum, mean, known_sites: known }, at) => {
    const old = data.compared?.custom?.[at];
    const was = old ? `, was ${formatValue(old.sum)}` : "";
    const about = make("small", "", `${was} in all, ${formatValue(mean)} a site on average, of ${counted(known, "site")}`);
    const entry = make("div", "", make("dt", "", name), make("dd", "", formatValue(sum), about));
    entry.title = `${name} = ${formula}`;
    return entry;
  });
}

/** The scores of a site as entries of the panel. */
function customSiteEntries(data, node) {
  return customScores(data).map(([key, name, title]) => {
    const { ofNode, severityOfValue } = data.customOf.get(key);
    const mark = make("i", "mark");
    mark.style.setProperty("--mark", `var(${severityColor(severityOfValue(ofNode.get(node)))})`);
    const entry = make("div", "", make("dt", "", mark, name), make("dd", "", formatValue(ofNode.get(node))));
    entry.title = title;
    return entry;
  });
}
