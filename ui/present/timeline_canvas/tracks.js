// Tracks: spans that do not overlap, in order of start. What of them falls into a column of pixels is added up from running sums, so that a
// frame costs as much as the screen has columns, however many spans there are.

/** Spans at least this many columns wide are drawn one by one. */
export const WIDE = 3;
/** Steps of the opacity of columns that are partly busy, and the least step that is drawn. */
const SHADES = 8, FAINTEST = 2;

/** The first place in values[from, to), which ascend, whose value is at least `least`; gallops from `from`. */
export function firstFrom(values, from, to, least) {
  let low = from, high = from, step = 1;
  while (high < to && values[high] < least) {
    low = high + 1;
    high += step;
    step *= 2;
  }
  high = Math.min(high, to);
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < least) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Spans of one track. `color`: a number per span. `first`: the place of the first span among all, or an array with the place of each. */
export class Track {
  constructor(start, end, color, first) {
    this.start = start;
    this.end = end;
    this.color = color;
    this.length = start.length;
    this.bar = typeof first === "number" ? (at) => first + at : (at) => first[at];
    this.sums = new Map(); // by color: busy ticks before each span
    for (const one of new Set(color)) this.sums.set(one, new Float64Array(this.length + 1));
    for (const [one, sum] of this.sums) {
      for (let at = 0; at < this.length; at++) sum[at + 1] = sum[at] + (color[at] === one ? end[at] - start[at] : 0);
    }
  }

  /** Busy ticks of every color among the spans [from, to). */
  busy(from, to) {
    return new Map([...this.sums].map(([one, sum]) => [one, sum[to] - sum[from]]));
  }

  /** The color with the most busy ticks among the spans [from, to), and the busy ticks of all. */
  busiest(from, to) {
    let best = this.color[from], most = -1, total = 0;
    for (const [one, sum] of this.sums) {
      const ticks = sum[to] - sum[from];
      total += ticks;
      if (ticks > most) [best, most] = [one, ticks];
    }
    return [best, total];
  }

  /** The place of the span at a time, within a tolerance; of several the longest. -1 if there is none. */
  at(tick, tolerance) {
    let at = firstFrom(this.end, 0, this.length, tick - tolerance), best = -1, longest = -1;
    const until = firstFrom(this.start, at, this.length, tick + tolerance + 1);
    for (; at < Math.min(until, this.length); at++) {
      if (this.start[at] <= tick && this.end[at] > tick) return at;
      if (this.end[at] - this.start[at] > longest) [best, longest] = [at, this.end[at] - this.start[at]];
    }
    return best;
  }

  /**
   * Calls emit(begin, end, color, opacity, at) for what is visible in [from, to), in order of time; `per` ticks are a column.
   * `at` is the place of a wide span, and -1 for columns that stand for narrow ones, whose opacity is the share of time that is busy.
   */
  runs(from, to, per, emit) {
    const { start, end, length } = this;
    let column = 0, columns = 0, color = 0, shade = 0; // neighboring columns that look the same
    const flush = () => {
      if (columns) emit(column * per, (column + columns) * per, color, shade / SHADES, -1);
      columns = 0;
    };
    const show = (here, most, ticks, least) => {
      const level = Math.max(least, Math.min(SHADES, Math.round((SHADES * ticks) / per)));
      if (!level) return;
      if (columns && here === column + columns && most === color && level === shade) columns += 1;
      else {
        flush();
        [column, columns, color, shade] = [here, 1, most, level];
      }
    };
    let over = null; // { column, until, color }: what a narrow span fills of the columns after its first one
    const busyOver = (here) => (over && over.column === here ? Math.min(per, over.until - here * per) : 0);
    let at = firstFrom(end, 0, length, from);
    for (;;) {
      const left = at < length && start[at] < to, here = left ? Math.floor(start[at] / per) : Infinity;
      const wide = left && end[at] - start[at] >= WIDE * per;
      if (over && (over.column < here || wide)) {
        show(over.column, over.color, busyOver(over.column), 0);
        const following = { ...over, column: over.column + 1 };
        over = following.column <= here && following.until > following.column * per ? following : null;
        continue;
      }
      if (!left) break;
      if (wide) {
        flush();
        emit(start[at], end[at], this.color[at], 1, at);
        at += 1;
        continue;
      }
      let next = firstFrom(start, at + 1, length, (here + 1) * per);
      if (next - 1 > at && end[next - 1] - start[next - 1] >= WIDE * per) next -= 1;
      const [most, ticks] = this.busiest(at, next), border = (here + 1) * per;
      const own = ticks - Math.max(0, end[next - 1] - border), earlier = busyOver(here);
      show(here, earlier > own ? over.color : most, own + earlier, FAINTEST);
      over = end[next - 1] > border ? { column: here + 1, until: end[next - 1], color: this.color[next - 1] } : null;
      at = next;
    }
    flush();
  }
}

/** The tracks of every row of every panel. `colors`: the array whose numbers choose the colors. */
export function tracksOf(model, colors) {
  const { start, end } = model.arrays;
  const cut = (begin, until) => new Track(start.subarray(begin, until), end.subarray(begin, until), colors.subarray(begin, until), begin);
  const marked = (name, [begin, until]) => {
    const [starts, ends] = [model.arrays[`${name}_start`], model.arrays[`${name}_end`]].map((all) => all.subarray(begin, until));
    return new Track(starts, ends, new Uint8Array(until - begin), begin);
  };
  return model.panels.map(({ rows }) => rows.map((row) => ({
    tracks: row.tracks.slice(1).map((until, number) => cut(row.tracks[number], until)),
    critical: marked("critical", row.critical),
    idle: marked("idle", row.idle),
  })));
}

/** The spans of a track for which `chosen(bar)` holds, as a track. */
export function filtered(track, chosen) {
  const places = [];
  for (let at = 0; at < track.length; at++) if (chosen(track.bar(at))) places.push(at);
  const pick = (values) => values.constructor.from(places, (at) => values[at]);
  return new Track(pick(track.start), pick(track.end), pick(track.color), places.map(track.bar));
}
