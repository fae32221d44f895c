"""The payload of timelines holds what their panels show, and the script that draws it is one module without a network."""

import re
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.support import hostile
from tests.support.canvas_payload import decode, payloads_of_page
from tests.support.page_samples import two_lanes
from tests.support.sample_runs import comparisons
from traces.documents.comparison import Comparison
from traces.documents.timeline import Span, Timeline
from ui.present import labels
from ui.present.timeline_canvas import page
from ui.present.timeline_canvas.payload import ARRAYS, MOST_TRACKS, layer_groups, one_track, timelines_payload, tracks
from ui.present.timeline_rows import timeline_panel


@pytest.fixture(scope="module")
def runs():
    return {comparison.strategy: comparison for comparison in comparisons()}


def payload(*timelines, **options):
    return decode(timelines_payload(timelines, **options))


def test_predicted_above_measured_on_one_axis(runs):
    both = runs["1f1b"]
    drawn = payload(both.predicted, both.measured)
    assert drawn.header["title"] == "predicted 51.3 ms, measured 52.4 ms: -2.0 %"
    assert [panel["kind"] for panel in drawn.header["panels"]] == ["predicted", "measured"]
    assert [phase["name"] for phase in drawn.header["phases"]] == ["forward", "backward", "update", "transfer"]
    assert drawn.header["end_ms"] == pytest.approx(both.measured.step_s * 1e3)
    assert len(drawn.bars(0)) == len(both.predicted.window())
    assert drawn.header["panels"][0]["rows"][0]["label"] == "gpu0 stream 0"


def test_every_bar_comes_back(runs):
    timeline = runs["turbodl"].predicted
    drawn = payload(timeline)
    begin = timeline.window_s[0]
    expected = sorted((s.task, s.layer, s.phase, s.iteration, s.start_s, s.end_s) for s in timeline.window())
    actual = sorted((bar["task"], bar["layer"], bar["phase"], bar["iteration"], bar["start_ms"], bar["end_ms"]) for bar in drawn.bars())
    assert [row[:4] for row in actual] == [row[:4] for row in expected]
    for (*_, start_ms, end_ms), (*_, start_s, end_s) in zip(actual, expected, strict=True):
        assert start_ms == pytest.approx(max(0.0, start_s - begin) * 1e3, abs=1e-6)
        assert end_ms == pytest.approx(min(timeline.step_s, end_s - begin) * 1e3, abs=1e-6)


def test_tracks_are_sorted_and_do_not_overlap(runs):
    for comparison in runs.values():
        drawn = payload(comparison.predicted, comparison.measured)
        start, end = drawn.arrays["start"], drawn.arrays["end"]
        for row in [row for panel in drawn.header["panels"] for row in panel["rows"]]:
            for first, last in zip(row["tracks"], row["tracks"][1:], strict=False):
                assert (start[first + 1 : last] >= end[first : last - 1]).all()


def test_bars_begin_at_the_window_and_say_how_long_the_whole_span_is():
    drawn = payload(replace(two_lanes(), window_s=(0.0005, 0.0025), step_s=0.002))
    forward, backward = drawn.bars(row=0)
    assert (forward["start_ms"], forward["end_ms"]) == pytest.approx((0.0, 0.5))
    assert (backward["start_ms"], backward["end_ms"]) == pytest.approx((0.5, 2.0))
    assert forward["clipped"] == pytest.approx([-0.5, 1.0])
    assert backward["clipped"] == pytest.approx([0.5, 2.0])
    assert len(drawn.header["panels"][0]["rows"]) == 1, "the transfer ended when the window began"


def test_a_bar_has_task_layer_cause_and_color_group():
    _, bar = payload(two_lanes()).bars(row=0)
    assert (bar["task"], bar["layer"], bar["phase"], bar["cause"], bar["group"]) == ("c", "block<1>", "backward", "dependency", "block<1>")
    (transfer,) = payload(two_lanes()).bars(row=1)
    assert (transfer["cause"], transfer["group"]) == (None, "no layer")


def test_the_critical_path_is_marked(runs):
    timeline = runs["turbodl"].predicted
    drawn = payload(timeline)
    marked = drawn.arrays["critical_end"] - drawn.arrays["critical_start"]
    critical_ms = sum(bar.length_ms for bar in timeline_panel(timeline).critical)
    assert float(marked.sum() * drawn.header["tick_ms"]) == pytest.approx(critical_ms, rel=1e-6)


def test_measured_alone_in_a_comparison_keeps_its_own_lanes(runs):
    only = Comparison(two_lanes(), two_lanes("measured", shift=3.0), runs["turbodl"].result)
    drawn = payload(only.predicted, only.measured)
    assert [drawn.bars(panel, 0)[0]["start_ms"] for panel in (0, 1)] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_spans_within_spans_get_tracks_of_their_own():
    start, end = np.array([0, 1, 2, 10], np.uint32), np.array([10, 5, 3, 12], np.uint32)
    assert tracks(start, end) == [[0, 3], [1], [2]]


def test_many_overlapping_spans_lose_what_overlaps():
    start, end = np.zeros(50, np.uint32), np.arange(1, 51, dtype=np.uint32)
    parts = tracks(start, end)
    assert len(parts) == MOST_TRACKS
    assert sorted(index for part in parts for index in part) == list(range(50))
    for part in parts:
        assert (start[part[1:]] >= end[part[:-1]]).all()


def test_stretches_of_one_track_do_not_overlap():
    start, end = one_track(np.array([5, 0, 2], np.uint32), np.array([6, 4, 3], np.uint32))
    assert (start.tolist(), end.tolist()) == ([0, 4, 5], [4, 4, 6])


def test_layers_are_grouped_at_the_least_depth_that_tells_them_apart():
    spans = [Span("t", "d", "0", 0.0, 1.0, "forward", layer) for layer in ("net.a.conv", "net.a.norm", "net.b", "")]
    assert layer_groups(spans) == {"net.a.conv": "net.a", "net.a.norm": "net.a", "net.b": "net.b"}
    many = [Span("t", "d", "0", 0.0, 1.0 + number, "forward", f"l{number}") for number in range(20)]
    assert len(set(layer_groups(many).values()) - {""}) == 9
    assert layer_groups(many)["l0"] == ""


def test_colors_are_those_of_pictures(runs):
    header = payload(runs["turbodl"].predicted).header
    assert {phase["name"]: phase["color"] for phase in header["phases"]}["backward"] == labels.phase_color("backward")
    assert header["critical_color"] == labels.CRITICAL


def test_a_sentence_says_what_the_picture_shows():
    (panel,) = payload(two_lanes()).header["panels"]
    assert panel["sentence"] == (
        "predicted: a step of 3.00 ms with 3 bars on 2 lanes; in bars: forward 1 ms, backward 2 ms, transfer 0.5 ms."
    )


def test_names_cannot_end_the_script_that_holds_them():
    html = page.timelines_html([hostile.timeline(), hostile.timeline("measured")], hostile.NAME, fallback='a"><b>.png')
    assert "evil.example" not in html
    assert '"><b>' not in html
    (drawn,) = payloads_of_page(html)
    assert drawn.header["title"] == hostile.NAME
    assert hostile.NAME in drawn.bars()[0]["task"]


def test_a_page_has_one_script_that_needs_no_other(runs):
    for entry in ("streamlit", "page"):
        script = page.script(entry)
        assert not re.search(r"^\s*import\b|\bfetch\(|innerHTML|eval\(|</script", script, re.MULTILINE)
        assert not re.search(r"^export (?!default)", script, re.MULTILINE)
    assert {*page.MODULES, "embedded", "streamlit", "page"} == {path.stem for path in page.HERE.glob("*.js")}
    assert page.head().count("<script") == 1
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", page.script("page"), re.MULTILINE)
    assert len(names) == len(set(names)), "all modules share one scope"


def test_the_same_timeline_makes_the_same_bytes(runs):
    timeline = runs["1f1b"].measured
    assert page.timelines_html([timeline]) == page.timelines_html([timeline])


def test_thousands_of_spans_stay_fast():
    spans = tuple(Span(f"t{i}", "d", str(i % 4), i * 1e-5, i * 1e-5 + 3e-5, "forward") for i in range(50_000))
    timeline = Timeline("predicted", spans, 0.5, (0.0, 0.5))
    begun = time.process_time()
    content = timelines_payload([timeline, replace(timeline, kind="measured")])
    assert time.process_time() - begun < 60, "what takes longer searches all spans for every span"
    assert len(content) < 8_000_000


def test_a_file_that_lies_is_drawn_anyhow():
    big = 2**70
    spans = (
        Span("a", "d", "0", -1e308, 1e308, "forward", microbatch=big, iteration=-big),
        *(Span(f"p{number}", "d", "0", 0.0, 0.0, f"phase {number}") for number in range(300)),
    )
    drawn = payload(Timeline("predicted", spans, 1e308, (-1e308, 1e308)))
    assert len(drawn.header["phases"]) == 24
    assert {"microbatch", "iteration"} <= set(drawn.arrays)
    assert drawn.bars()[0]["microbatch"] == 2**31 - 1


def test_nothing_to_draw():
    drawn = payload(Timeline("predicted", (), 0.001, (0.0, 0.001)))
    assert drawn.header["panels"][0]["rows"] == []
    assert {name for name, values in drawn.arrays.items() if len(values) == 0} == {*ARRAYS, "memory_time", "memory_held"}
