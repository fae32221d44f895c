// Where things are on the picture, in CSS pixels.

const HEADING = 26, BETWEEN = 10, AXIS = 30, TOP = 4, RIGHT = 14;
const LANE = 24, NARROW_LANE = 16, MANY_LANES = 36, NARROWEST_LANE = 10, VERY_MANY_LANES = 90;
const STRIP_WORDS = 18, STRIP = 46, NARROW_STRIP = 24, MANY_STRIPS = 4; // of memory
const LEAST_GUTTER = 60, MOST_GUTTER = 260;

/** Height of lanes, the top of every panel, row and strip of memory, the width of the gutter with the names of lanes, and the height of all. */
export function layoutOf(model, width, textWidth) {
  const lanes = model.panels.reduce((sum, { rows }) => sum + rows.length, 0);
  const lane = lanes > VERY_MANY_LANES ? NARROWEST_LANE : lanes > MANY_LANES ? NARROW_LANE : LANE;
  const labels = model.panels.flatMap(({ rows, memory }) => [...rows, ...memory].map(({ label }) => textWidth(label)));
  const widest = Math.max(0, ...labels);
  const strip = model.panels.some(({ memory }) => memory.length > MANY_STRIPS) ? NARROW_STRIP : STRIP;
  const gutter = Math.round(Math.min(Math.max(LEAST_GUTTER, widest + 16), MOST_GUTTER, width * 0.35));
  let y = TOP;
  const panels = model.panels.map(({ rows, memory }) => {
    const heading = y;
    y += HEADING;
    const tops = rows.map((_, row) => y + row * lane);
    y += Math.max(1, rows.length) * lane;
    const strips = memory.map((_, number) => ({ top: y + number * (STRIP_WORDS + strip) + STRIP_WORDS, height: strip }));
    y += memory.length * (STRIP_WORDS + strip) + BETWEEN;
    return { heading, tops, strips, bottom: y - BETWEEN };
  });
  return { lane, gutter, panels, width, plot: Math.max(10, width - gutter - RIGHT), axis: y, height: y + AXIS, headingHeight: HEADING };
}

/** The row at a height, as { panel, row }; null between panels. */
export function rowAt(layout, y) {
  for (const [panel, { tops }] of layout.panels.entries()) {
    for (const [row, top] of tops.entries()) if (y >= top && y < top + layout.lane) return { panel, row };
  }
  return null;
}

/** The strip of memory at a height, as { panel, strip }; null between strips. */
export function stripAt(layout, y) {
  for (const [panel, { strips }] of layout.panels.entries()) {
    for (const [strip, { top, height }] of strips.entries()) if (y >= top - 2 && y < top + height + 2) return { panel, strip };
  }
  return null;
}
