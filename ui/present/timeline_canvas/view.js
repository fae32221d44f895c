// The part of the time axis that is visible, in ticks.

/** Zooming stops here: this many ticks are always visible. */
const LEAST_TICKS = 64;

export class View {
  /** `end`: the last tick of the axis. */
  constructor(end) {
    this.end = end;
    this.reset();
  }

  /** Show all. */
  reset() {
    this.show(0, this.end);
  }

  get isWhole() {
    return this.from <= 0 && this.to >= this.end;
  }

  /** Show [from, to) as far as it lies on the axis. */
  show(from, to) {
    const length = Math.min(this.end, Math.max(LEAST_TICKS, to - from));
    this.from = Math.min(Math.max(0, from - (length - (to - from)) / 2), this.end - length);
    this.to = this.from + length;
  }

  /** Make the visible part `factor` times as long; the time `about` stays where it is. */
  zoom(factor, about) {
    const length = Math.min(this.end, Math.max(LEAST_TICKS, (this.to - this.from) * factor));
    const left = (about - this.from) / (this.to - this.from);
    this.from = Math.min(Math.max(0, about - left * length), this.end - length);
    this.to = this.from + length;
  }

  /** Move by a number of ticks. */
  pan(ticks) {
    const length = this.to - this.from;
    this.from = Math.min(Math.max(0, this.from + ticks), this.end - length);
    this.to = this.from + length;
  }

  /** Make sure that a stretch is visible and wide enough to be seen. */
  reveal(from, to) {
    const wanted = Math.max(LEAST_TICKS, (to - from) * 12);
    const length = Math.min(this.to - this.from, Math.max(wanted, (to - from) * 1.1));
    const narrow = to - from < (this.to - this.from) / 300;
    if (narrow || from < this.from || to > this.to) {
      const shown = narrow ? length : Math.max(this.to - this.from, (to - from) * 1.1);
      const middle = (from + to) / 2;
      this.show(middle - shown / 2, middle + shown / 2);
    }
  }
}

/** Round times for about `count` lines in [fromMs, toMs): first, step. */
export function gridMs(fromMs, toMs, count) {
  const rough = (toMs - fromMs) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10);
  return { first: Math.ceil(fromMs / step) * step, step };
}
