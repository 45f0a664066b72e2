// Keys of the whole page. What has the focus (a graph, the table) sees them first.

const nextOf = (list, current) => list[(list.findIndex(([name]) => name === current) + 1) % list.length][0];

function bindKeys(app) {
  const { state, table } = app;
  const keys = {
    b: () => app.update({ unit: nextOf(UNITS, state.unit) }),
    f: () => app.setShape(nextOf(SHAPES.filter(([name]) => hasShape(app.data, name)), state.shape)),
    g: () => app.setGroup(nextOf(GROUPS, state.group)),
    c: () => app.update({ chart: nextOf(CHARTS, state.chart) }),
    w: () => app.setWrappers(!state.hides, state.wrappers),
    s: () => app.setShape("sandwich"),
    x: () => app.setShape("chunks"),
    a: () => app.setShape("space"),
    p: () => app.setPaint(nextOf(knownPaints(app.data).filter(([name]) => name !== "score" || app.data.scores), state.paint)),
    o: () => app.update({ only: !state.only }),
    t: () => app.toggleTheme(),
    e: () => app.update({ large: state.large ? "" : "graph" }),
    j: () => table.move(1),
    k: () => table.move(-1),
    ArrowDown: () => table.move(1),
    ArrowUp: () => table.move(-1),
    "[": () => app.shift(-1, 0),
    "]": () => app.shift(1, 0),
    "-": () => app.shift(0, 1),
    "+": () => app.shift(0, -1),
    "=": () => app.shift(0, -1),
    "/": () => byId("search").focus(),
    "?": () => byId("keys").showModal(),
    Escape: () => app.stepBack(),
  };
  knownMeasures(app.data).forEach(([name], i) => { keys[i + 1] = () => app.setMeasure(name); });
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const isTyping = event.target.matches("input, select, textarea");
    if (isTyping && event.key === "Escape") {
      // Not what the browser does: to empty the field.
      event.preventDefault();
      event.target.blur();
    }
    if (isTyping) return;
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
