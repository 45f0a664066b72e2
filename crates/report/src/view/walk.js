// A graph by keyboard: arrows go to the frame that is drawn there, Enter zooms, Escape goes back.

/** The place next to another one on the screen, or undefined. */
function neighbour(drawn, from, key) {
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const sign = key === "ArrowLeft" ? -1 : 1;
    const beside = drawn.filter(({ y, x }) => y === from.y && (x - from.x) * sign > 0);
    return beside.reduce((best, place) => (!best || (place.x - best.x) * sign < 0 ? place : best), undefined);
  }
  const y = from.y + (key === "ArrowUp" ? -ROW : ROW);
  const overlap = (place) => Math.min(place.x + place.width, from.x + from.width) - Math.max(place.x, from.x);
  const inRow = drawn.filter((place) => place.y === y && overlap(place) > 0);
  return inRow.reduce((best, place) => (!best || overlap(place) > overlap(best) ? place : best), undefined);
}

function walk(flame, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !flame.drawn.length) return;
  const from = flame.cursorPlace();
  if (/^Arrow/.test(event.key)) {
    const next = neighbour(flame.drawn, from, event.key);
    if (next) moveTo(flame, next);
  } else if (event.key === "Home") {
    moveTo(flame, flame.drawn.find(({ frame }) => frame === flame.root));
  } else if (event.key === "Enter" || event.key === " ") {
    const path = pathTo(from.frame);
    flame.open(from.frame);
    flame.app.refreshNow();
    if (flame.root && flame.app.state.shape !== "sandwich") flame.cursor = frameAt(flame.root, path);
    flame.draw();
  } else if (event.key === "Escape" && flame.top !== flame.root) {
    flame.app.zoomTo(pathTo(flame.top.parent), null);
  } else {
    return;
  }
  event.preventDefault();
  event.stopPropagation();
}

function moveTo(flame, place) {
  flame.cursor = place.frame;
  const { box } = flame;
  if (place.y < box.scrollTop) box.scrollTop = place.y;
  if (place.y + ROW > box.scrollTop + box.clientHeight) box.scrollTop = place.y + ROW - box.clientHeight;
  flame.draw();
  say([flame.text(place.frame), ...flame.about(place.frame)].filter(Boolean).join(", "));
}
