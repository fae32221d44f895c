// Pointer, wheel and keys: what they do to a timeline.

import { element } from "./parts.js";
import { barLines, placeOf } from "./model.js";
import { rowAt } from "./layout.js";
import { firstFrom } from "./tracks.js";

const DRAG_PX = 4; // a pointer that moves less clicks
const KEY_ZOOM = 1.4, KEY_PAN = 0.15;

/** Make a timeline react. */
export function listen(timeline) {
  const { canvas, root, search, colors } = timeline.parts;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  listenToTools(timeline);
  let drag = null, armed = false;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    const [x, y] = at(event), bar = timeline.barAt(x, y);
    canvas.setPointerCapture(event.pointerId);
    drag = { x, y, from: timeline.view.from, moved: false, carried: timeline.model.editable ? bar : null };
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    armed ||= Boolean(event.movementX || event.movementY);
    if (!drag) return hover(timeline, x, y);
    drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > DRAG_PX;
    if (!drag.moved) return undefined;
    hide(timeline);
    if (drag.carried != null) return carry(timeline, drag, x, y);
    const perPixel = (timeline.view.to - timeline.view.from) / timeline.layout.plot;
    timeline.view.pan(drag.from - (x - drag.x) * perPixel - timeline.view.from);
    canvas.classList.add("dragged");
    return timeline.schedule();
  });
  const release = (event) => {
    const ended = drag, [x, y] = at(event);
    drag = null;
    canvas.classList.remove("dragged");
    ended?.ghost?.remove();
    if (!ended || event.type === "pointercancel") return;
    if (!ended.moved) timeline.pick(timeline.barAt(x, y));
    else if (ended.carried != null) drop(timeline, ended.carried, x, y);
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => {
    armed = false;
    hide(timeline);
  });
  canvas.addEventListener("dblclick", (event) => {
    const bar = timeline.barAt(...at(event));
    if (bar == null) return;
    const { start, end } = timeline.model.arrays, length = end[bar] - start[bar];
    timeline.view.show(start[bar] - length * 2, end[bar] + length * 2);
    timeline.schedule();
  });
  // The wheel zooms once the pointer has moved on the timeline or it has the focus; a page that is scrolled past it goes on scrolling.
  canvas.addEventListener("wheel", (event) => {
    const focused = root.getRootNode().activeElement === canvas;
    if (!armed && !focused && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const [x] = at(event), unit = event.deltaMode === 1 ? 16 : 1;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      timeline.view.pan((sideways * unit * (timeline.view.to - timeline.view.from)) / timeline.layout.plot);
    } else {
      timeline.view.zoom(Math.exp(Math.max(-300, Math.min(300, event.deltaY * unit)) / 400), timeline.tickAt(x));
    }
    hide(timeline);
    timeline.schedule();
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (onKey(timeline, event)) event.preventDefault();
  });
  root.addEventListener("keydown", (event) => event.stopPropagation()); // letters are no shortcuts of the app around
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") timeline.step(event.shiftKey ? -1 : 1);
  });
  colors.addEventListener("change", () => timeline.color());
}

function listenToTools(timeline) {
  const { search, previous, next, out, in: closer, reset, png, svg } = timeline.parts;
  search.addEventListener("input", () => timeline.search(search.value));
  const zoom = (factor) => {
    timeline.view.zoom(factor, (timeline.view.from + timeline.view.to) / 2);
    timeline.schedule();
  };
  const actions = [
    [previous, () => timeline.step(-1)], [next, () => timeline.step(1)], [out, () => zoom(KEY_ZOOM)], [closer, () => zoom(1 / KEY_ZOOM)],
    [reset, () => showAll(timeline)], [png, () => timeline.savePng()], [svg, () => timeline.saveSvg()],
  ];
  for (const [button, act] of actions) button.addEventListener("click", act);
}

function showAll(timeline) {
  timeline.view.reset();
  timeline.schedule();
}

/** Do what a key means. Returns whether it means anything. */
function onKey(timeline, { key, shiftKey }) {
  const { view, parts } = timeline, visible = view.to - view.from, middle = (view.from + view.to) / 2;
  const actions = {
    "+": () => view.zoom(1 / KEY_ZOOM, middle), "=": () => view.zoom(1 / KEY_ZOOM, middle),
    "-": () => view.zoom(KEY_ZOOM, middle), "_": () => view.zoom(KEY_ZOOM, middle),
    ArrowLeft: () => (shiftKey ? neighbor(timeline, -1) : view.pan(-KEY_PAN * visible)),
    ArrowRight: () => (shiftKey ? neighbor(timeline, 1) : view.pan(KEY_PAN * visible)),
    ArrowUp: () => otherLane(timeline, -1), ArrowDown: () => otherLane(timeline, 1),
    Home: () => view.reset(), Escape: () => timeline.pick(null), Enter: () => timeline.picked ?? neighbor(timeline, 1),
    "/": () => parts.search.focus(), n: () => timeline.step(1), N: () => timeline.step(-1),
  };
  if (!Object.hasOwn(actions, key)) return false;
  if (key.startsWith("Arrow") && key.length < 10 && timeline.picked == null && (key === "ArrowUp" || key === "ArrowDown")) return false;
  actions[key]();
  timeline.schedule();
  return true;
}

/** Pick the next (1) or previous (-1) bar of the picked one's lane; without one, the first visible bar. */
function neighbor(timeline, by) {
  const { model, view, picked, rows } = timeline;
  if (picked == null) {
    const bars = rows.flat().flatMap(({ tracks }) => tracks).map((track) => track.bar(firstFrom(track.start, 0, track.length - 1, view.from)));
    if (bars.length) timeline.pick(bars[0]);
    return;
  }
  const { panel, row } = placeOf(model, picked), { tracks } = model.panels[panel].rows[row], { start } = model.arrays;
  const bars = Array.from({ length: tracks[tracks.length - 1] - tracks[0] }, (_, number) => tracks[0] + number);
  bars.sort((a, b) => start[a] - start[b] || a - b);
  const chosen = bars[bars.indexOf(picked) + by];
  if (chosen != null) timeline.pick(chosen);
}

/** Pick the bar at the picked one's time in the lane above (-1) or below (1) that has one. */
function otherLane(timeline, by) {
  const { model, picked, rows } = timeline, own = placeOf(model, picked);
  const lanes = rows.flatMap((panel, number) => panel.map((_, row) => ({ panel: number, row })));
  let number = lanes.findIndex(({ panel, row }) => panel === own.panel && row === own.row);
  for (number += by; number >= 0 && number < lanes.length; number += by) {
    const track = rows[lanes[number].panel][lanes[number].row].tracks[0];
    if (!track) continue;
    timeline.pick(track.bar(firstFrom(track.end, 0, track.length - 1, model.arrays.start[picked] + 1)));
    return;
  }
}

function hover(timeline, x, y) {
  const { hover: box, canvas } = timeline.parts, bar = timeline.barAt(x, y);
  canvas.style.cursor = bar == null ? "" : "pointer";
  if (bar !== timeline.hovered) {
    timeline.hovered = bar;
    timeline.schedule();
  }
  const lines = bar == null ? timeline.memoryAt(x, y) : barLines(timeline.model, bar);
  box.replaceChildren(...lines.map((line, number) => element(number ? "div" : "b", { textContent: line })));
  box.hidden = !lines.length;
  if (box.hidden) return;
  const right = x + 16 + box.offsetWidth <= timeline.layout.width;
  box.style.left = `${right ? x + 14 : Math.max(0, x - 14 - box.offsetWidth)}px`;
  box.style.top = `${y + 16}px`;
}

function hide(timeline) {
  timeline.parts.hover.hidden = true;
  if (timeline.hovered != null) timeline.schedule();
  timeline.hovered = null;
}

/** Show a bar under the pointer while it is dragged. */
function carry(timeline, drag, x, y) {
  if (!drag.ghost) {
    const { model } = timeline;
    drag.ghost = element("div", { className: "ghost", textContent: model.names[model.arrays.task[drag.carried]] });
    timeline.parts.canvas.after(drag.ghost);
  }
  drag.ghost.style.left = `${x + 8}px`;
  drag.ghost.style.top = `${y - 10}px`;
}

/** Report that a bar was dropped: in which lane of its panel, and before which task (null: after all). */
function drop(timeline, bar, x, y) {
  const { model, rows } = timeline, target = rowAt(timeline.layout, y), own = placeOf(model, bar);
  if (!target || target.panel !== own.panel) return;
  const { device, lane } = model.panels[target.panel].rows[target.row], { start, end, task } = model.arrays;
  const tick = timeline.tickAt(x);
  const later = rows[target.panel][target.row].tracks
    .flatMap((track) => Array.from({ length: track.length }, (_, number) => track.bar(number)))
    .filter((other) => other !== bar && (start[other] + end[other]) / 2 > tick)
    .sort((a, b) => start[a] - start[b]);
  timeline.report("moved", { task: model.names[task[bar]], device, lane, before: later.length ? model.names[task[later[0]]] : null });
}
