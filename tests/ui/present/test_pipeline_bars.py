"""One sees a pipeline's schedule: a bar for each action, its stage and microbatch, and idle time."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from simulator.strategies import interleaved_1f1b
from simulator.strategies.pipeline import orders
from simulator.strategies.pipeline.schedule import Action, Schedule
from tests.support.canvas_payload import decode
from tests.support.page_samples import two_lanes
from tests.support.small_pipelines import pipeline_timeline
from ui.present import palette
from ui.present.timeline_canvas.payload import timelines_payload
from ui.present.timeline_picture import timelines_picture
from ui.present.timeline_rows import timeline_panel

GPIPE = pipeline_timeline(orders.gpipe_order(2, 2))


def shown(timeline, row):
    """The bars of a row in order of time: label, start and length in ms."""
    panel = timeline_panel(timeline)
    bars = sorted((bar for group in panel.bars.values() for bar in group if bar.row == row), key=lambda bar: bar.start_ms)
    return [(bar.labels[0], round(bar.start_ms, 6), round(bar.length_ms, 6)) for bar in bars]


def test_the_ops_of_an_action_are_one_bar():
    assert timeline_panel(GPIPE).rows == ("cpu:0 stage 0", "cpu:1 stage 1")
    assert shown(GPIPE, 0) == [("F0", 0, 1), ("F1", 1, 1), ("B0", 5, 2), ("B1", 7, 2)]
    assert shown(GPIPE, 1) == [("F0", 1, 1), ("F1", 2, 1), ("B0", 3, 2), ("B1", 5, 2)]


def test_a_repeated_forward_has_bars_of_its_own():
    """Here the first half of the first backward is one."""
    spans = tuple(replace(span, action="0R0") if span.task == "0B0/a" else span for span in GPIPE.spans)
    repeated = replace(GPIPE, spans=spans)
    assert shown(repeated, 0) == [("F0", 0, 1), ("F1", 1, 1), ("R0", 5, 1), ("B0", 6, 1), ("B1", 7, 2)]
    assert [bar.labels[0] for bar in timeline_panel(repeated).bars["forward again"]] == ["R0"]


def test_the_bubble_of_gpipe_is_idle_time():
    """(S - 1) / (M + S - 1) of the step on each device: 3 of 9 ms with S = M = 2."""
    idle = [(row, round(start, 6), round(length, 6)) for row, start, length in timeline_panel(GPIPE).idle]
    assert sorted(idle) == [(0, 2, 3), (1, 0, 1), (1, 7, 2)]
    assert timeline_panel(two_lanes()).idle == ()


def test_several_stages_of_a_device_have_their_number_and_a_shade():
    panel = timeline_panel(pipeline_timeline(interleaved_1f1b.order(2, 2, 2)))
    assert panel.rows == ("cpu:0 stages 0, 2", "cpu:1 stages 1, 3")
    by_label = {bar.labels: bar.shade for bar in panel.bars["forward"]}
    assert by_label == {
        ("0F0", "F0", "0"): 0, ("0F1", "F1", "1"): 0, ("2F0", "F0", "0"): 1, ("2F1", "F1", "1"): 1,
        ("1F0", "F0", "0"): 0, ("1F1", "F1", "1"): 0, ("3F0", "F0", "0"): 1, ("3F1", "F1", "1"): 1,
    }  # fmt: skip
    assert palette.shaded("#000000", 1) == "#6B6B6B"


def test_the_second_half_of_a_backward_has_a_color_of_its_own():
    split = Schedule((tuple(Action(0, kind, m) for kind in "FIW" for m in range(2)),))
    panel = timeline_panel(pipeline_timeline(split))
    assert {name: [bar.labels[0] for bar in bars] for name, bars in panel.bars.items()} == {
        "forward": ["F0", "F1"], "backward": ["I0", "I1"], "backward by weights": ["W0", "W1"],
    }  # fmt: skip
    assert palette.phase_color("backward by weights") != palette.phase_color("backward")


def test_mini_batches_of_a_pipeline_that_never_drains_are_numbered_by_iteration():
    spans = tuple(
        replace(span, iteration=7 if span.phase == "forward" else 5) for span in pipeline_timeline(orders.gpipe_order(2, 1)).spans
    )
    assert [label for label, *_ in shown(replace(GPIPE, spans=spans), 0)] == ["F7", "B5"]


def test_forwards_and_backwards_on_devices_of_their_own():
    spans = tuple(replace(span, device=f"{span.device} {span.phase}") for span in GPIPE.spans if span.phase != "transfer")
    rows = timeline_panel(replace(GPIPE, spans=spans, devices=())).rows
    assert set(rows) == {f"cpu:{n} {half} stage {n} {half}" for n in (0, 1) for half in ("forward", "backward")}


def test_transfers_that_take_time_have_a_lane():
    panel = timeline_panel(pipeline_timeline(orders.one_f_one_b_order(2, 2), transfer_s=1e-4))
    assert panel.rows == ("cpu:0 stage 0", "cpu:0 stream 2", "cpu:1 stage 1", "cpu:1 stream 2")
    assert len(panel.bars["transfer"]) == 4


def test_the_critical_path_is_drawn_op_by_op():
    panel = timeline_panel(GPIPE)
    assert [bar.span.task for bar in panel.critical] == ["0B1/b"]
    assert [bar.labels[0] for group in panel.bars.values() for bar in group if bar.critical] == ["B1"]


def test_the_canvas_has_labels_idle_time_and_the_words_of_actions():
    drawn = decode(timelines_payload([GPIPE, replace(GPIPE, kind="measured")]))
    assert [phase["name"] for phase in drawn.header["phases"]] == ["forward", "backward"]
    bars = drawn.bars()
    assert [bar["labels"][0] for bar in bars] == ["F0", "F1", "B0", "B1", "F0", "F1", "B0", "B1"]
    assert bars[2]["task"].startswith("0B0: stage 0, backward, 2 tasks")
    assert bars[2]["layer"] == "layer0.a to layer0.b"
    assert len(drawn.arrays["idle_start"]) == 2 * len(timeline_panel(GPIPE).idle)
    assert all(panel["pipeline"] for panel in drawn.header["panels"])


@pytest.mark.parametrize("action", ["", "0F", "F0", "99999999F0", "<b>", "0F0"])
def test_actions_of_a_file_that_lies_are_drawn_anyhow(tmp_path, action):
    spans = tuple(replace(span, action=action) for span in GPIPE.spans)
    picture = timelines_picture(tmp_path / "t.svg", replace(GPIPE, spans=spans))
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
