// One timeline on a page: holds its state, draws it when something changes, and tells what the user picks.

import { element, fillLegend, partsOf } from "./parts.js";
import { barLines, counterparts, decode, digits, placeOf, timesMs } from "./model.js";
import { tracksOf } from "./tracks.js";
import { View } from "./view.js";
import { layoutOf, rowAt, stripAt } from "./layout.js";
import { memoryLines } from "./memory.js";
import { draw, drawLegend, legendRows } from "./draw.js";
import { search } from "./search.js";
import { CanvasSurface, FONT, SvgSurface } from "./surfaces.js";
import { listen } from "./control.js";
import { download } from "./download.js";

/** A canvas with more pixels on a side is not drawn by browsers. */
const MOST_PIXELS = 16_000;
const LEGEND_PX = 26; // of each row below exported pictures
const HINT = "Scroll or + and − to zoom, drag or arrow keys to move, click a bar for details, / to search.";
const EDITABLE_HINT = "Scroll or + and − to zoom, drag a bar to move its task, click it for details, / to search.";

export class Timeline {
  /** `report(event, value)` is called with "selected" and "moved" if the payload asks for them. */
  constructor(place, report = () => {}) {
    this.report = report;
    this.parts = partsOf();
    this.parts.root.timeline = this;
    this.context = this.parts.canvas.getContext("2d");
    this.widths = new Map(); // of texts, in pixels
    this.frames = 0;
    place.append(this.parts.root);
    listen(this);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.parts.root);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.schedule();
    this.scheme.addEventListener("change", this.redraw);
  }

  /** Show the timelines of a payload, a Uint8Array. The visible part stays, in ms, unless it was all. */
  update(payload) {
    if (this.payload?.length === payload.length && this.payload.every((byte, at) => byte === payload[at])) return this.schedule();
    const kept = this.view && !this.view.isWhole ? [this.view.from, this.view.to].map((tick) => tick * this.model.tick_ms) : null;
    this.payload = payload.slice();
    this.model = decode(payload);
    this.view = new View(this.model.end_ms / this.model.tick_ms);
    if (kept && kept[0] < this.model.end_ms) this.view.show(...kept.map((ms) => ms / this.model.tick_ms));
    this.picked = this.hovered = null;
    this.others = [];
    const { title, canvas, words, details } = this.parts;
    title.textContent = this.model.title;
    title.hidden = !this.model.title;
    canvas.setAttribute("aria-label", `Timeline. ${this.model.title}`);
    words.textContent = this.model.panels.map(({ sentence }) => sentence).join(" ");
    details.textContent = this.hint;
    this.color();
    return this.resize();
  }

  /** What a user can do here, in words. */
  get hint() {
    return this.model.editable ? EDITABLE_HINT : HINT;
  }

  /** Choose the colors: by phase, or by group of layers. */
  color() {
    const byPhase = this.parts.colors.value === "phase", { model } = this;
    const numbers = model.arrays[byPhase ? "phase" : "group"];
    this.colors = byPhase ? model.phases : model.groups;
    this.rows = tracksOf(model, numbers);
    const used = new Set(numbers);
    const entries = this.colors.filter((_, number) => used.has(number));
    if (model.arrays.critical_start.length) entries.push({ name: "critical path", color: model.critical_color, kind: "stripe" });
    if (model.arrays.idle_start.length) entries.push({ name: "idle", color: model.idle_color, kind: "hatch" });
    entries.push(...model.memory_kinds.map((kind) => ({ ...kind, kind: "area" })));
    this.entries = entries;
    fillLegend(this.parts.legend, entries, (name) => this.search(name));
    this.search(this.parts.search.value);
  }

  /** Highlight the bars that match a text, and count them. */
  search(text) {
    const { parts, model } = this;
    parts.search.value = text;
    this.hits = search(model, this.rows, text);
    this.hit = -1;
    const several = model.panels.length > 1;
    const counts = this.hits?.panels.map(({ count, totalMs }, panel) => {
      return `${several ? `${model.panels[panel].kind}: ` : ""}${count} ${count === 1 ? "match" : "matches"}, ${digits(totalMs)} ms`;
    });
    parts.matches.textContent = counts?.join("; ") ?? "";
    parts.previous.disabled = parts.next.disabled = !this.hits?.bars.length;
    this.schedule();
  }

  /** Pick the next match, or with -1 the previous one, and show it. */
  step(by) {
    const bars = this.hits?.bars;
    if (!bars?.length) return;
    this.hit = this.hit < 0 && by < 0 ? bars.length - 1 : (this.hit + by + bars.length) % bars.length;
    this.pick(bars[this.hit]);
  }

  /** Pick a bar and show it; null picks none. */
  pick(bar) {
    const { model, parts } = this;
    this.picked = bar;
    const others = bar == null ? [] : counterparts(model, bar).slice(0, 50);
    this.others = others.map((other) => other.bar);
    if (bar == null) {
      parts.details.textContent = this.hint;
    } else {
      const { panel, row } = placeOf(model, bar);
      const { kind, rows } = model.panels[panel];
      const compared = others.slice(0, 1).map((other) => {
        const [startMs, durationMs] = timesMs(model, other.bar);
        return `${model.panels[other.panel].kind}: ${digits(durationMs)} ms, from ${digits(startMs)} ms`;
      });
      parts.details.textContent = [...barLines(model, bar), `${kind} on ${rows[row].label}`, ...compared].join(" · ");
      this.view.reveal(model.arrays.start[bar], model.arrays.end[bar]);
    }
    if (model.events.includes("selected")) this.report("selected", bar == null ? null : this.describe(bar));
    this.schedule();
  }

  /** What Python receives of a bar. */
  describe(bar) {
    const { model } = this, { panel, row } = placeOf(model, bar), { device, lane } = model.panels[panel].rows[row];
    const [start_ms, duration_ms] = timesMs(model, bar);
    const { task, layer, phase, microbatch, iteration } = model.arrays;
    return {
      task: model.names[task[bar]], layer: model.names[layer[bar]], phase: model.phases[phase[bar]].name, kind: model.panels[panel].kind,
      device, lane, start_ms, duration_ms, microbatch: microbatch[bar], iteration: iteration[bar],
    };
  }

  /** The bar at a point of the canvas; null if there is none. */
  barAt(x, y) {
    const place = rowAt(this.layout, y);
    if (!place || x < this.layout.gutter) return null;
    const tolerance = (2 * (this.view.to - this.view.from)) / this.layout.plot;
    for (const track of this.rows[place.panel][place.row].tracks.toReversed()) {
      const at = track.at(this.tickAt(x), tolerance);
      if (at >= 0) return track.bar(at);
    }
    return null;
  }

  /** What a strip of memory holds at a point of the canvas, in lines of text; none elsewhere. */
  memoryAt(x, y) {
    const place = stripAt(this.layout, y);
    if (!place || x < this.layout.gutter) return [];
    return memoryLines(this.model, this.model.panels[place.panel].memory[place.strip], this.tickAt(x));
  }

  /** The time at a place on the canvas, in ticks. */
  tickAt(x) {
    return this.view.from + ((x - this.layout.gutter) / this.layout.plot) * (this.view.to - this.view.from);
  }

  /** The point on the canvas where a bar's middle is. */
  pointOf(bar) {
    const { start, end } = this.model.arrays, { panel, row } = placeOf(this.model, bar);
    const share = ((start[bar] + end[bar]) / 2 - this.view.from) / (this.view.to - this.view.from);
    return { x: this.layout.gutter + share * this.layout.plot, y: this.layout.panels[panel].tops[row] + this.layout.lane / 2 };
  }

  textWidth = (text) => {
    if (this.widths.size > 20_000) this.widths.clear();
    if (!this.widths.has(text)) {
      this.context.font = FONT;
      this.widths.set(text, this.context.measureText(text).width);
    }
    return this.widths.get(text);
  };

  /** Fit the canvas to the page. */
  resize() {
    if (!this.model) return;
    const width = Math.floor(this.parts.root.clientWidth);
    if (width < 50) return;
    this.layout = layoutOf(this.model, width, this.textWidth);
    this.schedule();
  }

  /** Draw before the next frame. */
  schedule() {
    if (!this.request && this.layout) {
      this.request = requestAnimationFrame(() => {
        this.request = 0;
        this.draw();
      });
    }
  }

  /** Draw now. */
  draw() {
    const { canvas } = this.parts, { width, height } = this.layout;
    const scale = Math.min(devicePixelRatio || 1, MOST_PIXELS / height, MOST_PIXELS / width);
    const size = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== size[0] || canvas.height !== size[1]) {
      [canvas.width, canvas.height] = size;
      canvas.style.height = `${height}px`;
    }
    draw(new CanvasSurface(this.context, width, height, scale), this.scene());
    this.frames += 1;
  }

  scene() {
    const { model, rows, colors, view, layout, hits, picked, others, hovered, textWidth } = this;
    const byPhase = this.parts.colors.value === "phase";
    return { model, rows, colors, view, layout, hits, picked, others, hovered, textWidth, byPhase, theme: this.theme() };
  }

  /** Colors of the page: ink and background, and mixtures of them. */
  theme() {
    const look = getComputedStyle(this.parts.root);
    const [ink, page] = [look.color, look.backgroundColor].map((color) => color.match(/[\d.]+/g).slice(0, 3).map(Number));
    const mixed = (share) => `#${ink.map((part, at) => Math.round(part * share + page[at] * (1 - share)).toString(16).padStart(2, "0")).join("")}`;
    return { ink: mixed(1), page: mixed(0), soft: mixed(0.68), faint: mixed(0.16), lane: mixed(0.04) };
  }

  /** Height of the picture with its legend. */
  get exportHeight() {
    return this.layout.height + legendRows(this.entries, this.layout.width, this.textWidth).length * LEGEND_PX;
  }

  /** Draw the visible part and the legend on a surface with room for both. */
  export(surface) {
    const theme = this.theme(), { width, height } = this.layout, rows = legendRows(this.entries, width, this.textWidth);
    surface.rect(0, 0, width, this.exportHeight, theme.page);
    draw(surface, { ...this.scene(), hovered: null });
    rows.forEach((row, number) => drawLegend(surface, row, height + (number + 0.5) * LEGEND_PX, theme));
    return surface;
  }

  /** The visible part as an SVG file's text. */
  svg() {
    return String(this.export(new SvgSurface(this.layout.width, this.exportHeight)));
  }

  saveSvg() {
    download(new Blob([this.svg()], { type: "image/svg+xml" }), "timeline.svg");
  }

  savePng() {
    const { width } = this.layout, height = this.exportHeight, scale = this.parts.canvas.width / width;
    const canvas = element("canvas", { width: this.parts.canvas.width, height: Math.round(height * scale) });
    this.export(new CanvasSurface(canvas.getContext("2d"), width, height, scale));
    canvas.toBlob((blob) => download(blob, "timeline.png"), "image/png");
  }

  /** Remove it from the page. */
  destroy() {
    cancelAnimationFrame(this.request);
    this.observer.disconnect();
    this.scheme.removeEventListener("change", this.redraw);
    this.parts.root.remove();
  }
}
