"""The schedule editor in Chromium: a task is dragged to another stream, and back."""

import pytest

from tests.support.app_server import running_app
from tests.support.chromium import CHROMIUM
from tests.support.places import SUPPORT

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]

JOB = "model=lenet5&batch=16&machine=h100&optimizer=momentum:for&strategy=baseline"
#: The middle of a task's bar and of a row, in pixels of the canvas.
POINT = """(element, task) => {
  const { model } = element.timeline, bar = [...model.arrays.task].findIndex((number) => model.names[number] === task);
  return element.timeline.pointOf(bar);
}"""
ROWS = "element => element.timeline.model.panels[0].rows.map(row => row.lane)"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The app with the real predictor, running on a free port of this machine."""
    with running_app(tmp_path_factory.mktemp("home"), server=SUPPORT / "real_server.py") as port:
        yield f"http://127.0.0.1:{port}"


def test_a_task_is_dragged_to_a_new_stream(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 1100})
    page.set_default_timeout(60_000)
    page.goto(f"{address}/board?{JOB}")
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
