"""The app and a report page in Chromium: charts and pictures are drawn, and no script fails."""

import os
from pathlib import Path

import pytest

from tests.support.app_server import running_app
from tests.support.chromium import CHROMIUM
from tests.support.places import SUPPORT
from tests.support.sample_runs import write_sample_report

#: If set, the folder that keeps a screenshot of every view.
SCREENSHOTS = os.environ.get("SCHEDCAST_SCREENSHOTS")

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_sample_report(tmp_path_factory.mktemp("reports") / "resnet50")


@pytest.fixture(scope="module")
def address(report, tmp_path_factory):
    """The app, running on a free port of this machine."""
    with running_app(tmp_path_factory.mktemp("home"), [report]) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(params=["light", "dark"])
def page(browser, request):
    """An empty page. The test fails if one of the page's scripts fails."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=request.param)
    page.set_default_timeout(60_000)
    page.scheme = request.param
    errors = []
    page.on("pageerror", lambda error: errors.append(error))
    yield page
    page.close()
    assert errors == []


def keep(page, name):
    if SCREENSHOTS:
        page.wait_for_timeout(1500)
        page.set_viewport_size({"width": 1280, "height": 2600})
        page.wait_for_timeout(1500)
        page.screenshot(path=Path(SCREENSHOTS) / f"{name}-{page.scheme}.png")


def drawn_timeline(page, title):
    """The timeline with that title, once its canvas is drawn."""
    timeline = page.locator(".schedcast-timeline", has_text=title)
    timeline.wait_for()
    drawn = "timeline => new Promise(done => { const look = () => timeline.timeline.frames ? done() : setTimeout(look, 50); look(); })"
    timeline.evaluate(drawn)
    return timeline


def colors_drawn(timeline):
    """How many colors the canvas shows."""
    return timeline.locator("canvas").evaluate("""canvas => {
      const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return new Set(new Uint32Array(pixels.buffer)).size;
    }""")


def test_report_in_the_app(page, address):
    page.goto(f"{address}/validate")
    timeline = drawn_timeline(page, "predicted 51.3 ms, measured 52.4 ms: -2.0 %")
    assert page.get_by_text("3 strategies ran.").count() == 1
    canvas = timeline.locator("canvas")
    canvas.evaluate("canvas => canvas.scrollIntoView({ block: 'center' })")  # not below the menu
    assert colors_drawn(timeline) > 6
    place = timeline.evaluate("timeline => timeline.timeline.pointOf(timeline.timeline.model.arrays.task[0])")
    canvas.hover(position=place)
    assert "forward of stage0" in timeline.locator(".hover").text_content()
    canvas.click(position=place)
    assert "predicted on gpu0 stream 0 · measured:" in timeline.locator(".details").text_content()
    timeline.get_by_role("searchbox").press_sequentially("record")  # "r" would run the app again, and "c" clear its cache
    assert timeline.locator(".matches").text_content() == "predicted: 0 matches, 0 ms; measured: 0 matches, 0 ms"
    assert page.get_by_role("dialog").count() == 0
    keep(page, "report")


def test_a_trace_goes_to_perfetto_when_it_answers(page, address):
    """A page in the place of ui.perfetto.dev answers PING, as that does, and shows what it receives."""
    perfetto = """<script>
      addEventListener("message", async ({ data, source, origin }) => {
        if (data === "PING") return source.postMessage("PONG", origin);
        const plain = new Blob([data.perfetto.buffer]).stream().pipeThrough(new DecompressionStream("gzip"));
        const { traceEvents } = await new Response(plain).json();
        document.title = `${data.perfetto.title}: ${traceEvents.some(({ name }) => name === "F0 stage0")}`;
      });
    </script>"""
    page.context.route("https://ui.perfetto.dev/**", lambda route: route.fulfill(body=perfetto, content_type="text/html"))
    page.goto(f"{address}/validate")
    drawn_timeline(page, "predicted 51.3 ms")
    with page.context.expect_page() as opened:
        page.get_by_role("button", name="Open in Perfetto").click()
    opened.value.wait_for_function("document.title !== ''")
    assert opened.value.title() == "Schedcast: true"
    assert opened.value.url.endswith("mode=embedded")
    page.locator(".schedcast-perfetto span").filter(has_text="Sending").wait_for(state="detached")


def test_what_if_in_the_app(page, address):
    page.goto(f"{address}/what-if")
    page.get_by_text("Look at").wait_for()
    assert colors_drawn(drawn_timeline(page, "turbodl 28.0 ms")) > 4
    keep(page, "what-if")


def test_report_page_draws_its_charts_when_they_are_seen(page, report):
    page.goto((report / "index.html").as_uri())
    drawn_timeline(page, "measured: a step of 52.4 ms")
    page.locator(".schedcast-chart").get_by_text("turbodl is 1.42x as fast as plain PyTorch").wait_for()
    page.get_by_text("How is this computed?").locator("visible=true").first.click()
    page.get_by_text("predicted / measured - 1 of the times next to it").locator("visible=true").first.wait_for()
    details = page.get_by_text("Where the error is").first
    details.click()
    page.get_by_text("Error by layer").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "the page does not scroll sideways"
    keep(page, "page")


@pytest.fixture(scope="module")
def predicting(tmp_path_factory):
    """The app with its real predictor."""
    with running_app(tmp_path_factory.mktemp("predicting"), server=SUPPORT / "real_server.py") as port:
        yield f"http://127.0.0.1:{port}"


def test_the_names_of_figures_are_not_cut_off_in_a_narrow_window(browser, predicting):
    page = browser.new_page(viewport={"width": 900, "height": 1000})
    page.set_default_timeout(60_000)
    page.goto(f"{predicting}/trace")
    page.get_by_test_id("stMetricValue").first.wait_for()
    names = page.locator("[data-testid='stMetricLabel'] *")
    assert names.evaluate_all("all => all.filter(e => e.textContent && getComputedStyle(e).whiteSpace === 'nowrap').length") == 0


def test_a_model_is_picked_a_slider_moved_and_the_link_opened_again(browser, predicting):
    page = browser.new_page(viewport={"width": 1280, "height": 1600})
    page.set_default_timeout(30_000)
    page.goto(f"{predicting}/what-if?machine=h100&strategy=backward-fusion&model=lenet5&batch=512")
    first = step_time(page)
    page.get_by_role("combobox", name="Model").first.click()
    page.get_by_role("combobox", name="Model").first.fill("rnn_bitstream")
    page.keyboard.press("Enter")
    page.get_by_text("rnn_bitstream, batch 512").wait_for()
    assert step_time(page) != first
    slider = page.get_by_role("slider", name="Launch time")
    before = step_time(page)
    for _ in range(4):
        slider.press("ArrowLeft")
        page.wait_for_timeout(500)  # Streamlit waits a moment for the next key before it sends the value
        step_time(page)
    page.get_by_text("with launch=0.5").wait_for()
    after = step_time(page)
    assert after != before
    assert "scale=launch" in page.url
    page.goto(page.url)
    page.get_by_text("with launch=0.5").wait_for()
    assert step_time(page) == after
    page.get_by_text("Take it along").click()
    command = page.get_by_test_id("stCode").first.inner_text()
    assert command.startswith("schedcast predict --model rnn_bitstream --batch 512 --machine h100 --scale launch=0.5")
    page.close()


def step_time(page):
    """The step time that the page shows, once it has followed the last change."""
    page.locator("[data-testid='stApp'][data-test-script-state='notRunning']").wait_for()
    return page.get_by_test_id("stMetricValue").first.inner_text()


# The schedule editor in Chromium: a task is dragged to another stream, and back.


JOB = "model=lenet5&batch=16&machine=h100&optimizer=momentum:for&strategy=baseline"
#: The middle of a task's bar and of a row, in pixels of the canvas.
POINT = """(element, task) => {
  const { model } = element.timeline, bar = [...model.arrays.task].findIndex((number) => model.names[number] === task);
  return element.timeline.pointOf(bar);
}"""
ROWS = "element => element.timeline.model.panels[0].rows.map(row => row.lane)"


@pytest.fixture(scope="module")
def real_app(tmp_path_factory):
    """The app with the real predictor, running on a free port of this machine."""
    with running_app(tmp_path_factory.mktemp("home"), server=SUPPORT / "real_server.py") as port:
        yield f"http://127.0.0.1:{port}"


def test_a_task_is_dragged_to_a_new_stream(browser, real_app):
    page = browser.new_page(viewport={"width": 1280, "height": 1100})
    page.set_default_timeout(60_000)
    page.goto(f"{real_app}/board?{JOB}")
    timeline = page.locator(".schedcast-timeline")
    timeline.wait_for()
    page.get_by_text("baseline's own order.").wait_for()
    assert timeline.evaluate(ROWS) == ["stream 0", "stream 1"], "the second one is empty: a place to drop tasks on"
    canvas = timeline.locator("canvas")
    canvas.scroll_into_view_if_needed()
    box, at = canvas.bounding_box(), timeline.evaluate(POINT, "classifier.0.bias/update")
    x, y = box["x"] + at["x"], box["y"] + at["y"]
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y + 24, steps=4)
    page.mouse.up()
    page.get_by_text("classifier.0.bias/update to the end of stream 1 of cuda").wait_for()
    page.get_by_text("The schedule computes the same numbers.").wait_for()
    assert timeline.evaluate(ROWS) == ["stream 0", "stream 1", "stream 2"]
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("baseline's own order.").wait_for()
    page.close()


# A validation that a user starts in the browser, with the real predictor and executor: to its end, and cancelled.


#: A model that takes no time.
MODEL = """
import torch


def make(batch_size):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)), torch.randn(batch_size, 3, 4), torch.zeros(batch_size).long()
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """The address of the app that offers the model, and the folder of its data."""
    home = tmp_path_factory.mktemp("home")
    (home / "tiny.py").write_text(MODEL)
    with running_app(home, server=SUPPORT / "real_server.py", models=[f"{home / 'tiny.py'}:make"]) as port:
        yield f"http://127.0.0.1:{port}/validate", home


@pytest.fixture
def started(app, browser):
    """The page of reports with a validation of the model by `baseline` started."""
    started = browser.new_page(viewport={"width": 1280, "height": 1600})
    started.set_default_timeout(90_000)
    started.goto(app[0])
    started.get_by_text("Validate a job on this machine").click()
    batch = started.get_by_role("spinbutton", name="Batch size")
    batch.fill("4")
    batch.press("Enter")
    started.get_by_role("button", name="Validate here").click()
    yield started
    started.close()


def test_a_cancelled_validation_writes_nothing(app, started):
    started.get_by_role("button", name="Cancel").click()
    started.get_by_text("Cancelled. No report was written.").wait_for()
    assert not list(app[1].glob("schedcast/reports/*/report.json"))


def test_a_validation_ends_with_predicted_above_measured_and_its_link_opens_it(app, started, browser):
    started.get_by_text("Done; the report is called").wait_for()
    (report,) = app[1].glob("schedcast/reports/*/report.json")
    title = started.locator(".schedcast-timeline .title")
    title.wait_for()
    shown = title.inner_text()
    assert shown.startswith("predicted ")
    assert ", measured " in shown
    kinds = started.locator(".schedcast-timeline").evaluate("shown => shown.timeline.model.panels.map(({ kind }) => kind)")
    assert kinds == ["predicted", "measured"]
    assert f"report={report.parent.name}" in started.url
    again = browser.new_page()
    again.goto(started.url)
    again.locator(".schedcast-timeline .title").wait_for()
    assert again.locator(".schedcast-timeline .title").inner_text() == shown
    again.close()
