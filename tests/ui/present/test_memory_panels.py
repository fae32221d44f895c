"""What devices' memories hold, in words and in the strips under the lanes of a timeline."""

from dataclasses import replace

import pytest

from tests.support.canvas_payload import decode
from tests.support.sample_runs import comparisons
from ui.present.memory import heading, panel_of
from ui.present.timeline_canvas.payload import timelines_payload


@pytest.fixture(scope="module")
def runs():
    return {comparison.strategy: comparison for comparison in comparisons()}


def test_strips_are_stacked_by_kind_on_the_axis_of_the_lanes(runs):
    both = runs["turbodl"]
    drawn = decode(timelines_payload([both.predicted, both.measured]))
    (predicted,), (measured,) = (shown["memory"] for shown in drawn.header["panels"])
    times_ms, held = drawn.memory()
    assert list(held) == ["parameters", "optimizer state", "activations"]
    assert (times_ms[0], times_ms[-1]) == pytest.approx((0, both.predicted.step_s * 1e3))
    assert max(map(sum, zip(*held.values(), strict=True))) <= predicted["peak_bytes"] <= predicted["top_bytes"]
    assert predicted["limit_bytes"] == 900e6
    assert predicted["top_bytes"] == measured["top_bytes"], "both have one scale"
    assert (predicted["label"], predicted["words"]) == ("gpu0 memory", "peak 673.3 MiB")


def test_every_device_has_a_strip(runs):
    drawn = decode(timelines_payload([runs["1f1b"].predicted, runs["1f1b"].measured]))
    assert [[strip["label"] for strip in shown["memory"]] for shown in drawn.header["panels"]] == [[f"gpu{n} memory" for n in range(4)]] * 2
    assert drawn.memory(1, 3)[0][0] == 0


def test_headings_name_peaks_the_allocator_s_figure_and_limits_that_are_not_drawn(runs):
    both = runs["turbodl"]
    predicted, measured = (panel_of(timeline, "gpu0") for timeline in (both.predicted, both.measured))
    assert heading(both.predicted, predicted, 2**40) == "gpu0 predicted, peak 673.3 MiB of 1024 GiB"
    apart = replace(measured, allocator_bytes=600 * 2**20)
    assert heading(both.measured, apart) == "gpu0 measured, peak 673.3 MiB; allocator, own run: 600 MiB"
    assert heading(both.measured, replace(measured, allocator_bytes=0)) == "gpu0 measured, peak 673.3 MiB"


def test_measured_memory_never_lies_above_its_peak(runs):
    measured = runs["turbodl"].measured
    one_task_at_a_time = tuple(replace(use, peak_bytes=use.peak_bytes // 2) for use in measured.devices)
    shown = panel_of(replace(measured, devices=one_task_at_a_time), "gpu0")
    assert shown.highest_bytes <= shown.peak_bytes
    assert shown.allocator_bytes == one_task_at_a_time[0].peak_bytes


def test_memory_without_kinds_is_in_use(runs):
    timeline = runs["turbodl"].predicted
    _, held = decode(timelines_payload([replace(timeline, memory_kinds={})])).memory()
    assert list(held) == ["in use"]
    assert max(held["in use"]) <= timeline.devices[0].peak_bytes
    assert decode(timelines_payload([replace(timeline, memory_kinds={}, memory={})])).header["panels"][0]["memory"] == []
