// The scores and what stands out, as parts of the panel on the right.

/** A score with the colour of its severity. */
function scoreEntry(name, score, variance, old) {
  const mark = make("i", "mark");
  mark.style.setProperty("--mark", `var(${severityColor(severityOf(score ?? null))})`);
  const was = old === null || old === undefined ? "" : ` was ${formatScore(old)},`;
  const aside = variance === null || variance === undefined ? "" : `${was} variance ${variance.toFixed(3)}`;
  return make("div", "", make("dt", "", mark, name), make("dd", "", formatScore(score), make("small", "", aside)));
}

/** Those of the run, and what follows from them. */
function runScoreParts(app) {
  const { data } = app;
  if (!data.scores) return [];
  const old = data.compared?.scores;
  const list = make("dl", "scores", ...SCORES.map(([name, text]) => scoreEntry(text, data.scores[name], data.scores.variance[name], old && old[name])));
  const note = data.scores.usage === null ? "Usage and useful lifetime need a program that reports its reads and writes (memhook-rs sdk)." : "";
  list.append(...customRunEntries(data));
  return [make("h3", "", "Scores of the run, 0 (worst) to 1 (best)"), list, ...(note ? [make("p", "empty", note)] : []), ...inferenceParts(app, data.inferences)];
}

/** By node of the calls: 1 if one of some sites is there. The last marks are kept: several parts of the panel need them. */
function nodeMarks(data, members) {
  if (data.marked?.members === members) return data.marked.marks;
  const marks = new Uint8Array(data.calls.parent.length);
  for (let at = 0; at < members.length; at += 1) marks[data.sites.node[members[at]]] = 1;
  data.marked = { members, marks };
  return marks;
}

/** Of some sites: how many have scores, the worst of them, and what stands out about any. */
function scoresOf(data, members) {
  if (!data.scores) return null;
  const isMember = nodeMarks(data, members);
  let [count, worst] = [0, -1];
  const isCounted = new Uint8Array(isMember.length);
  for (let at = 0; at < members.length; at += 1) {
    const site = members[at];
    const node = data.sites.node[site];
    if (isCounted[node] || !data.isScored[site]) continue;
    isCounted[node] = 1;
    count += 1;
    if (worst < 0 || Number.isNaN(data.together[worst]) || data.together[site] < data.together[worst]) worst = site;
  }
  return count ? { count, node: data.sites.node[worst], scored: data.scored.get(data.sites.node[worst]), inferences: data.inferences.filter(({ node }) => isMember[node]) } : null;
}

/** The scores of some sites, and what stands out about them. */
function siteScoreParts(app, scores) {
  if (!scores) return [];
  const { count, node, scored, inferences } = scores;
  const title = count > 1 ? `Scores of the worst of ${counted(count, "site")}` : "Scores";
  const list = make("dl", "scores", ...SCORES.map(([name, text]) => scoreEntry(text, scored[name])));
  list.append(...customSiteEntries(app.data, node));
  const about = `${counted(scored.blocks, "block")} in ${counted(scored.groups, "group")}, at most ${formatCount(scored.most)} live at a time`;
  const show = button("", "Show chunks", () => app.setShape("chunks"));
  show.title = "Each block as a row: when it lived, and how large it was (x)";
  return [make("h3", "", title), list, make("p", "empty", about), show, ...inferenceParts(app, inferences, true)];
}

function inferenceParts(app, inferences, isOfPicked = false) {
  if (!inferences.length) return isOfPicked ? [] : [make("p", "empty", "Nothing stands out.")];
  const entry = (inference) => {
    const name = wholeName(siteName(app, inference.node));
    const opener = button("plain name", `${inference.title}: ${boundedName(name)}`, () => app.pickInference(inference.node));
    opener.title = "Pick this site";
    const gain = gainText(inference.gain);
    const parts = [isOfPicked ? make("b", "", inference.title) : opener, make("small", "", inference.evidence)];
    if (inference.advice) parts.push(make("small", "", `To try: ${inference.advice}${gain && `; saves ${gain}`}.`));
    return make("li", "", ...parts);
  };
  const list = app.details.lists.list("inferences", inferences, entry, { key: isOfPicked ? "" : "inferences" });
  return [make("h3", "", `What stands out (${formatCount(inferences.length)})`), list];
}

function gainText(gain) {
  const parts = [];
  if (gain.calls > 0) parts.push(`${formatCount(gain.calls)} calls (${formatCount(gain.calls_per_s)} a second)`);
  if (gain.copied_bytes > 0) parts.push(`up to ${formatBytes(gain.copied_bytes)} copied`);
  if (gain.bytes > 0) parts.push(`${formatBytes(gain.bytes)} of memory`);
  return parts.join(" and ");
}
