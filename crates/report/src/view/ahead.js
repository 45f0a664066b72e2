// Work ahead of the clicks that need it, done while the page is idle. A click that comes meanwhile waits for one slice.

/** Length of a slice. Between two steps nothing stops, so a step takes no longer than that itself where it can. */
const AHEAD_MS = 8;

/** Runs a generator to its end, and returns what it made. */
function finished(steps) {
  let step = steps.next();
  while (!step.done) step = steps.next();
  return step.value;
}

class Ahead {
  constructor() {
    /** Generators: they yield wherever they may be interrupted. */
    this.tasks = [];
  }

  get isDone() { return !this.tasks.length; }

  /** Takes other tasks, instead of those that are left. */
  start(tasks) {
    const isWaiting = !this.isDone;
    this.tasks = tasks;
    if (!isWaiting) this.schedule();
  }

  schedule() {
    const idle = window.requestIdleCallback ?? ((work) => setTimeout(work, 50));
    if (!this.isDone) idle(() => this.slice());
  }

  slice() {
    const begin = performance.now();
    while (!this.isDone && performance.now() - begin < AHEAD_MS) {
      const { tasks } = this;
      if (tasks[0].next().done) tasks.shift();
    }
    this.schedule();
  }
}
