// The rows of the table as a file for spreadsheets (RFC 4180).

/** A field. Names come from the target: a spreadsheet would take one that begins with = or + for a formula. */
function csvField(value) {
  const text = String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}

function csvText(app, rows) {
  const { data, state, result, hidden } = app;
  const { group, unit, measure } = state;
  const other = unit === "bytes" ? "blocks" : "bytes";
  const isSite = group === "site";
  const isValue = isCustom(measure);
  const customs = isSite ? customScores(data) : [];
  const hasSelf = !isPartition(group);
  const isTwice = measure === "growth" && !data.compared;
  const head = [
    group, ...(isSite ? ["file", "line", "module", "callers"] : []), isValue ? customName(measure) : `${measure}_${unit}`, "share_percent",
    ...(hasSelf ? [isValue ? "self" : `self_${unit}`] : []), ...(isValue ? [] : [`${measure}_${other}`]), ...(isTwice ? [] : [`${data.compared ? "change" : "growth"}_${unit}`]),
    ...(data.is_searched ? [`unreachable_${unit}`] : []), ...(data.is_timed ? ["alloc_ns"] : []),
    ...(isSite && data.scores ? ["lifetime_score"] : []),
    ...customs.map(([, name]) => name),
  ];
  const lines = rows.map((row) => {
    const { name, callers, frame, aside } = rowName(app, group, row.key);
    const place = frame < 0 ? ["", "", "", ""]
      : [data.strings[data.frames.file[frame]], data.frames.line[frame] || "", data.strings[data.frames.module[frame]], callers.join(" < ")];
    const whole = result.whole[unit];
    return [
      name + aside, ...(isSite ? place : []), row.value, whole > 0 ? ((100 * row.value) / whole).toFixed(3) : "",
      ...(hasSelf ? [row.self] : []), ...(isValue ? [] : [row.other]), ...(isTwice ? [] : [row.growth]), ...(data.is_searched ? [row.lost] : []),
      ...(data.is_timed ? [Math.round(row.took)] : []),
      ...(isSite && data.scores ? [data.scored.get(row.key)?.lifetime?.toFixed(6) ?? ""] : []),
      ...customs.map(([key]) => (Number.isNaN(row[key]) ? "" : row[key])),
    ];
  });
  return `${[head, ...lines].map((fields) => fields.map(csvField).join(",")).join("\r\n")}\r\n`;
}

function saveCsv(app, rows) {
  save(app, csvText(app, rows), "text/csv", `${app.state.group}s.csv`);
}
