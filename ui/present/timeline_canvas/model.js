// Reads the payload that payload.py writes, and answers questions about its bars. Times in ticks, unless a name ends in Ms.

const TYPES = { uint8: Uint8Array, uint32: Uint32Array, int32: Int32Array, float64: Float64Array };

/** The header and the arrays of a payload (a Uint8Array). */
export function decode(payload) {
  const bytes = payload.slice(); // in a buffer of its own, where the arrays are aligned
  if (String.fromCharCode(...bytes.subarray(0, 4)) !== "STL1") throw new Error("these bytes are not a timeline");
  const first = 8 + new DataView(bytes.buffer).getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, first)));
  const arrays = {};
  for (const [name, [type, place, length]] of Object.entries(header.arrays)) {
    arrays[name] = new TYPES[type](bytes.buffer, first + place, length);
  }
  return { ...header, arrays };
}

/** Milliseconds as the rest of the program prints them, with about three digits. */
export function digits(value) {
  const size = Math.abs(value);
  if (size >= 1000) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  if (size >= 1) return value.toFixed(2);
  return size >= 0.1 ? value.toFixed(3) : String(Number(value.toPrecision(3)));
}

/** Start and duration of a bar in ms; both are those of the whole span if the bar shows a part of it. */
export function timesMs(model, bar) {
  const { start, end } = model.arrays;
  return model.clipped[bar] ?? [start[bar] * model.tick_ms, (end[bar] - start[bar]) * model.tick_ms];
}

/** What a bar is, in lines of text. */
export function barLines(model, bar) {
  const { task, layer, phase, microbatch, iteration, cause } = model.arrays;
  const [startMs, durationMs] = timesMs(model, bar);
  const of = model.names[layer[bar]] ? ` of ${model.names[layer[bar]]}` : "";
  const lines = [
    model.names[task[bar]],
    `${model.phases[phase[bar]].name}${of}, microbatch ${microbatch[bar]}`,
    `${digits(durationMs)} ms, from ${digits(startMs)} ms, iteration ${iteration[bar]}`,
  ];
  if (cause[bar]) lines.push(`on the critical path, waited for: ${model.causes[cause[bar] - 1]}`);
  return lines;
}

/** A bar's panel and row numbers. */
export function placeOf(model, bar) {
  for (const [panel, { rows }] of model.panels.entries()) {
    for (const [row, { tracks }] of rows.entries()) {
      if (bar >= tracks[0] && bar < tracks[tracks.length - 1]) return { panel, row };
    }
  }
  return null;
}

/** Bars of other panels with the name and microbatch of `bar`: the measured one of a predicted one. */
export function counterparts(model, bar) {
  const { task, microbatch } = model.arrays;
  const own = placeOf(model, bar).panel;
  const others = [];
  model.panels.forEach(({ rows }, panel) => {
    if (panel === own || !rows.length) return;
    const last = rows[rows.length - 1].tracks;
    for (let at = rows[0].tracks[0]; at < last[last.length - 1]; at++) {
      if (task[at] === task[bar] && microbatch[at] === microbatch[bar]) others.push({ panel, bar: at });
    }
  });
  return others;
}
