// Work on the page in slices: at most FRAME milliseconds at a time over all that is being drawn, at most WHOLE
// for one piece of work; what is left then is handed to its `late`.

export const FRAME = 16;
export const WHOLE = 1000;

const clock = () => performance.now();
const SOON = callback => setTimeout(callback, 0);

export class Slices {
  // budgets in milliseconds; now and soon can be replaced in tests.
  constructor({ frame = FRAME, whole = WHOLE, now = clock, soon = SOON } = {}) {
    Object.assign(this, { frame, whole, now, soon });
    this.queue = [];
    this.waiting = false;
    this.spent = 0;
  }

  // Steps through an iterator that yields between two small pieces of work: now, as far as this frame's budget
  // goes, and later the rest. `wanted()` false stops it; `late()` is called once it has used up `whole`.
  run(iterator, { late = () => {}, wanted = () => true, whole = this.whole } = {}) {
    this.queue.push({ iterator, late, wanted, whole, used: 0 });
    if (!this.waiting) this.turn();
  }

  turn() {
    while (this.queue.length && this.spent < this.frame) this.advance();
    if (this.waiting || (!this.queue.length && !this.spent)) return;
    this.waiting = true;
    this.soon(() => {
      this.waiting = false;
      this.spent = 0;
      if (this.queue.length) this.turn();
    });
  }

  advance() {
    const work = this.queue[0];
    const started = this.now();
    const end = started + this.frame - this.spent;
    let done = !work.wanted();
    let now = started;
    while (!done && now < end && work.used + now - started < work.whole) {
      done = work.iterator.next().done;
      now = this.now();
    }
    work.used += now - started;
    this.spent += now - started;
    if (done) this.queue.shift();
    else if (work.used >= work.whole) {
      this.queue.shift();
      work.late();
    }
  }
}

export const slices = new Slices();
