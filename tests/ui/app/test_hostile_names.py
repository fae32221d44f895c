"""Names in models, traces and reports are data: on every page they appear as text, become no element and make no request."""

import pytest

from tests.support import hostile
from tests.support.app_server import running_app
from tests.support.chromium import CHROMIUM, FLAGS
from tests.support.places import SUPPORT

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]

#: Elements that only a name could have made: images, links, formulas, symbols, code and emphasis.
MADE = (
    f"img, iframe, a[href*='{hostile.HOST}'], .js-plotly-plot a, .katex, .katex-error, mjx-container,"
    " [data-testid='stMain'] code:not([data-testid='stCode'] code),"
    " [data-testid='stMarkdownContainer'] :is(strong, em, [data-testid='stIconMaterial'], [class*='stMarkdownColored'])"
)  # fmt: skip
#: Items of lists. Those of a page are whole sentences; one that a name began, or broke off, is not.
ITEMS = "[data-testid='stMarkdownContainer'] li"
PAGES = ("report", "training", "what if", "replay", "damaged report")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The app, running on a free port, with hostile reports, a hostile trace and a damaged report with a hostile name."""
    home = tmp_path_factory.mktemp("home")
    damaged = home / f"damaged {hostile.FILE}"
    damaged.write_text("{")
    reports = [*hostile.write_reports(home / "reports"), damaged]
    trace = hostile.write_trace(home / f"{hostile.FILE}.json")
    with running_app(home, reports, [trace], SUPPORT / "hostile_server.py") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def page(address):
    """The app in a browser; `page.requested` are the hosts it asked."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 6000})
        page.set_default_timeout(60_000)
        page.requested = []
        page.on("request", lambda request: page.requested.append(request.url))
        page.goto(address)
        yield page
        browser.close()


def choose_report(page, number):
    page.get_by_text("Reports", exact=True).click()
    page.get_by_label("Report", exact=True).click()
    options = page.get_by_role("option")
    options.first.wait_for()
    opened = page.locator(MADE).count()
    options.nth(number).click()
    assert opened == 0, "the list of reports shows names as text"


def open_page(page, name):
    if name == "report":
        choose_report(page, 0)
        page.get_by_text("Peak allocated").or_(page.get_by_text("They differ most")).first.wait_for()
    elif name == "training":
        choose_report(page, 1)
        page.get_by_text("Loss over iterations").first.wait_for()
    elif name == "damaged report":
        choose_report(page, 2)
        page.get_by_text("not valid JSON").wait_for()
    elif name == "what if":
        page.get_by_text("What if", exact=True).first.click()
        page.get_by_text("Look at").wait_for()
        page.get_by_text("The critical path has").wait_for()
    else:
        page.get_by_text("Trace", exact=True).first.click()
        page.get_by_text("kernels on").first.wait_for()
        for expander in page.locator("details summary").all():
            expander.click()
    page.wait_for_timeout(1000)


@pytest.mark.parametrize("name", PAGES)
def test_names_stay_text(page, name):
    open_page(page, name)
    made = page.locator(MADE).evaluate_all("elements => elements.map(element => element.outerHTML.slice(0, 200))")
    assert made == []
    assert [text for text in page.locator(ITEMS).all_inner_texts() if not text.strip().endswith(".")] == []
    chosen = page.locator("input").evaluate_all("inputs => inputs.map(input => input.value)")
    text = "\n".join([page.locator("body").inner_text().replace("\u2060", ""), *chosen])
    assert f"![i](http:{hostile.HOST})" in text or f"![i](http://{hostile.HOST}/i.png)" in text
    assert [url for url in page.requested if hostile.HOST in url] == []


def test_a_hostile_report_page_is_text(page, address, tmp_path):
    folder, _ = hostile.write_reports(tmp_path)
    other = page.context.browser.new_page()
    requested = []
    other.on("request", lambda request: requested.append(request.url))
    other.goto((folder / "index.html").as_uri())
    assert all(url.startswith(("file:", "data:")) for url in requested)
    every = "document.querySelectorAll('.schedcast-chart').length"
    other.wait_for_function(f"{every} > 0 && {every} === document.querySelectorAll('.schedcast-chart > div').length")
    other.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws every chart
    other.wait_for_function(f"{every} === document.querySelectorAll('.schedcast-chart:has(.main-svg)').length")
    assert other.locator("a[href^='http'], img:not([src$='.svg'])").count() == 0
    other.close()
