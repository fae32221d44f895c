"""The canvas of timelines in Chromium: it stays fluid with 50,000 spans, and tells, finds and exports the right ones."""

import xml.etree.ElementTree as ElementTree

import pytest

from tests.support import hostile
from tests.support.canvas_pages import PAN, TIMELINE, write_page
from tests.support.chromium import CHROMIUM
from tests.support.many_spans import many_spans
from tests.support.sample_runs import comparisons
from traces import units
from ui.present import labels

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]

SVG = "{http://www.w3.org/2000/svg}"
#: For every track: busy ticks of runs of narrow spans as the track adds them up, and as a loop over all spans does; and
#: whether every column that is busy is drawn, as busy as it is, where spans are narrower than pixels and where some are a few pixels wide.
SUMS = """() => {
  const shown = document.querySelector('.schedcast-timeline').timeline;
  return shown.rows.flat().flatMap(({ tracks }) => tracks).map((track) => {
    const parts = [[0, track.length], [17, 1234], [5000, 5001]].map(([from, to]) => {
      const plain = {};
      for (let at = from; at < to; at++) plain[track.color[at]] = (plain[track.color[at]] ?? 0) + track.end[at] - track.start[at];
      const added = Object.fromEntries([...track.busy(from, to)].filter(([, ticks]) => ticks));
      return JSON.stringify(added) === JSON.stringify(plain);
    });
    const [coarse, fine] = [1000, 25000].map((count) => {
      const per = shown.view.end / count, seen = [];
      track.runs(0, shown.view.end, per, (begin, end, color, share, at) => seen.push([begin, end, color, share, at]));
      const busy = new Array(count + 1).fill(0), drawn = new Array(count + 1).fill(false);
      for (let at = 0; at < track.length; at++) {
        const [start, end] = [track.start[at], track.end[at]];
        for (let column = Math.floor(start / per); end - start < 3 * per && column * per < end; column++) {
          busy[column] += Math.min(end, (column + 1) * per) - Math.max(start, column * per);
        }
      }
      for (const [begin, end] of seen) drawn.fill(true, Math.floor(begin / per + 1e-6), Math.ceil(end / per - 1e-6));
      const whole = busy.slice(0, count).every((ticks, column) => drawn[column] || ticks < per / 8);
      const apart = seen.every(([begin, end, , share, span], at) => {
        if (span >= 0) return true;
        if (at && seen[at - 1][4] < 0 && begin < seen[at - 1][1] - 1) return false;
        const columns = busy.slice(Math.round(begin / per), Math.round(end / per));
        return columns.every((ticks) => Math.abs(Math.min(1, ticks / per) - share) < 0.0626 || share === 0.25);
      });
      return { whole, apart, runs: seen.length, wide: seen.filter(([, , , , span]) => span >= 0).length };
    });
    return { equal: parts.every(Boolean), coarse, fine, spans: track.length };
  });
}"""


@pytest.fixture
def page(browser):
    """An empty page. The test fails if one of the page's scripts fails."""
    page = browser.new_page(viewport={"width": 1280, "height": 800}, accept_downloads=True)
    page.set_default_timeout(60_000)
    errors = []
    page.on("pageerror", lambda error: errors.append(error))
    yield page
    page.close()
    assert errors == []


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    timeline = many_spans()
    return timeline, write_page(tmp_path_factory.mktemp("pages") / "large.html", [timeline])


def opened(page, address):
    """Open a page and wait until its timeline is drawn. Returns the canvas."""
    page.goto(address)
    page.locator(".schedcast-timeline").wait_for()
    page.wait_for_function(f"{TIMELINE}.frames > 0")
    return page.locator("canvas")


def point_at(page, canvas, bar):
    """Where the middle of a bar is on the page."""
    place, box = page.evaluate(f"(bar) => {TIMELINE}.pointOf(bar)", bar), canvas.bounding_box()
    return box["x"] + place["x"], box["y"] + place["y"]


def bar_named(page, name):
    """The number of the bar of a task."""
    return page.evaluate(f"(name) => {{ const m = {TIMELINE}.model; return m.arrays.task.indexOf(m.names.indexOf(name)); }}", name)


def test_fifty_thousand_spans_are_panned_zoomed_found_and_told(page, large, capsys):
    timeline, address = large
    canvas = opened(page, address)
    frames = page.evaluate(PAN, 40)
    with capsys.disabled():
        print(f"\n50,000 spans: {frames['per_second']:.0f} frames a second while panning, {frames['draw_ms']:.1f} ms to draw one")
    assert frames["drawn"] == 40
    sums = page.evaluate(SUMS)
    assert len(sums) == 8
    assert all(track["equal"] for track in sums), sums
    assert all(track[scale]["whole"] and track[scale]["apart"] for track in sums for scale in ("coarse", "fine")), sums
    assert all(track["coarse"]["runs"] <= 1001 < track["spans"] for track in sums), "a frame costs pixels, not spans"
    assert all(0 < track["fine"]["wide"] < track["spans"] for track in sums), "narrow spans beside wide ones"

    span = next(span for span in timeline.spans if span.task.endswith(" 3000") and span.device == "gpu2" and span.phase == "backward")
    page.get_by_role("searchbox").fill(span.task)
    matches = [other for other in timeline.spans if span.task in other.task]
    total_ms = sum(other.end_s - other.start_s for other in matches) * 1e3
    assert page.locator(".matches").text_content().startswith(f"{len(matches)} matches, ")
    assert float(page.locator(".matches").text_content().split()[2]) == pytest.approx(total_ms, rel=0.01)
    page.keyboard.press("Enter")
    first = min(matches, key=lambda other: other.start_s)
    assert span.task in page.locator(".details").text_content()
    assert f"on {first.device}" in page.locator(".details").text_content()

    picked = page.evaluate(f"{TIMELINE}.picked")
    page.mouse.move(*point_at(page, canvas, picked))
    assert page.locator(".hover b").text_content() == first.task
    shown_ms = float(page.locator(".hover div").nth(1).text_content().split()[0])
    assert shown_ms == pytest.approx((first.end_s - first.start_s) * 1e3, rel=0.01)


def test_wheel_keys_and_drag_change_what_is_visible(page, large):
    canvas = opened(page, large[1])
    box = canvas.bounding_box()

    def view():
        return page.evaluate(f"(() => {{ const v = {TIMELINE}.view; return [v.from / v.end, v.to / v.end]; }})()")

    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.mouse.move(box["x"] + 600, box["y"] + 60)
    page.mouse.wheel(0, -400)
    page.wait_for_function(f"!{TIMELINE}.view.isWhole")
    zoomed = view()
    assert zoomed[1] - zoomed[0] < 0.8
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 60, steps=4)
    page.mouse.up()
    dragged = view()
    assert dragged[0] > zoomed[0]
    assert dragged[1] - dragged[0] == pytest.approx(zoomed[1] - zoomed[0])
    canvas.focus()
    page.keyboard.press("ArrowLeft")
    assert view()[0] < dragged[0]
    page.keyboard.press("+")
    assert view()[1] - view()[0] == pytest.approx((dragged[1] - dragged[0]) / 1.4)
    page.keyboard.press("Home")
    assert view() == [0, 1]
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"


def test_memory_under_the_lanes_tells_what_is_held(page, tmp_path):
    timeline = comparisons()[-1].predicted
    canvas = opened(page, write_page(tmp_path / "memory.html", [timeline]))
    layout, box = page.evaluate(f"(({{ gutter, plot, panels }}) => ({{ gutter, plot, panels }}))({TIMELINE}.layout)"), canvas.bounding_box()
    for device, strip in enumerate(layout["panels"][0]["strips"]):
        share = 0.5
        page.mouse.move(box["x"] + layout["gutter"] + share * layout["plot"], box["y"] + strip["top"] + strip["height"] / 2)
        title, *kinds = page.locator(".hover").locator("b, div").all_text_contents()
        held = timeline.memory_kinds[f"gpu{device}"]
        at = max(place for place, time_s in enumerate(held.time_s) if time_s - timeline.window_s[0] <= share * timeline.step_s)
        assert title.startswith(f"gpu{device} memory: {units.memory(sum(counts[at] for counts in held.held_bytes.values()))} at ")
        assert any(line.startswith("activations: ") for line in kinds)
    areas = ElementTree.fromstring(page.evaluate(f"{TIMELINE}.svg()")).findall(f".//{SVG}path")
    kinds = [kind for held in timeline.memory_kinds.values() for kind in held.held_bytes if any(held.held_bytes[kind])]
    assert [area.get("fill") for area in areas if area.get("fill")].count(labels.KIND["activation"]) == kinds.count("activation")


def test_a_pick_tells_the_measured_bar_of_a_predicted_one(page, tmp_path):
    both = comparisons()[-1]
    canvas = opened(page, write_page(tmp_path / "both.html", [both.predicted, both.measured]))
    page.mouse.click(*point_at(page, canvas, bar_named(page, "B2 stage1")))
    words = page.locator(".details").text_content()
    assert words.startswith("B2 stage1 · backward of stage1, microbatch 2 · ")
    assert "predicted on gpu1 stream 0 · measured: " in words
    page.get_by_role("searchbox").fill("update")
    assert page.locator(".matches").text_content().startswith("predicted: 4 matches, ")
    page.get_by_label("Color by").select_option("group")
    assert sorted(page.locator(".legend button").all_text_contents()) == ["stage0", "stage1", "stage2", "stage3"]
    canvas.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    assert page.locator(".details").text_content().startswith("F0 stage0 · ")
    page.keyboard.press("Shift+ArrowRight")
    assert page.locator(".details").text_content().startswith("F1 stage0 · ")


def test_pictures_hold_what_is_visible_and_names_stay_text(page, tmp_path):
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    opened(page, write_page(tmp_path / "hostile.html", [hostile.timeline(), hostile.timeline("measured")]))
    with page.expect_download() as started:
        page.get_by_role("button", name="Download the visible part as SVG").click()
    drawn = ElementTree.fromstring(started.value.path().read_text())
    titles = [title.text for title in drawn.iter(f"{SVG}title")]
    assert len(titles) == 6
    assert all(hostile.NAME in title for title in titles)
    assert {element.tag.removeprefix(SVG) for element in drawn.iter()} == {"svg", "rect", "title", "line", "text", "g", "clipPath", "path"}
    with page.expect_download() as started:
        page.get_by_role("button", name="Download as PNG").click()
    assert started.value.path().read_bytes().startswith(b"\x89PNG")
    page.get_by_role("searchbox").fill("evil.example")
    page.locator("canvas").focus()
    page.keyboard.press("n")
    assert hostile.NAME.split()[1] in page.locator(".details").text_content()
    assert page.locator("img, .schedcast-timeline a, b b").count() == 0
    assert [url for url in requested if not url.startswith(("file:", "blob:", "data:"))] == []


def test_picks_and_drops_are_reported_to_a_page_that_asks(page, tmp_path):
    timeline = comparisons()[-1].predicted
    canvas = opened(page, write_page(tmp_path / "editable.html", [timeline]))
    page.evaluate(f"""() => {{
      window.reported = [];
      Object.assign({TIMELINE}.model, {{ editable: true, events: ["selected", "moved"] }});
      {TIMELINE}.report = (...event) => reported.push(event);
    }}""")
    page.mouse.click(*point_at(page, canvas, bar_named(page, "F1 stage0")))
    ((event, value),) = page.evaluate("reported")
    assert (event, value["task"], value["device"], value["lane"], value["phase"]) == (
        "selected", "F1 stage0", "gpu0", "stream 0", "forward",
    )  # fmt: skip
    page.mouse.down()
    page.mouse.move(*point_at(page, canvas, bar_named(page, "F1 stage1")), steps=3)
    assert page.locator(".ghost").text_content() == "F1 stage0"
    x, y = point_at(page, canvas, bar_named(page, "F2 stage1"))
    page.mouse.move(x - 2, y)
    page.mouse.up()
    moved = {"task": "F1 stage0", "device": "gpu1", "lane": "stream 0", "before": "F2 stage1"}
    assert page.evaluate("reported")[-1] == ["moved", moved]
