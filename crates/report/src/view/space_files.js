// The addresses as files: a picture (SVG), and a line for each cell (CSV).

/** No file has more cells than this. */
const MOST_SAVED_CELLS = 100_000;

/** All cells, also those that are not on the screen, with what they are called. Neighbours that look the same are one. */
function spaceSvg(view) {
  const { height, width, wide, size } = view.layout();
  const parts = [];
  let saved = 0;
  let run = null;
  const text = (words, x, y, pixels) => parts.push(`<text x="${x.toFixed(1)}" y="${y}" font-size="${pixels}">${xmlText(words)}</text>`);
  const end = () => {
    if (!run) return;
    parts.push(`<g><title>${xmlText(run.title)}</title><rect x="${run.x.toFixed(1)}" y="${run.y}" width="${Math.max(run.wide - 1, 1).toFixed(1)}" height="${CELL_ROW - 1}" ${run.state === "free" ? "fill=\"none\" stroke" : "fill"}="${css(run.color)}" fill-opacity="${run.alpha.toFixed(2)}"/></g>`);
    run = null;
  };
  view.eachBetween(0, height, {
    far: (row, y) => { end(); text(view.farText(row), 4, y + 11, 10); },
    row: ({ first, y }) => { end(); text(addressText(first * size), 4, y + 10, 11); },
    fold: (x, y) => { end(); text("\u2026", x + wide / 2, y + 8, 11); },
    cell: (cell, x, y) => {
      saved += 1;
      if (saved > MOST_SAVED_CELLS) return;
      const look = view.look(cell, view.about(cell));
      if (run && look.state !== "live" && run.state === look.state) run.wide += wide;
      else {
        end();
        run = { ...look, x, y, wide, title: view.describe(cell).join("\n") };
      }
    },
  });
  end();
  return `<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http:${"//"}www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="monospace">\n<rect width="100%" height="100%" fill="${css("--card")}"/>\n<g fill="${css("--text")}">\n${parts.join("\n")}\n</g>\n</svg>\n`;
}

/** The cells in which something lives. */
function spaceCsv(view) {
  const { app } = view;
  const { size, used } = view.layout();
  const lines = [["address", "cell_bytes", "live_bytes", "live_percent", "blocks", "oldest_ms", "site", "site_bytes", "sites"]];
  for (const [first, last] of used) {
    for (let cell = first; cell <= last && lines.length <= MOST_SAVED_CELLS; cell += 1) {
      const found = view.about(cell);
      if (!(found.marked > 0 || found.blocks > 0)) continue;
      const [[node, most]] = view.largest(found);
      const oldest = Math.round(Math.max(view.ns / 1e6 - found.oldest, 0));
      lines.push([addressText(cell * size), size, Math.round(found.marked), ((100 * found.marked) / size).toFixed(3), found.blocks, oldest,
        siteName(app, node).name, Math.round(most.bytes), found.sites.size]);
    }
  }
  return `${lines.map((fields) => fields.map(csvField).join(",")).join("\r\n")}\r\n`;
}
