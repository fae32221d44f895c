// Draws what the memory of a device holds, stacked by kind, on the time axis of its lanes, and tells it at a time.

import { digits } from "./model.js";
import { firstFrom } from "./tracks.js";

const UNITS = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];

/** Bytes with a unit: 2.78 GiB. */
export function bytesText(bytes) {
  const [name, size] = UNITS.find(([, size]) => bytes >= size) ?? UNITS[3];
  return `${digits(bytes / size)} ${name}`;
}

/** The instants of a strip, and for each of its kinds the bytes from each instant on. */
function contents(model, { times: [begin, end], held, kinds }) {
  const count = end - begin;
  const bytes = kinds.map((_, number) => model.arrays.memory_held.subarray(held + number * count, held + (number + 1) * count));
  return { times: model.arrays.memory_time.subarray(begin, end), bytes };
}

/** What a strip holds at a time, in lines of text: in all, then by kind, the largest first. */
export function memoryLines(model, strip, tick) {
  const { times, bytes } = contents(model, strip);
  const at = Math.max(0, firstFrom(times, 0, times.length, tick + 1) - 1);
  const parts = strip.kinds.map((kind, number) => [model.memory_kinds[kind].name, bytes[number][at]]).filter(([, held]) => held);
  const all = parts.reduce((sum, [, held]) => sum + held, 0);
  return [
    `${strip.label}: ${bytesText(all)} at ${digits(tick * model.tick_ms)} ms`,
    ...parts.sort((one, other) => other[1] - one[1]).map(([name, held]) => `${name}: ${bytesText(held)}`),
  ];
}

/** Draw the strip `number` of a panel at { top, height }. */
export function drawMemory(surface, frame, strip, { top, height }) {
  const { model, layout, theme } = frame, base = top + height;
  const level = (bytes) => base - (Math.min(bytes, strip.top_bytes) / strip.top_bytes) * height;
  const right = layout.gutter + layout.plot;
  const columns = columnsOf(frame, strip);
  const sums = columns.map(({ held }) => held.reduce((below, bytes) => [...below, (below.at(-1) ?? 0) + bytes], []));
  for (let kind = strip.kinds.length - 1; kind >= 0; kind--) { // the highest first, and lower ones over it
    const points = columns.flatMap(({ from, to }, at) => [from, to].map((x) => [x, level(sums[at][kind])]));
    if (points.length) surface.area(points, base, model.memory_kinds[strip.kinds[kind]].color);
  }
  surface.line(layout.gutter, base, right, base, theme.soft, { opacity: 0.6 });
  for (const [bytes, color, look] of [[strip.peak_bytes, theme.soft, { dash: [5, 3] }], [strip.limit_bytes, model.limit_color, { thickness: 2 }]]) {
    if (bytes) surface.line(layout.gutter, level(bytes), right, level(bytes), color, look);
  }
  surface.text(layout.gutter + 4, top - 8, strip.words, theme.soft);
}

/** What is visible of a strip as { from, to, held } with places in pixels. Of the instants in one pixel, the one with the most bytes stays. */
function columnsOf(frame, strip) {
  const { model, layout, x } = frame, { times, bytes } = contents(model, strip), columns = [];
  const leftmost = layout.gutter, rightmost = layout.gutter + layout.plot;
  const total = (held) => held.reduce((sum, one) => sum + one, 0);
  for (let at = Math.max(0, firstFrom(times, 0, times.length, frame.from) - 1); at + 1 < times.length && times[at] < frame.to; at++) {
    const from = Math.max(leftmost, x(times[at])), to = Math.min(rightmost, x(times[at + 1]));
    if (to <= from) continue;
    const held = bytes.map((one) => one[at]), last = columns.at(-1);
    if (last && to - last.from < 1) {
      last.to = to;
      if (total(held) > total(last.held)) last.held = held;
    } else columns.push({ from, to, held });
  }
  return columns;
}
