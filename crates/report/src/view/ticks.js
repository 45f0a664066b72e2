// Where axes have their ticks: at round numbers, and as many as there is room for labels.

const SECOND = 1e9;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const LONG_STEPS = [
  1, 2, 5, 10, 15, 30,
].map((n) => n * SECOND).concat([1, 2, 5, 10, 15, 30].map((n) => n * MINUTE), [1, 2, 3, 6, 12, 24].map((n) => n * HOUR));

/** The least of 1, 2, 5, 10, 20, 50, ... that is not below n. */
function roundStep(n) {
  const scale = 10 ** Math.floor(Math.log10(n));
  return [1, 2, 5, 10].map((step) => step * scale).find((step) => step >= n * 0.999999);
}

function multiples(from, to, step) {
  const found = [];
  for (let n = Math.ceil(from / step - 1e-9) + 0; n * step <= to * (1 + 1e-12); n += 1) found.push(n * step);
  return found;
}

/** A tick of an axis of time: "500 ms", "2 s", "1 min 30 s". */
function timeLabel(ns) {
  if (ns === 0) return "0 s";
  if (ns < SECOND) {
    const [scale, unit] = ns < 1e6 ? [1e3, "\u00b5s"] : [1e6, "ms"];
    return `${+(ns / scale).toFixed(3)} ${unit}`;
  }
  const parts = [[HOUR, "h"], [MINUTE, "min"], [SECOND, "s"]].map(([unit, name], i) => {
    const rest = i === 0 ? ns : ns % [HOUR, MINUTE][i - 1];
    const value = i === 2 ? +(rest / unit).toFixed(3) : Math.floor(rest / unit + 1e-9);
    return value ? `${value} ${name}` : "";
  });
  return parts.filter(Boolean).join(" ");
}

/** Ticks of an axis of time, about as many as are wanted: [nanoseconds, text]. */
function timeTicks(from, to, wanted) {
  const rough = Math.max((to - from) / Math.max(wanted, 1), 1);
  const step = rough < 0.5 * SECOND ? roundStep(rough)
    : LONG_STEPS.find((long) => long >= rough) || roundStep(rough / (24 * HOUR)) * 24 * HOUR;
  return multiples(from, to, step).map((ns) => [ns, timeLabel(ns)]);
}

/** A round number of bytes: "64 B", "1.5 MiB". */
function bytesLabel(n) {
  const scale = n ? Math.min(Math.floor(Math.log2(n) / 10), BYTE_UNITS.length - 1) : 0;
  return `${+(n / 1024 ** scale).toFixed(2)} ${BYTE_UNITS[scale]}`;
}

/** Ticks of an axis of bytes or blocks from 0: [amount, text]. */
function amountTicks(most, unit, wanted) {
  const rough = Math.max(most / Math.max(wanted, 1), 1);
  const step = unit === "bytes" ? 2 ** Math.ceil(Math.log2(rough) - 1e-9) : roundStep(rough);
  const label = unit === "bytes" ? bytesLabel : formatCount;
  return multiples(0, most, step).map((n) => [n, label(n)]);
}
