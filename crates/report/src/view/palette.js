// Colours that people with any colour vision can tell apart, each with a
// name in a legend beside it. The style sheet has one set for light and one for dark pages.

const MODULE_COLORS = 6;
const SERIES_COLORS = 7;

/** The variable that a module's frames are coloured with. Modules beyond the first few share grey. */
function moduleColor(data, module) {
  const rank = data.moduleRank.get(module);
  return rank === undefined || rank >= MODULE_COLORS ? "--module-other" : `--module-${rank}`;
}

const seriesColor = (rank) => (rank >= SERIES_COLORS ? "--series-other" : `--series-${rank}`);

function legendEntry(color, text, shape = "block") {
  const mark = make("i", `mark ${shape}`);
  mark.style.setProperty("--mark", `var(${color})`);
  return make("li", "", mark, text);
}

/** The modules that have a colour, and what grey is. */
function moduleLegend(data) {
  const entries = data.modules.slice(0, MODULE_COLORS).map((module, rank) => legendEntry(`--module-${rank}`, data.strings[module]));
  if (data.modules.length > MODULE_COLORS) entries.push(legendEntry("--module-other", `${data.modules.length - MODULE_COLORS} other modules`));
  return entries;
}
