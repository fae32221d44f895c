"""Measure how long a user of the app waits in headless Chromium: for the first page, and for a new timeline after a slider's move.

Targets: the first page 3 s after the start; a new timeline 0.5 s after the move for resnet50 and 2 s for resnet152, with their graphs
captured. A wait begins when the browser receives the key, and includes the moment that a slider of Streamlit waits for another one.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from tests.support.app_server import running_app
from tests.support.chromium import CHROMIUM, FLAGS
from ui.app.model import SERVER

MODELS = ("resnet50", "resnet152")
MACHINES = ("h100", "this-cpu")
#: Those of the page at first, and with TurboDL, whose plan depends on costs. The baseline and plain PyTorch are predicted with them.
CHOSEN = (("backward-fusion", "forward-fusion"), ("backward-fusion", "forward-fusion", "turbodl"))
MOVES = 5
#: Begins to watch for an answer: seconds until the timeline has new data and is drawn, and until the whole page is settled.
WATCH = """(place) => {
  const app = document.querySelector('[data-testid="stApp"]'), shown = () => place.timeline;
  const { model, frames } = shown(), begun = performance.now(), since = () => (performance.now() - begun) / 1000;
  const until = (condition) => new Promise(done => {
    const look = () => condition() ? requestAnimationFrame(() => done(since())) : setTimeout(look, 5);
    look();
  });
  const drawn = until(() => shown().model !== model && shown().frames > frames);
  window.waited = drawn.then(async timeline => [timeline, await until(() => app.dataset.testScriptState === 'notRunning')]);
}"""


def first_page_s(browser: Any) -> float:
    """Seconds from the start of the server to the text of its first page."""
    with tempfile.TemporaryDirectory() as home:
        begun_s = time.perf_counter()
        with running_app(Path(home), server=SERVER) as port:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{port}")
            page.get_by_role("heading").first.wait_for()
            waited_s = time.perf_counter() - begun_s
            page.close()
    return waited_s


def moves_s(page: Any, move: Callable[[], None]) -> list[tuple[float, float]]:
    """Seconds from each move to its timeline, and to the settled page."""
    waits_s = []
    for _ in range(MOVES):
        page.locator(".schedcast-timeline").evaluate(WATCH)
        move()
        waits_s.append(page.evaluate("() => window.waited"))
    return waits_s


def main() -> int:
    """Print the figures. Returns 2 without a browser."""
    if CHROMIUM is None:
        print("no Chromium on this machine", file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        starts_s = [first_page_s(browser) for _ in range(3)]
        print(f"first page: {statistics.median(starts_s):.2f} s ({', '.join(f'{wait:.2f}' for wait in starts_s)})", flush=True)
        with running_app(Path(home), server=SERVER) as port:
            for model, machine, strategies in product(MODELS, MACHINES, CHOSEN):
                page = browser.new_page(viewport={"width": 1600, "height": 1400})
                page.set_default_timeout(120_000)
                chosen = "".join(f"&strategy={name}" for name in strategies)
                page.goto(f"http://127.0.0.1:{port}/what-if?model={model}&batch=32&machine={machine}{chosen}")
                page.locator(".schedcast-timeline").wait_for()
                page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for()
                slider = page.get_by_role("slider", name="Memory bandwidth")
                waits_s = moves_s(page, lambda slider=slider: slider.press("ArrowRight"))
                timeline_s, page_s = (statistics.median(each) for each in zip(*waits_s, strict=True))
                each = ", ".join(f"{timeline:.2f}" for timeline, _ in waits_s)
                words = f"{model} on {machine}, {' and '.join(strategies)}"
                print(f"{words}: the timeline {timeline_s:.2f} s after a move ({each}), the page {page_s:.2f} s", flush=True)
                page.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
