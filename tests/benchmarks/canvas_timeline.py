"""Measure how fluid the canvas of timelines is with 50,000 spans in headless Chromium, and what it sends.

Target: 30 frames a second while panning.
"""

import gzip
import sys
import tempfile
import time
from pathlib import Path

from tests.support.canvas_pages import PAN, TIMELINE, write_page
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.many_spans import many_spans
from ui.present.timeline_canvas.payload import timelines_payload

FRAMES = 120


def main() -> int:
    """Print the figures. Returns 2 without a browser."""
    if CHROMIUM is None:
        print("no Chromium on this machine", file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for count, devices in ((50_000, 4), (50_000, 16), (500_000, 4)):
            timeline = many_spans(count, devices)
            begun_s = time.process_time()
            payload = timelines_payload([timeline])
            encoding_s = time.process_time() - begun_s
            path = Path(folder) / "page.html"
            page = browser.new_page(viewport={"width": 1600, "height": 900})
            page.goto(write_page(path, [timeline]))
            page.locator(".schedcast-timeline").wait_for()
            page.wait_for_function(f"{TIMELINE}.frames > 0")
            frames = page.evaluate(PAN, FRAMES)
            print(f"{count:,} spans on {2 * devices} lanes: {frames['per_second']:.0f} frames a second", end="; ")
            print(f"drawing one takes {frames['draw_ms']:.1f} ms")
            sizes = [len(payload), len(gzip.compress(payload, mtime=0)), path.stat().st_size]
            print(f"  encoded in {encoding_s:.2f} s of CPU: {sizes[0]:,} bytes, {sizes[1]:,} compressed, page {sizes[2]:,}")
            page.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
