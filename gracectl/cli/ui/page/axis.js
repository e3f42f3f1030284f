// The window of time that the timeline shows: what fits, zoom, pan, ticks, places of instants.

const STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
].map((seconds) => seconds * 1000);
const LEAST = 5000;
const MOST = 30 * 86400 * 1000;
const FIRST = 60000;
const NEAR = 300000;
const TICK_WIDTH = 92;

/** A window of time. It follows the present, with room for the forecast, until it is zoomed or moved. */
export class Axis {
  constructor() {
    this.from = 0;
    this.to = FIRST;
    this.isFollowing = true;
  }

  /** Show the past from `begin`, and the future as far as `ends` (ms) lie near, while it follows. */
  fit(begin, ends, now) {
    if (!this.isFollowing) return;
    if (!ends.length) ends = [now];
    const past = Math.max(now - begin, FIRST / 3);
    // A forecast of hours must not make the minutes that passed invisible: arrows lead to what is farther away.
    const horizon = now + Math.max(past * 3, NEAR, 2 * (Math.min(...ends) - now));
    const near = ends.filter((end) => end <= horizon);
    const end = Math.max(now, ...near);
    const future = Math.max(end - now, past * 0.2, FIRST / 4);
    this.from = now - past * 1.02;
    this.to = now + future * 1.06;
  }

  get span() {
    return this.to - this.from;
  }

  /** The place of an instant: 0 at the left edge, 1 at the right one; beyond them if it lies outside. */
  place(at) {
    return (at - this.from) / this.span;
  }

  /** Make the window so many times as long around a place. */
  zoom(factor, around = 0.5) {
    this.isFollowing = false;
    const span = Math.min(Math.max(this.span * factor, LEAST), MOST);
    this.from += (this.span - span) * around;
    this.to = this.from + span;
  }

  /** Move by a share of its length. */
  pan(share) {
    this.isFollowing = false;
    const by = this.span * share;
    this.from += by;
    this.to += by;
  }

  /** Put an instant at a third of the window from the right. */
  center(at) {
    this.pan(this.place(at) - 0.66);
  }

  /** Ticks at round times of the reader's clock for a width in pixels: `at`, `step` (ms). */
  ticks(width) {
    const most = Math.max(Math.floor(width / TICK_WIDTH), 2);
    const step = STEPS.find((each) => this.span / each <= most) ?? STEPS.at(-1);
    const shift = new Date(this.from).getTimezoneOffset() * 60000;
    const found = [];
    for (let at = Math.ceil((this.from - shift) / step) * step + shift; at < this.to; at += step)
      found.push({ at, step });
    return found;
  }
}
