// Draws the visible part of a timeline on a surface.

import { barLines } from "./model.js";
import { gridMs } from "./view.js";
import { drawMemory } from "./memory.js";

const LEGEND_LEFT = 8;
/** Pixels between grid lines, and of a letter on average; bars get a label if it fits into them. */
const GRID = 110, LETTER = 6.6, LABEL_LANE = 14;
const DIMMED = 0.16; // opacity of bars that the search does not match
const TALL = 600; // pixels from which on the axis has numbers above the lanes too
const SEPARATED = 8; // pixels from which on a bar is separated from the next; separators of shorter ones would look like idle time
const SEPARATOR = 0.45; // opacity of a separator, which is no idle time either
const FRAMED = 48; // pixels from which on bars of the critical path have a frame, besides the stripe

/** White or black, whichever can be read on a color such as #12A37B. */
export function inkOn(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#111418" : "#FFFFFF";
}

/** Draw a scene: { model, rows, colors, byPhase, view, layout, theme, hits, picked, others, hovered, textWidth }. */
export function draw(surface, scene) {
  const { model, view, layout, theme } = scene;
  const per = (view.to - view.from) / (layout.plot * surface.scale); // ticks of one pixel of the surface
  const from = Math.round(view.from / per) * per; // columns lie on pixels
  const frame = { ...scene, per, from, to: from + (view.to - view.from), x: (tick) => layout.gutter + (tick - from) / per / surface.scale };
  model.panels.forEach((panel, number) => drawPanel(surface, frame, panel, number));
  drawAxis(surface, frame);
}

/** The legend's entries in rows that fit into a width, each with its place: [{ entry, x }, ...]. */
export function legendRows(entries, width, textWidth) {
  const rows = [[]];
  let x = LEGEND_LEFT;
  for (const entry of entries) {
    const length = 36 + textWidth(entry.name);
    if (x + length > width && rows.at(-1).length) {
      rows.push([]);
      x = LEGEND_LEFT;
    }
    rows.at(-1).push({ entry, x });
    x += length;
  }
  return rows;
}

/** Draw marks and names of one row of the legend. */
export function drawLegend(surface, row, y, theme) {
  for (const { entry: { name, color, kind }, x } of row) {
    if (kind === "hatch") surface.frame(x, y - 6, 12, 12, color, 1);
    else surface.rect(x, kind === "stripe" ? y - 2 : y - 6, 12, kind === "stripe" ? 4 : 12, color);
    surface.text(x + 18, y, name, theme.ink);
  }
}

function drawPanel(surface, frame, panel, number) {
  const { layout, theme, x } = frame;
  const { heading, tops, strips, bottom } = layout.panels[number];
  const title = `${panel.kind}: ${panel.step_label}`, middle = heading + layout.headingHeight / 2;
  surface.text(4, middle, title, theme.ink, { bold: true });
  if (!number && layout.height > TALL) {
    const free = 24 + frame.textWidth(title) * 1.15;
    forGrid(frame, (place, text) => place > free + 20 && surface.text(place, middle + 4, text, theme.soft, { align: "center" }));
  }
  surface.clip(0, heading, layout.gutter - 6, bottom - heading);
  panel.rows.forEach(({ label, device }, row) => {
    if (row && device !== panel.rows[row - 1].device) surface.line(0, tops[row], layout.width, tops[row], theme.faint);
    surface.text(layout.gutter - 8, tops[row] + layout.lane / 2, label, theme.ink, { align: "right" });
  });
  panel.memory.forEach(({ label }, strip) => {
    surface.text(layout.gutter - 8, strips[strip].top + strips[strip].height / 2, label, theme.ink, { align: "right" });
  });
  surface.unclip();
  surface.clip(layout.gutter, heading, layout.plot, bottom - heading + 4);
  for (const top of tops) surface.rect(layout.gutter, top + 1, layout.plot, layout.lane - 2, theme.lane);
  forGrid(frame, (place) => surface.line(place, tops[0] ?? heading, place, bottom, theme.faint));
  panel.rows.forEach((_, row) => drawRow(surface, frame, number, row));
  panel.memory.forEach((strip, at) => drawMemory(surface, frame, strip, strips[at]));
  const above = number ? frame.model.panels[0].step_ms : panel.step_ms; // for comparison
  for (const [ms, look] of [[above, { dash: [2, 4] }], [panel.step_ms, { dash: [5, 3], thickness: 1.5 }]]) {
    const step = x(ms / frame.model.tick_ms);
    surface.line(step, heading + layout.headingHeight - 6, step, bottom, theme.ink, { ...look, opacity: 0.7 });
  }
  for (const bar of frame.others) outline(surface, frame, number, bar, theme.soft, 2);
  outline(surface, frame, number, frame.hovered, theme.ink, 1.5);
  outline(surface, frame, number, frame.picked, theme.ink, 3);
  surface.unclip();
}

function drawRow(surface, frame, panel, row) {
  const { rows, layout, hits, model, per, x, from, to } = frame;
  const top = layout.panels[panel].tops[row] + 1, height = layout.lane - 2;
  const { tracks, critical, idle } = rows[panel][row];
  const drawn = tracks.map((track) => [track, hits ? DIMMED : 1]);
  if (hits) drawn.push(...hits.tracks[panel][row].map((track) => [track, 1]));
  drawn.forEach(([track, opacity], number) => {
    const inset = Math.min((number % tracks.length) * 3, height / 2); // spans within spans
    drawTrack(surface, frame, track, top + inset, height - inset, opacity);
  });
  idle.runs(from, to, per, (begin, end, _, opacity) => hatch(surface, frame, x(begin), top, x(end) - x(begin), height, opacity));
  const stripe = Math.max(2, Math.round(height / 7));
  const frames = [];
  surface.band(layout.gutter, top + height - stripe, layout.plot, stripe, (fill) => {
    critical.runs(from, to, per, (begin, end, _, opacity, at) => {
      const left = x(begin), width = x(end) - left;
      fill(left, Math.max(width - (at >= 0 ? 0.5 : 0), 0.5), model.critical_color, opacity);
      if (at >= 0 && width >= FRAMED && !hits && !model.panels[panel].pipeline) frames.push([left, width]);
    });
  });
  for (const [left, width] of frames) surface.frame(left, top, width, height, model.critical_color, 1.5);
}

function drawTrack(surface, frame, track, top, height, opacity) {
  const { model, colors, byPhase, per, x, from, to, layout, theme } = frame;
  const { shade, iteration } = model.arrays;
  const step = 1 / surface.scale, leftmost = layout.gutter - 2, rightmost = layout.gutter + layout.plot + 2;
  const snap = (place) => Math.round(place * surface.scale) / surface.scale;
  const labels = [], borders = [];
  surface.band(layout.gutter, top, layout.plot, height, (fill) => {
    track.runs(from, to, per, (begin, end, number, share, at) => {
      const left = snap(Math.max(x(begin), leftmost)), length = snap(Math.min(x(end), rightmost)) - left;
      if (at < 0) {
        fill(left, Math.max(length, step), colors[number].color, share * opacity, "");
        return;
      }
      const bar = track.bar(at), width = Math.max(length - (length > SEPARATED ? step : 0), step);
      const color = byPhase && shade[bar] ? colors[number].lighter : colors[number].color;
      fill(left, width, color, opacity, surface.parts ? barLines(model, bar).join("\n") : "");
      if (width < length) fill(left + width, step, color, opacity * SEPARATOR, "");
      if (at && iteration[bar] !== iteration[track.bar(at - 1)]) borders.push(left);
      if (opacity === 1 && width > 2 * LETTER && height >= LABEL_LANE) labels.push([bar, left, width, color]);
    });
  });
  for (const left of borders) surface.rect(left, top - 1, 1.5, height + 2, theme.ink, 0.8);
  for (const [bar, left, width, color] of labels) label(surface, frame, bar, left, width, top + height / 2, color);
}

/** Write the longest text that fits into a bar. */
function label(surface, frame, bar, left, width, y, color) {
  const { model, textWidth } = frame;
  const names = [...model.labels[model.arrays.label[bar]], model.names[model.arrays.task[bar]]];
  const text = names.find((name) => name.length * LETTER * 0.7 < width && textWidth(name) + 6 <= width);
  if (text) surface.text(left + width / 2, y + 0.5, text, inkOn(color), { align: "center" });
}

function hatch(surface, frame, left, top, width, height, opacity) {
  const color = frame.model.idle_color, right = Math.min(left + width, frame.layout.gutter + frame.layout.plot);
  for (let at = Math.floor(Math.max(left, frame.layout.gutter) / 6) * 6; at < right; at += 6) {
    const begin = Math.max(at, left), end = Math.min(at + height, right);
    if (end > begin) surface.line(begin, top + height - (begin - at), end, top + height - (end - at), color, { opacity: opacity * 0.7 });
  }
}

function outline(surface, frame, panel, bar, color, thickness) {
  if (bar == null || bar < 0) return;
  const { model, layout, x } = frame;
  const row = model.panels[panel].rows.findIndex(({ tracks }) => bar >= tracks[0] && bar < tracks[tracks.length - 1]);
  if (row < 0) return;
  const left = x(model.arrays.start[bar]), width = Math.max(3, x(model.arrays.end[bar]) - left);
  surface.frame(left - 1, layout.panels[panel].tops[row], width + 2, layout.lane, color, thickness);
}

function drawAxis(surface, frame) {
  const { layout, theme, model } = frame;
  surface.line(layout.gutter, layout.axis, layout.gutter + layout.plot, layout.axis, theme.soft);
  forGrid(frame, (place, text) => surface.text(place, layout.axis + 10, text, theme.soft, { align: "center" }));
  surface.text(layout.gutter + layout.plot, layout.axis + 23, model.x_label, theme.soft, { align: "right" });
}

function forGrid({ model, layout, from, to, x }, visit) {
  const { first, step } = gridMs(from * model.tick_ms, to * model.tick_ms, layout.plot / GRID);
  const decimals = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  const count = Math.min(60, Math.floor((to * model.tick_ms - first) / step + 1e-6));
  for (let number = 0; number <= count; number++) {
    const ms = first + number * step;
    visit(x(ms / model.tick_ms), ms.toFixed(decimals));
  }
}
