// The search box: which bars a text matches, how many there are in every panel, and how long they take.

import { filtered } from "./tracks.js";

/** The matches of a text in the names of tasks, layers and phases, whatever its case; null for an empty text. */
export function search(model, rows, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return null;
  const holds = (name) => name.toLowerCase().includes(wanted);
  const names = model.names.map(holds), phases = model.phases.map(({ name }) => holds(name));
  const { task, layer, phase, start, end } = model.arrays;
  const chosen = (bar) => names[task[bar]] || names[layer[bar]] || phases[phase[bar]];
  const tracks = rows.map((panel) => panel.map((row) => row.tracks.map((track) => filtered(track, chosen))));
  const panels = tracks.map((panel) => {
    let count = 0, ticks = 0;
    for (const track of panel.flat()) {
      count += track.length;
      for (let at = 0; at < track.length; at++) ticks += track.end[at] - track.start[at];
    }
    return { count, totalMs: ticks * model.tick_ms };
  });
  const bars = tracks.flat(2).flatMap((track) => Array.from({ length: track.length }, (_, at) => track.bar(at)));
  bars.sort((a, b) => start[a] - start[b] || end[a] - end[b] || a - b);
  return { tracks, panels, bars };
}
