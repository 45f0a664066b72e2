// Scores: how well the heap is used, from 0 (worst) to 1 (best), and the colours that say so.

const PAINTS = [["module", "Modules", "Colours by module"], ["score", "Scores", "Colours by severity: how low the scores are"], ["change", "Change", "Colours by change: red is more than in the old run, blue less"]];
const SEVERITIES = 12;
const SCORES = [["lifetime", "Lifetime"], ["usage", "Usage"], ["useful_lifetime", "Useful lifetime"]];
/** How scores are packed: 0 is unknown, and the others are one more than this many parts of one. */
const SCORE_PARTS = 1e9;
/** Nanoseconds of the unit that times of chunks are packed in. */
const CHUNK_TICK_NS = 1000;

function prepareScores(data, column) {
  const node = column("scores.node");
  const starts = startsOf(column("scores.kept"));
  const score = (name, at) => {
    const packed = column(`scores.${name}`)[at];
    return packed > 0 ? (packed - 1) / SCORE_PARTS : null;
  };
  data.scored = new Map();
  for (let at = 0; at < node.length; at += 1) {
    const one = {
      blocks: column("scores.blocks")[at], groups: column("scores.groups")[at], most: column("scores.most")[at],
      chunks: [{ begin: starts[at], end: starts[at + 1], step: column("scores.step")[at] }],
    };
    for (const [name] of SCORES) one[name] = score(name, at);
    const known = data.scored.get(node[at]);
    if (known) joinScores(known, one); else data.scored.set(node[at], one);
  }
  const names = ["start", "lifetime", "size", "live", "access", "wait", "used", "reads", "writes"];
  data.chunks = Object.fromEntries(names.map((name) => [name, column(`chunks.${name}`)]));
  data.inferencesOf = new Map();
  for (const inference of data.inferences) {
    if (!data.inferencesOf.has(inference.node)) data.inferencesOf.set(inference.node, []);
    data.inferencesOf.get(inference.node).push(inference);
  }
  // By site: its scores as one number, NaN if none is known.
  data.together = Float64Array.from(data.sites.node, (of) => together(data.scored.get(of)) ?? NaN);
  data.isScored = Uint8Array.from(data.sites.node, (of) => (data.scored.has(of) ? 1 : 0));
  data.severity = Int8Array.from(data.together, (score) => severityOf(Number.isNaN(score) ? null : score));
}

/** Two call stacks that read the same are one site here: each counts by its blocks. */
function joinScores(known, one) {
  const blocks = known.blocks + one.blocks;
  for (const [name] of SCORES) {
    known[name] = known[name] === null || one[name] === null ? known[name] ?? one[name]
      : (known[name] * known.blocks + one[name] * one.blocks) / blocks;
  }
  known.blocks = blocks;
  known.groups += one.groups;
  known.most += one.most;
  known.chunks.push(...one.chunks);
}

/** The geometric mean of the scores that are known; null if none is. */
function together(scores) {
  if (!scores) return null;
  if (scores.together === undefined) scores.together = meanOf(scores);
  return scores.together;
}

function meanOf(scores) {
  const known = SCORES.map(([name]) => scores[name]).filter((score) => score !== null && score !== undefined);
  return known.length ? Math.exp(sumOf(known.map(Math.log)) / known.length) : null;
}

/** From 0, the best, to 11; -1 if no score is known. */
const severityOf = (score) => (score === null ? -1 : Math.min(Math.floor((1 - score) * SEVERITIES), SEVERITIES - 1));
const severityColor = (severity) => (severity < 0 ? "--module-other" : `--severity-${severity}`);

const formatScore = (score) => (score === null || score === undefined ? "unknown" : score > 0 && score < 0.005 ? score.toExponential(1) : score.toFixed(2));

/** The ways to colour a graph of this run. */
const knownPaints = (data) => [...PAINTS.filter(([name]) => name !== "change" || data.compared), ...customPaints(data)];

/** Made when a graph is coloured by them. */
function severitiesOf(data, result, paint) {
  result.severities ??= {};
  result.severities[paint] ??= severityWeights(severityBySite(data, paint), result.positive);
  return result.severities[paint];
}

/** By site: what it weighs among the scored ones, and its severity times that. */
function severityWeights(severity, values) {
  const weight = new Float64Array(values.length);
  const product = new Float64Array(values.length);
  for (let site = 0; site < values.length; site += 1) {
    if (severity[site] < 0 || values[site] <= 0) continue;
    weight[site] = values[site];
    product[site] = values[site] * severity[site];
  }
  return { weight, product };
}

/** The severity of the sites of a frame together: each counts by what it comes to. */
function severityOfFrame(frame, { weight, product }) {
  const sum = frame.sum(weight);
  return sum > 0 ? Math.round(frame.sum(product) / sum) : -1;
}

function severityLegend(name = "Score", ends = ["1 (best)", "0.5", "0 (worst)"]) {
  const steps = Array.from({ length: SEVERITIES }, (_, severity) => {
    const text = severity === 0 ? ends[0] : severity === SEVERITIES - 1 ? ends[2] : severity === SEVERITIES / 2 ? ends[1] : "";
    const entry = legendEntry(severityColor(severity), text);
    if (name === "Score") entry.title = `Scores from ${(1 - (severity + 1) / SEVERITIES).toFixed(2)} to ${(1 - severity / SEVERITIES).toFixed(2)}`;
    return entry;
  });
  return [make("li", "", `${name}:`), ...steps, legendEntry("--module-other", "not known")];
}
