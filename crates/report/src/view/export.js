// What the graph shows as a file: a picture (SVG), or lines for other programs (folded stacks).

function xmlText(text) {
  // Names come from the target, and XML has no way to write control characters.
  return text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`).replace(/[^\t\n\r\x20-\ud7ff\ue000-\ufffd]/g, "\ufffd");
}

/** The frames that are drawn, each label cut off at its frame, however wide the font of the reader is, with their colours and whole names. */
function svgText(flame) {
  const width = flame.canvas.clientWidth;
  const height = flame.canvas.clientHeight;
  const rects = flame.drawn.map(({ frame, x, y, width: wide }) => {
    const text = flame.text(frame);
    const room = Math.floor((wide - 8) / 7.3);
    const label = room < 3 ? "" : `<svg x="${x.toFixed(1)}" y="${y}" width="${(wide - 2).toFixed(1)}" height="${ROW}"><text x="4" y="14">${xmlText(fittingName(text, room))}</text></svg>`;
    return `<g><title>${xmlText(`${text}: ${flame.amountText(frame)}`)}</title><rect x="${x.toFixed(1)}" y="${y}" width="${Math.max(wide - 0.6, 0.4).toFixed(1)}" height="${ROW - 1}" fill="${css(flame.colorOf(frame))}"/>${label}</g>`;
  });
  return `<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http:${"//"}www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="monospace" font-size="12">\n<rect width="100%" height="100%" fill="${css("--card")}"/>\n<g fill="${css("--text")}">\n${rects.join("\n")}\n</g>\n</svg>\n`;
}

/** One line a stack: its functions from the root on, and what it comes to under the measure and the filters. */
function foldedText(app) {
  const { data, tree, result } = app;
  const sums = new Map();
  for (let site = 0; site < data.count; site += 1) {
    if (result.positive[site] > 0) sums.set(tree.leaf[site], (sums.get(tree.leaf[site]) || 0) + result.positive[site]);
  }
  const lines = [...sums].map(([leaf, value]) => {
    const names = [];
    // The format separates functions by semicolons, and the value by a space, the last one of the line.
    for (let at = leaf; at > 0; at = tree.parent[at]) names.push(labelText(data, tree.label[at]).replace(/;/g, ":").replace(/\s+/g, " "));
    return `${names.reverse().join(";")} ${Math.round(value)}`;
  });
  return `${lines.sort().join("\n")}\n`;
}

function save(app, text, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = `${app.data.name.replace(/[^\w.-]/g, "_")}-${app.data.pid}-${name}`;
  link.click();
  // The download has begun by then.
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
