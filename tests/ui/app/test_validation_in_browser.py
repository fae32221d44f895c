"""A validation that a user starts in the browser, with the real predictor and executor: to its end, and cancelled."""

import pytest

from tests.support.app_server import running_app
from tests.support.chromium import CHROMIUM
from tests.support.places import SUPPORT

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]

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
def page(app, browser):
    """The page of reports with a validation of the model by `baseline` started."""
    page = browser.new_page(viewport={"width": 1280, "height": 1600})
    page.set_default_timeout(90_000)
    page.goto(app[0])
    page.get_by_text("Validate a job on this machine").click()
    batch = page.get_by_role("spinbutton", name="Batch size")
    batch.fill("4")
    batch.press("Enter")
    page.get_by_role("button", name="Validate here").click()
    yield page
    page.close()


def test_a_cancelled_validation_writes_nothing(app, page):
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancelled. No report was written.").wait_for()
    assert not list(app[1].glob("schedcast/reports/*/report.json"))


def test_a_validation_ends_with_predicted_above_measured_and_its_link_opens_it(app, page, browser):
    page.get_by_text("Done; the report is called").wait_for()
    (report,) = app[1].glob("schedcast/reports/*/report.json")
    title = page.locator(".schedcast-timeline .title")
    title.wait_for()
    shown = title.inner_text()
    assert shown.startswith("predicted ")
    assert ", measured " in shown
    kinds = page.locator(".schedcast-timeline").evaluate("shown => shown.timeline.model.panels.map(({ kind }) => kind)")
    assert kinds == ["predicted", "measured"]
    assert f"report={report.parent.name}" in page.url
    again = browser.new_page()
    again.goto(page.url)
    again.locator(".schedcast-timeline .title").wait_for()
    assert again.locator(".schedcast-timeline .title").inner_text() == shown
    again.close()
