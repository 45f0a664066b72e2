// Numbers as people read them.

const formatBytes = (n) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const sign = n < 0 ? "-" : "";
  let value = Math.abs(n);
  let unit = 0;
  while (value >= (unit ? 1023.95 : 1024) && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return `${sign}${unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
};

const formatCount = (n) => Math.round(n).toLocaleString("en-US");
const countedBlocks = (n) => `${formatCount(n)} block${Math.round(n) === 1 ? "" : "s"}`;
/** The standard error of bytes, if they are an estimate. */
const formatError = (variance) => {
  const error = Math.round(Math.sqrt(Math.max(variance, 0)));
  return error > 0 ? `\u00b1 ${formatBytes(error)}` : "";
};
const withError = (bytes, variance) => `${formatBytes(bytes)} ${formatError(variance)}`.trimEnd();
const formatChange = (n, format) => (n > 0 ? "+" : n < 0 ? "" : "\u00b1") + format(n);
const formatShare = (part, whole) => (whole > 0 ? ((100 * part) / whole).toFixed(1) + " %" : "");

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

/** Functions of the C++ library, whose callers are of more interest. */
const PLUMBING = /^(void )?(std::|__gnu_cxx|operator new)/;

const byId = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** An element with a class and children: elements or text. Text is never read as HTML. */
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** Sizes a canvas for the display's pixels and clears it; drawing is in CSS pixels. */
function paper(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
