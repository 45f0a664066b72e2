// A page of two runs: the sites of the old one come after those of the new one. Frames are as wide as both together, and
// coloured by what has changed: red is more, blue is less.

const CHANGES = 9;
const isOldSite = (data, site) => Boolean(data.compared) && site >= data.compared.first_site;

/** Where the axis of time ends: both runs begin at its begin. */
const axisEnd = (data) => Math.max(data.to_ns, data.from_ns + (data.compared?.timeline.at(-1)?.after_ns ?? 0));

/** The point of the old run that is as long after its begin; undefined where it had ended. */
const oldPointAt = (data, ns) => data.compared?.timeline.find((point) => data.from_ns + point.after_ns >= ns);

/** What some sites come to in the new run and in the old one. */
function newAndOld(data, members, values) {
  const firstOld = data.compared ? data.compared.first_site : Infinity;
  let [fresh, old] = [0, 0];
  for (let at = 0; at < members.length; at += 1) {
    const site = members[at];
    if (site < firstOld) fresh += values[site]; else old += values[site];
  }
  return { fresh, old };
}

/** The same of a frame: values are those of `byRun`. */
const frameNewAndOld = (frame, { fresh, old }) => ({ fresh: frame.sum(fresh), old: frame.sum(old) });

/** By run: the values of its sites, and 0 for those of the other one. */
function byRun(data, values) {
  return { fresh: values.map((value, site) => (isOldSite(data, site) ? 0 : value)), old: values.map((value, site) => (isOldSite(data, site) ? value : 0)) };
}

/** From 0, which is only in the old run, over 4, unchanged, to 8, which is only in the new one. */
function changeStep({ fresh, old }) {
  const both = fresh + old;
  return both > 0 ? Math.round(((fresh - old) / both + 1) * ((CHANGES - 1) / 2)) : (CHANGES - 1) / 2;
}

function changeLegend(data) {
  const texts = { 0: `only in ${data.compared.name} (old)`, 4: "the same", 8: "only in the new run" };
  const steps = Array.from({ length: CHANGES }, (_, step) => legendEntry(`--change-${step}`, texts[step] ?? ""));
  return [make("li", "", "Less or more:"), ...steps];
}

/** `10 B, was 20 B`. */
function changeText({ fresh, old }, unit) {
  return `${formatAmount(fresh, unit)}, was ${formatAmount(old, unit)} (${formatChange(fresh - old, (n) => formatAmount(n, unit))})`;
}
