"""Makes the README's pictures of the app and of a report again: python -m tools.pictures [FOLDER] (default: .github).

    app.webp      a short animation: a model is chosen, a slider moved, and the numbers change
    search.png    the page of a search
    editor.png     the schedule editor, with a plan's updates moved to a second stream
    report.png    the page that `schedcast report` makes of a validation, a search and a difference

It runs the commands and the app as users do, on this machine, and takes about four minutes.
"""

import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright

from tests.support.app_server import running_app
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.places import ROOT, SUPPORT

#: CSS pixels of the window, its height for the animation and for still pictures, and pixels that the pictures are wide.
WINDOW_WIDTH, LOW, HIGH, WIDTH = 1440, 940, 1300, 1000
#: Milliseconds that a frame of the animation is shown: while something is typed or moved, and when its answer is there.
MOVING_MS, ANSWER_MS, LAST_MS = 450, 1400, 2200
JOB = ("--model", "lenet5", "--batch", "256")
LONGEST_MS = 300_000


def shrunk(png: bytes) -> Image.Image:
    """A screenshot as wide as the pictures are."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    return image.resize((WIDTH, image.height * WIDTH // image.width), Image.Resampling.LANCZOS)


def answered(page: Page) -> None:
    """Wait until the app shows the answer to the last change."""
    page.locator("[data-testid='stApp'][data-test-script-state='notRunning']").wait_for()
    page.get_by_test_id("stMetricValue").first.wait_for()
    page.wait_for_timeout(900)  # charts and timelines are drawn after that


@contextmanager
def opened(browser: Browser, address: str, height: int) -> Iterator[Page]:
    """A page at an address, in a window of some height."""
    page = browser.new_page(viewport={"width": WINDOW_WIDTH, "height": height}, color_scheme="light")
    page.set_default_timeout(LONGEST_MS)
    page.goto(address)
    yield page
    page.close()


class Film:
    """The frames of the animation, each with the milliseconds that it is shown."""

    def __init__(self, page: Page):
        self._page = page
        self._frames: list[tuple[Image.Image, int]] = []

    def shoot(self, shown_ms: int) -> None:
        """Add what the page shows."""
        self._frames.append((shrunk(self._page.screenshot()), shown_ms))

    def save(self, path: Path) -> None:
        """Write the animation, which repeats for ever."""
        (first, _), *others = self._frames
        durations = [shown_ms for _, shown_ms in self._frames]
        first.save(path, save_all=True, append_images=[frame for frame, _ in others], duration=durations, loop=0, quality=70, method=6)


def film_what_if(page: Page, path: Path) -> None:
    """Film how a model is chosen and a slider moved."""
    answered(page)
    film = Film(page)
    film.shoot(ANSWER_MS)
    model = page.get_by_role("combobox", name="Model").first
    model.click()
    film.shoot(MOVING_MS)
    for typed in ("res", "resnet50"):
        model.fill(typed)
        page.wait_for_timeout(200)
        film.shoot(MOVING_MS)
    page.keyboard.press("Enter")
    page.get_by_text("resnet50, batch 32").wait_for()
    answered(page)
    film.shoot(ANSWER_MS)
    bandwidth = page.get_by_role("slider", name="Memory bandwidth")
    for _ in range(3):
        move(bandwidth)
        answered(page)
        film.shoot(MOVING_MS if _ < 2 else LAST_MS)
    film.save(path)


def move(slider: Locator) -> None:
    """Move a slider one step to the right."""
    slider.press("ArrowRight")
    slider.page.wait_for_timeout(500)  # Streamlit waits a moment for the next key before it sends the value


def picture_search(page: Page, path: Path) -> None:
    """Search on the app's page, and take its picture."""
    page.get_by_role("button", name="Search", exact=True).click()
    page.get_by_text("is predicted fastest of").wait_for()
    page.locator(".js-plotly-plot .main-svg").first.wait_for()
    answered(page)
    shrunk(page.screenshot()).save(path, optimize=True)


def picture_editor(page: Page, path: Path) -> None:
    """Move all updates to another stream in the schedule editor, and take its picture."""
    page.get_by_text("own order.").wait_for()
    page.get_by_text("Phase", exact=True).first.click()
    for label, option in (("Phase", "update"), ("To", "cuda:0 stream 1")):
        page.wait_for_timeout(1500)
        box = page.get_by_test_id("stSelectbox").filter(has=page.get_by_text(label, exact=True))
        box.get_by_role("combobox").click()
        page.get_by_role("option", name=option, exact=True).click()
    page.wait_for_timeout(1500)
    page.get_by_role("button", name="Move", exact=True).click()
    page.get_by_text("1 edit", exact=True).wait_for()
    page.wait_for_timeout(1500)
    shrunk(page.screenshot()).save(path, optimize=True)


def write_report(folder: Path) -> Path:
    """The page that `schedcast report` makes of a job's validation, search and difference."""
    out, searched, differs, page = folder / "job", folder / "search.json", folder / "diff", folder / "report.html"
    for command in (
        ("validate", *JOB, "--strategy", "backward-fusion", "--strategy", "turbodl", "--quick", "--out", out),
        ("search", *JOB, "--out", searched),
        ("diff", f"{out}:turbodl", "--out", differs),
        ("report", out, searched, differs, "-o", page),
    ):
        subprocess.run([sys.executable, "-m", "ui.cli", *map(str, command)], cwd=ROOT, check=True)
    return page


def main(out: Path) -> None:
    """Make every picture."""
    with sync_playwright() as playwright, TemporaryDirectory() as home:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        with running_app(Path(home), server=SUPPORT / "real_server.py") as port:
            address, job = f"http://127.0.0.1:{port}", "machine=h100&batch=32"
            with opened(browser, f"{address}/what-if?model=resnet18&{job}&strategy=backward-fusion&strategy=turbodl", LOW) as page:
                film_what_if(page, out / "app.webp")
            with opened(browser, f"{address}/search?model=resnet18&{job}", HIGH) as page:
                picture_search(page, out / "search.png")
            with opened(browser, f"{address}/board?model=resnet18&{job}&strategy=backward-fusion", HIGH) as page:
                picture_editor(page, out / "editor.png")
        with opened(browser, write_report(Path(home)).as_uri(), HIGH) as page:
            page.locator(".schedcast-chart .main-svg").first.wait_for()
            shrunk(page.screenshot()).save(out / "report.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / ".github")
