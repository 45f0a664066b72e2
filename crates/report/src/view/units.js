// Numbers as people read them, and times as they type them.

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

const formatBytes = (n) => {
  const sign = n < 0 ? "-" : "";
  let value = Math.abs(n);
  let unit = 0;
  while (value >= (unit ? 1023.95 : 1024) && unit + 1 < BYTE_UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  return `${sign}${unit ? value.toFixed(1) : Math.round(value)} ${BYTE_UNITS[unit]}`;
};

/** With separators; the browser's own formatting takes a hundred times as long. */
const formatCount = (n) => String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",");
const counted = (n, noun) => `${formatCount(n)} ${noun}${Math.round(n) === 1 ? "" : "s"}`;
const formatAmount = (n, unit) => (unit === "bytes" ? formatBytes(n) : formatCount(n));
/** What is added to the variance of every sum, for what no sample has hit: once, whatever it is a sum of. */
let unhitVariance = 0;
/** Standard errors around an estimate within which the truth is in 95 of 100 cases. */
const INTERVAL = 1.96;
/** The standard error of bytes, if they are an estimate; the variance of what has no known error is NaN. */
const standardError = (variance) => Math.round(Math.sqrt(Math.max(variance, 0) + unhitVariance)) || 0;
/** Bytes and their standard error; the most that they may be where the error is larger than they are, as units.rs has it. */
const withError = (bytes, variance) => {
  const error = standardError(variance);
  if (error > Math.abs(bytes)) return `\u2264 ${formatBytes(Math.abs(bytes) + INTERVAL * error)}`;
  return error > 0 ? `${formatBytes(bytes)} \u00b1 ${formatBytes(error)}` : formatBytes(bytes);
};
const formatChange = (n, format) => (n > 0 ? "+" : n < 0 ? "" : "\u00b1") + format(n);
const formatShare = (part, whole) => (whole > 0 && part >= 0 ? `${((100 * part) / whole).toFixed(1)} %` : "");

const formatTime = (ns) => {
  const ms = ns / 1e6;
  if (ns === 0) return "0 s";
  if (ms < 1) return `${(ns / 1e3).toFixed(ms < 0.01 ? 2 : 0)} \u00b5s`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s.toFixed(s < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
};

const TIME_UNITS = {
  us: 1e3, "\u00b5s": 1e3, ms: 1e6, s: 1e9, sec: 1e9, m: 60e9, min: 60e9, h: 3600e9,
};

/** Nanoseconds of "10", "10 s", "700ms" or "1 min 30 s"; a number alone is seconds. Null if it is none of these. */
function parseTime(text) {
  const parts = [...text.trim().matchAll(/([0-9]+(?:[.,][0-9]+)?)\s*([a-z\u00b5]*)\s*/gy)];
  if (!parts.length || parts.map((part) => part[0]).join("") !== text.trim()) return null;
  let sum = 0;
  for (const [, number, unit] of parts) {
    const scale = TIME_UNITS[unit || "s"];
    if (!scale) return null;
    sum += Number(number.replace(",", ".")) * scale;
  }
  return sum;
}
