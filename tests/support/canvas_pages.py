"""HTML pages with timelines, and what tests ask a browser about them."""

from collections.abc import Sequence
from pathlib import Path

from traces.documents.timeline import Timeline
from ui.present.timeline_canvas.page import head, timelines_html

#: The object that draws the first timeline of a page.
TIMELINE = "document.querySelector('.schedcast-timeline').timeline"
#: Pans for some frames to the right and back, and returns frames per second and the median time of drawing a frame in ms.
PAN = """async (frames) => {
  const shown = document.querySelector('.schedcast-timeline').timeline, draws = [];
  shown.view.zoom(1 / 2, shown.view.end / 2);
  const before = shown.frames, begun = performance.now();
  for (let frame = 0; frame < frames; frame++) {
    shown.view.pan((shown.view.to - shown.view.from) * (frame < frames / 2 ? 0.01 : -0.01));
    shown.schedule();
    await new Promise(requestAnimationFrame);
  }
  const seconds = (performance.now() - begun) / 1000, drawn = shown.frames - before;
  for (let frame = 0; frame < 9; frame++) {
    const start = performance.now();
    shown.draw();
    draws.push(performance.now() - start);
  }
  shown.view.reset();
  shown.draw();
  return { per_second: drawn / seconds, draw_ms: draws.sort((a, b) => a - b)[4], drawn };
}"""


def write_page(path: Path, timelines: Sequence[Timeline]) -> str:
    """Write a page that shows timelines on one axis. Returns its address."""
    style = "<style>:root { color-scheme: light dark } body { margin: 0 }</style>"
    path.write_text(
        f'<!doctype html><html><head><meta charset="utf-8">{style}{head()}</head><body>{timelines_html(timelines)}</body></html>'
    )
    return path.as_uri()
