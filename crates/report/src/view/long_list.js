// Lists of any length. A list has its first entries and a button for more; they are made when the list comes into view,
// and a list of the same items is kept from one click to the next.

const FIRST_ENTRIES = 20;
const MORE_ENTRIES = 50;
/** More entries than this are never elements at a time. */
const MOST_ENTRIES = 220;

class LongLists {
  constructor(app, box) {
    this.app = app;
    this.kept = new Map();
    this.waiting = new WeakMap();
    this.observer = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) if (isIntersecting) this.fill(target);
    }, { root: box, rootMargin: "200px" });
  }

  /** Lets go of the lists that were never seen: their place is about to be taken by others. */
  begin() { this.observer.disconnect(); }

  /**
   * A list of items, each made into an element by `entry`. With a `key`, a list of the same items (the same array) is the
   * same element again. One that `isSeen` is made at once: it is at the top, or short.
   */
  list(className, items, entry, { first = FIRST_ENTRIES, key = "", isSeen = false } = {}) {
    const known = key && this.kept.get(key);
    const { hidden } = this.app;
    if (known && known.items === items && known.hidden === hidden) {
      this.watch(known.box);
      return known.box;
    }
    const box = make("div", "entries");
    const list = { box, items, entry, hidden, rows: make("ol", className), from: 0, to: Math.min(first, items.length) };
    box.append(list.rows);
    if (key) this.kept.set(key, list);
    if (isSeen) this.show(list);
    else this.waiting.set(box, list);
    this.watch(box);
    return box;
  }

  watch(box) {
    if (this.waiting.has(box)) this.observer.observe(box);
  }

  fill(box) {
    const list = this.waiting.get(box);
    this.observer.unobserve(box);
    this.waiting.delete(box);
    if (list) this.show(list);
  }

  show(list) {
    const { box, rows, items, entry, from, to } = list;
    rows.start = from + 1;
    rows.replaceChildren(...Array.from(items.slice(from, to), entry));
    const parts = [rows];
    if (from > 0) parts.unshift(button("", "Show the first again", () => this.move(list, 0, Math.min(FIRST_ENTRIES, items.length))));
    const left = items.length - to;
    if (left > 0) {
      const next = Math.min(to + MORE_ENTRIES, items.length);
      const text = next === items.length ? `Show the other ${formatCount(left)}` : `Show ${MORE_ENTRIES} more of ${formatCount(left)}`;
      parts.push(button("more", text, () => this.move(list, Math.max(next - MOST_ENTRIES, from), next)));
    }
    box.replaceChildren(...parts);
  }

  /** Shows other entries; the focus stays at the first new one, since the button that was pressed is gone. */
  move(list, from, to) {
    const at = to > list.to ? list.to : 0;
    Object.assign(list, { from, to });
    this.show(list);
    const entry = list.rows.children[at - from];
    const target = entry?.querySelector("button") ?? entry;
    if (!target) return;
    if (target === entry) entry.tabIndex = -1;
    target.focus({ preventScroll: at > 0 });
  }
}
