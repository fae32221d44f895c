"""Charts contain the data of timelines and documents. How they look is checked by eye."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import plotly.graph_objects as go
import pytest

from simulator.engine.costs.op_points import OpPoint, Roof
from simulator.predict.coverage import Judged
from simulator.predict.sweep import Axis, Outcome
from simulator.replay.diff.task_errors import GroupError
from simulator.strategies import interleaved_1f1b
from simulator.strategies.pipeline import orders
from simulator.strategies.pipeline.schedule import Action, Schedule
from tests.support import hostile
from tests.support.canvas_payload import decode
from tests.support.html_pages import figures_of_page
from tests.support.page_samples import prediction, result, skipped, two_lanes, validation
from tests.support.sample_runs import comparisons, sample_validation
from tests.support.sample_trainings import training
from tests.support.search_samples import ranked, search_result
from tests.support.small_pipelines import pipeline_timeline
from traces.documents.collectives import CollectiveLaw, LawPiece
from traces.documents.comparison import Change, Comparison
from traces.documents.profile import Identity, Profile, Transfer
from traces.documents.reproduction import Chart, DividedLayer, DividedNetwork, Panel, Series
from traces.documents.step import Step
from traces.errors import Code, Refusal
from ui.present import charts, labels, reproductions
from ui.present.blocks import figures_of
from ui.present.charts import LABEL_ROOM, bars, coverage_figure, waterfall_figure
from ui.present.machines import fitted_lines, roofline_figure, transfers_figure
from ui.present.page import page
from ui.present.reproductions import Place, chart_figure, color_of, divided_cells, division_figure, division_words, places_of
from ui.present.searches import frontier, search_figure
from ui.present.sweeps import (
    MEMORY,
    RATE,
    SPEEDUP,
    STEP,
    curves,
    curves_figure,
    heat,
    heat_figure,
    measured_as,
    pareto_figure,
    section,
    too_large,
)
from ui.present.timeline_canvas.payload import timelines_payload
from ui.present.timeline_picture import memory_figure, timelines_figure, timelines_picture
from ui.present.timeline_rows import heading, panel_of, timeline_panel
from ui.present.trainings import training_figure
from ui.present.validations import errors_figure


@pytest.fixture(scope="module")
def runs():
    return {comparison.strategy: comparison for comparison in comparisons()}


def test_long_lanes_keep_room_for_the_bars_and_stay_apart():
    one, two, three = two_lanes().spans
    spans = (replace(one, lane="x" * 300), replace(two, lane=f"{'x' * 150}y{'x' * 149}"), replace(three, lane="short"))
    rows = timeline_panel(replace(two_lanes(), spans=spans)).rows
    assert len(set(rows)) == 3
    assert max(map(len, rows)) <= 40
    assert "gpu0 short" in rows


def test_no_name_becomes_a_part_of_the_chart():
    """Every text that comes from data, in hover boxes, axes, legends and titles."""
    both = hostile.timeline(), hostile.timeline("measured")
    rows = [result(hostile.NAME), result("baseline", 0.05, 0.05)]
    figures = [
        charts.speedups_figure(validation(*rows)),
        charts.phases_figure(Comparison(*both, rows[0])), charts.predictions_figure([prediction()], [hostile.NAME]),
        training_figure(training(3, hostile.NAME, "autograd")),
    ]  # fmt: skip
    for figure in figures:
        text = figure.to_json().replace("\\u003c", "<")
        assert "evil.example" in text
        assert [tag for tag in ("<a ", "<img", "$$", "$x$") if tag in text] == []


def test_step_times_per_strategy_after_plain_pytorch(runs):
    rows = [comparison.result for comparison in runs.values()]
    document = sample_validation([*rows, skipped()])
    figure = charts.speedups_figure(document)
    predicted, measured, *gains, _ = (*figure.data, None)
    assert list(predicted.x) == pytest.approx([row.predicted_step_s * 1e3 for row in rows])
    assert list(measured.x) == pytest.approx([1e3 * seconds for seconds in (document.reference_step_s, *(r.measured_step_s for r in rows))])
    assert predicted.error_x.array[0] == pytest.approx((rows[0].predicted_interval_s[1] - rows[0].predicted_step_s) * 1e3)
    assert figure.layout.yaxis.ticktext[0].startswith("plain PyTorch<br>")
    assert figure.layout.yaxis.ticktext[2] == "turbodl<br>1.42x, faster"
    assert [gain.x[0] for gain in gains] == pytest.approx([document.reference_step_s / row.measured_step_s for row in rows])


def test_speedups_have_error_bars():
    row = result(against_pytorch=0.9, against_pytorch_interval=(0.85, 0.97))
    gain = charts.speedups_figure(validation(row)).data[2]
    assert (gain.error_x.array[0], gain.error_x.arrayminus[0]) == pytest.approx((0.07, 0.05))
    assert gain.hovertext[0] == "<b>turbodl</b><br>0.90x (0.85 to 0.97), slower"


def test_a_long_title_has_lines_below_which_the_legend_stands():
    short, long = (labels.finished(go.Figure(), title, drawn_px=200).layout for title in ("word", "word " * 25))
    lines = long.title.text.split("<br>")
    assert " ".join(lines) == " ".join(["word"] * 25)
    assert max(map(len, lines)) <= labels.TITLE_WIDTH
    more = labels.TITLE_LINE_PX * (len(lines) - 1)
    assert (long.margin.t - short.margin.t, long.height - short.height) == (more, more)


def test_the_numbers_beside_a_waterfalls_bars_have_room():
    waterfall = bars("before", 0.010, [Change(part="forward", seconds=0.002)], "after", 0.012)
    assert waterfall_figure(waterfall, "why").layout.xaxis.range == pytest.approx((0, 12 * (1 + LABEL_ROOM)))


def test_nothing_ran_draws_an_empty_chart():
    assert list(charts.speedups_figure(validation(skipped())).data[0].x) == []


def test_phases(runs):
    both = runs["turbodl"]
    predicted, measured = charts.phases_figure(both).data
    assert predicted.x == ("forward", "backward", "update")
    assert sum(measured.y) == pytest.approx(sum(s.measured_s for s in both.phases().values()) * 1e3)


def test_every_phase_has_its_own_color():
    colors = [labels.phase_color(phase) for phase in labels.PHASE]
    assert len({*colors, labels.OTHER, labels.CRITICAL}) == len(colors) + 2
    assert labels.phases_in_order({"zeta", "update", "forward"}) == ["forward", "update", "zeta"]


# The chart of coverage: each step once, in the part of its group.


def step(strategy: str, measured_s: float, processes: bool = False) -> Judged:
    """A step that was predicted to take 1 s, within 0.8 and 1.25."""
    return Judged("lenet5", 64, strategy, processes, 1.0, (0.8, 1.25), measured_s)


def test_groups_stand_side_by_side_with_their_coverage():
    figure = coverage_figure([step("owt", 2.0, processes=True), step("gpipe", 1.1), step("turbodl", 1.2), step("turbodl", 0.9)])
    titles = [figure.layout[axis].title.text for axis in ("xaxis", "xaxis2", "xaxis3")]
    assert titles == ["one process, no stages<br>2 of 2 (100%)", "pipelines<br>1 of 1 (100%)", "several processes<br>0 of 1 (0%)"]
    dots = [(trace.xaxis, list(trace.x), list(trace.y)) for trace in figure.data if trace.type == "scatter" and trace.x]
    assert dots[:3] == [("x", [0, 1], [0.9, 1.2]), ("x2", [0], [1.1]), ("x3", [0], [2.0])]
    assert figure.layout.title.text.startswith("3 of 4 (75%) measured steps")


def test_a_bar_is_the_interval_over_the_prediction():
    bar = coverage_figure([step("gpipe", 1.1)]).data[0]
    assert (bar.base[0], bar.base[0] + bar.y[0]) == (0.8, 1.25)


def test_the_legend_names_everything_once():
    names = [trace.name for trace in coverage_figure([step("gpipe", 1.1), step("owt", 1.1)]).data if trace.showlegend is not False]
    assert names == ["90 % interval", "measured, inside", "measured, outside"]


# The chart of a search.


def test_the_frontier_has_the_plans_that_no_other_beats_in_both():
    plans = [ranked("a", 0.010, 3.0), ranked("b", 0.011, 3.5), ranked("c", 0.012, 1.0), ranked("d", 0.012, 2.0), ranked("e", 0.02, 0.5)]
    assert [plan.plan for plan in frontier(plans)] == ["a", "c", "e"]
    assert frontier([]) == []


def test_every_kind_of_plan_is_drawn_and_the_bound_is_a_line():
    figure = search_figure(search_result())
    points = {trace.name: list(zip(trace.x, trace.y, strict=True)) for trace in figure.data}
    assert points["the best"] == [(3.0, 10.0)]
    assert points["tied with it"] == [(2.0, 10.1), (1.0, 11.0)]
    assert points["slower"] == [(3.5, 20.0)]
    assert points["does not fit"] == [(40.0, 9.0)]
    assert points["no plan is faster with less memory"] == [(3.0, 10.0), (2.0, 10.1), (1.0, 11.0)]
    (bound,) = figure.layout.shapes
    assert bound.y0 == 8.0
    tied = next(trace for trace in figure.data if trace.name == "tied with it")
    assert [round(over, 3) for over in tied.error_y.array] == [0.05, 2.0]


def test_a_search_without_a_plan_that_fits_is_drawn_too():
    assert [trace.name for trace in search_figure(search_result(fits=False)).data][1:] == ["does not fit"]


# The data of a sweep's charts.


BATCH, LINK = Axis("batch", (8, 16, 64)), Axis("link bandwidth", (0.5, 1.0))


def one(strategy, batch, step_s, fits=True, peak=2**30):
    step = Step(step_s=step_s, interval_s=(step_s * 0.9, step_s * 1.1))
    return Outcome(strategy, (batch,), step, peak, fits, 0.1 / step_s)


def two(strategy, batch, link, step_s):
    step = None if step_s is None else Step(step_s=step_s, interval_s=None)
    return Outcome(strategy, (batch, link), step, fits=step is not None, peak_bytes=2**30, speedup=step_s and 0.1 / step_s)


def test_an_outcome_in_every_measure():
    each = one("turbodl", 16, 0.05)
    values = {measure: measured_as(each, measure, (BATCH,), batch=1) for measure in (STEP, RATE, SPEEDUP, MEMORY)}
    assert values == {STEP: 50.0, RATE: 320.0, SPEEDUP: 2.0, MEMORY: 1.0}
    assert measured_as(two("turbodl", 16, 0.5, 0.05), RATE, (Axis("devices", (16,)), LINK), batch=32) == 640.0


def test_curves_end_where_a_strategy_does_not_fit():
    outcomes = [
        one("a", 8, 0.1),
        one("a", 16, 0.2),
        one("a", 64, 0.8, fits=False),
        Outcome("b", (8,), refusal=Refusal(Code.DEVICES, "needs 2 devices")),
    ]
    (a, b) = curves(outcomes, BATCH, STEP, 8)
    assert (a.x, a.y, a.beyond) == ((8, 16), (100.0, 200.0), ((64, 800.0),))
    assert b.x == ()
    assert "100.0 ms (90.0 to 110.0)" in a.texts[0]
    ((left, right),) = too_large(outcomes, BATCH)
    assert (left, right) == (pytest.approx(32.0), 64)  # the geometric middle of 16 and 64, on a logarithmic axis
    figure = curves_figure(outcomes, BATCH, STEP, 8)
    assert figure.layout.xaxis.type == "log"
    assert [shape.type for shape in figure.layout.shapes] == ["rect"]
    assert [trace.marker.symbol for trace in figure.data if trace.x] == ["circle", "circle-open"]


def test_a_heat_map_names_the_fastest_and_says_what_cannot_run():
    outcomes = [two("a", 8, 0.5, 0.1), two("b", 8, 0.5, 0.05), two("a", 16, 0.5, None), two("a", 8, 1.0, 0.2), two("a", 16, 1.0, 0.4)]
    axes = Axis("batch", (8, 16)), LINK
    cells = heat(outcomes, axes, None, STEP, 8)
    assert cells.values == [[50.0, None], [200.0, 400.0]]
    assert cells.texts == [["b<br>50.0", "nothing fits"], ["a<br>200.0", "a<br>400.0"]]
    assert heat(outcomes, axes, "a", SPEEDUP, 8).texts == [["1.00x", "refused"], ["0.500x", "0.250x"]]
    figure = heat_figure(outcomes, axes, None, STEP, 8)
    assert list(figure.data[0].x) == ["8", "16"]
    assert [note.text for note in figure.layout.annotations] == ["nothing fits"]


def test_the_front_joins_what_no_other_beats():
    outcomes = [
        one("fast", 8, 0.1, peak=3 * 2**30), one("lean", 8, 0.2), one("neither", 8, 0.3, peak=2 * 2**30),
        one("large", 8, 0.01, False),
    ]  # fmt: skip
    figure = pareto_figure(outcomes, (BATCH,))
    front, *marks = figure.data
    assert (list(front.x), list(front.y)) == ([12.5, 25.0], [3.0, 1.0])  # ms of a sample, at batch 8
    assert list(pareto_figure([replace(each, at=()) for each in outcomes]).data[0].x) == [100.0, 200.0]
    assert [mark.name for mark in marks] == ["fast", "lean", "neither", "large"]
    assert marks[-1].marker.symbol[0].endswith("-open")


def test_a_sweep_is_a_section_of_a_page():
    outcomes = [one("pytorch", 8, 0.2), one("a", 8, 0.1), one("pytorch", 16, 0.4), one("a", 16, 0.3)]
    own = section("lenet5, batch 8, fp32", outcomes, (Axis("batch", (8, 16)),), 8)
    assert own.title == "lenet5, fp32, over batch 8 to 16"
    assert own.summary == "The fastest of 2 points: a at 2."
    assert [figure.about for figure in figures_of(own.blocks)] == ["step time over batch", f"Step time against {MEMORY} of every outcome"]
    assert len(figures_of_page(page("Report", [own]))) == 2
    both = (Axis("batch", (8,)), Axis("link bandwidth", (0.5,)))
    assert len([*figures_of(section("lenet5", [two("a", 8, 0.5, 0.1)], both, 8).blocks)]) == 2


def test_no_name_of_a_strategy_becomes_a_part_of_the_chart():
    outcomes = [one(hostile.NAME, 8, 0.1), Outcome("a", (8,), refusal=Refusal(Code.NAME, hostile.NAME))]
    for figure in (curves_figure(outcomes, BATCH, STEP, 8), pareto_figure(outcomes, (BATCH,)),
                   heat_figure([two(hostile.NAME, 8, 0.5, 0.1)], (BATCH, LINK), None, STEP, 8)):  # fmt: skip
        text = figure.to_json().replace("\\u003c", "<")
        assert [tag for tag in ("<a ", "<img", "$$", "$x$") if tag in text] == []


# The data of the charts of a machine, and of errors by layer.


ROOF = Roof({"fp32": 100.0, "bf16": 400.0}, 10.0)


def test_ops_lie_under_the_roofs_of_their_precisions():
    points = [
        OpPoint("mm", "matmul", "guessed", 200.0, 10.0, 2.0, phase="forward", precision="bf16"),
        OpPoint("relu", "elementwise", "guessed", 10.0, 10.0, 2.0, 4, phase="backward"),
        OpPoint("view", "elementwise", "guessed", 0.0, 10.0, 2.0, phase="forward"),
    ]
    figure = roofline_figure(points, ROOF, [OpPoint("key", "matmul", "measured", 1.0, 1.0, 1.0)])
    by_name = {trace.name: trace for trace in figure.data}
    assert list(by_name) == ["measured costs of the profile", "forward", "backward", "roof, fp32", "roof, bf16"]
    assert (list(by_name["forward"].x), list(by_name["forward"].y)) == ([20.0], [100.0])  # what does no FLOPs has no place
    assert by_name["backward"].marker.size[0] > by_name["forward"].marker.size[0]
    assert max(by_name["roof, fp32"].y) == 100
    assert max(by_name["roof, bf16"].y) == 400
    assert 10.0 in by_name["roof, fp32"].x  # the corner


def test_laws_beside_the_points_that_they_were_fitted_on():
    law = CollectiveLaw(pieces=[LawPiece(100.0, 1.0, 0.1), LawPiece(1000.0, 5.0, 0.0)], points=[(50.0, 6.1), (500.0, 4.9)])
    transfers = {
        "cuda:0>host": Transfer(latency_s=0.5, bytes_per_s=2.0, points=[(10.0, 5.4)]),
        "host>cuda:0": Transfer(latency_s=1.0, bytes_per_s=2.0),
    }
    profile = Profile(identity=Identity(kind="gpu"), transfers=transfers, collectives={"all-reduce|nccl|2": law})
    first, second, third = fitted_lines(profile)
    assert (first.points, first.law) == (((10.0, 5.4),), ((10.0, 5.5),))
    assert second.points == ()
    assert second.law[0][0] == 1024
    assert third.law == ((50.0, 6.0), (500.0, 5.0))
    assert [trace.mode for trace in transfers_figure(profile).data] == ["markers", "lines", "lines", "markers", "lines"]


def test_errors_are_red_where_tasks_took_longer():
    groups = [GroupError("conv1", 2, 0.010, 0.014), GroupError("fc", 1, 0.010, 0.008)]
    (bars,) = errors_figure(groups, "layer").data
    assert list(bars.x) == pytest.approx([4.0, -2.0])
    assert bars.marker.color[0] != bars.marker.color[1]


def test_no_name_becomes_a_part_of_the_charts():
    point = OpPoint(hostile.NAME, hostile.NAME, "measured", 1.0, 1.0, 1.0, phase=hostile.NAME)
    profile = Profile(identity=Identity(kind="gpu"), transfers={hostile.NAME: Transfer(latency_s=0.5, bytes_per_s=2.0)})
    for figure in (roofline_figure([point], ROOF), transfers_figure(profile), errors_figure([GroupError(hostile.NAME, 1, 1.0, 2.0)], "op")):
        text = figure.to_json().replace("\\u003c", "<")
        assert [tag for tag in ("<a ", "<img", "$$", "$x$") if tag in text] == []


# What devices' memories hold, in words and in the strips under the lanes of a timeline.


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
    assert (predicted["label"], predicted["words"]) == ("gpu0 memory", "peak allocated 673.3 MiB")


def test_every_device_has_a_strip(runs):
    drawn = decode(timelines_payload([runs["1f1b"].predicted, runs["1f1b"].measured]))
    assert [[strip["label"] for strip in shown["memory"]] for shown in drawn.header["panels"]] == [[f"gpu{n} memory" for n in range(4)]] * 2
    assert drawn.memory(1, 3)[0][0] == 0


def test_headings_name_peaks_the_allocator_s_figure_and_limits_that_are_not_drawn(runs):
    both = runs["turbodl"]
    predicted, measured = (panel_of(timeline, "gpu0") for timeline in (both.predicted, both.measured))
    assert heading(both.predicted, predicted, 2**40) == "gpu0 predicted, peak allocated 673.3 MiB of 1 TiB"
    apart = replace(measured, allocator_bytes=600 * 2**20)
    assert heading(both.measured, apart) == "gpu0 measured, peak allocated 673.3 MiB; allocator, own run: 600 MiB"
    assert heading(both.measured, replace(measured, allocator_bytes=0)) == "gpu0 measured, peak allocated 673.3 MiB"


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


# Static figures: those of timelines, which pages draw on a canvas.


@pytest.fixture(scope="module")
def both():
    return comparisons()[2]


def test_timelines_predicted_above_measured(both):
    figure = timelines_figure(both.predicted, both.measured, "resnet50, 1f1b")
    assert figure.layout.title.text.replace("<br>", " ") == "resnet50, 1f1b: predicted 51.3 ms, measured 52.4 ms: -2.0 %"
    panel = timeline_panel(both.predicted)
    drawn = {trace.name: trace for trace in figure.data if trace.xaxis == "x" and trace.name}
    assert set(drawn) == {"forward", "backward", "update", "transfer", "critical path (stripe)"}
    assert list(drawn["forward"].base) == [bar.start_ms for bar in panel.bars["forward"]]
    assert list(drawn["forward"].x) == [bar.length_ms for bar in panel.bars["forward"]]
    assert drawn["forward"].marker.color == labels.PHASE["forward"]
    assert len(drawn["critical path (stripe)"].x) == len(panel.critical)
    assert sorted(shape.x0 for shape in figure.layout.shapes) == pytest.approx([51.3, 51.3, 52.4], abs=0.06)


def test_bars_have_the_longest_label_for_which_there_is_room(both):
    labels = [text for trace in timelines_figure(GPIPE).data if trace.name == "forward" for text in trace.text]
    assert labels == ["F0", "F0", "F1", "F1"]
    crowded = timelines_figure(replace(both.predicted, spans=tuple(replace(span, layer="x" * 300) for span in both.predicted.spans)))
    assert max(len(text) for trace in crowded.data for text in trace.text or ()) < 100


def test_idle_time_of_a_pipeline_is_hatched():
    (idle,) = [trace for trace in timelines_figure(GPIPE).data if trace.name == "idle"]
    assert idle.marker.pattern.shape == "/"
    assert [(row, round(at, 6), round(length, 6)) for row, at, length in zip(idle.y, idle.base, idle.x, strict=True)] == [
        (row, round(at, 6), round(length, 6)) for row, at, length in timeline_panel(GPIPE).idle
    ]


def test_memory_per_device_with_a_limit_that_is_near(both):
    figure = memory_figure(both.predicted, both.measured, "resnet50, 1f1b")
    shown = panel_of(both.predicted, "gpu0")
    tops = [trace.y[0] * 2**20 for trace in figure.data if trace.xaxis == "x" and trace.fill]
    assert tops == pytest.approx([sum(held[0] for held in list(shown.held.values())[:count]) for count in range(len(shown.held), 0, -1)])
    lines = {(shape.line.color, round(shape.y0 * 2**20)) for shape in figure.layout.shapes if shape.xref == "x domain"}
    assert {(labels.LIMIT, both.predicted.limits_bytes["gpu0"]), ("#1F2430", shown.peak_bytes)} == lines
    far = replace(both.predicted, limits_bytes=dict.fromkeys(both.predicted.limits_bytes, 10**12))
    assert labels.LIMIT not in {shape.line.color for shape in memory_figure(far).layout.shapes}


def test_timelines_without_kinds_of_memory_have_no_picture_of_it():
    assert memory_figure(two_lanes(), two_lanes("measured")) is None


# One sees a pipeline's schedule: a bar for each action, its stage and microbatch, and idle time.


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
    assert labels.shaded("#000000", 1) == "#6B6B6B"


def test_the_second_half_of_a_backward_has_a_color_of_its_own():
    split = Schedule((tuple(Action(0, kind, m) for kind in "FIW" for m in range(2)),))
    panel = timeline_panel(pipeline_timeline(split))
    assert {name: [bar.labels[0] for bar in bars] for name, bars in panel.bars.items()} == {
        "forward": ["F0", "F1"], "backward": ["I0", "I1"], "backward by weights": ["W0", "W1"],
    }  # fmt: skip
    assert labels.phase_color("backward by weights") != labels.phase_color("backward")


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


# The picture of a divided network: where layers are, how they are cut, and that it can be drawn.


def layer(name, *inputs, degrees=(1, 1, 1, 1)):
    return DividedLayer(name=name, kind="convolution", shape=(8, 4, 4, 4), degrees=degrees, inputs=inputs)


#: A stem, branches of two layers, of one and of none, and what reads them all.
BRANCHES = (layer("stem"), layer("a1", 0), layer("a2", 1), layer("b", 0), layer("cat", 2, 3, 0), layer("last", 4))


def test_branches_lie_below_each_other_and_no_line_passes_a_layer():
    assert places_of(BRANCHES) == [Place(0, 0, 0), Place(0, 1, 1), Place(0, 2, 1), Place(0, 1, 2), Place(0, 3, 0), Place(0, 4, 0)]


def test_a_long_chain_continues_in_the_next_row(monkeypatch):
    monkeypatch.setattr(reproductions, "LAYER_COLUMNS", 3)
    chain = [layer("0"), *(layer(str(number), number - 1) for number in range(1, 5))]
    assert places_of(chain) == [Place(0, 0, 0), Place(0, 1, 0), Place(0, 2, 0), Place(1, 0, 0), Place(1, 1, 0)]


@pytest.mark.parametrize("degrees", [(16, 1, 1, 1), (1, 4, 1, 1), (1, 1, 2, 3), (2, 2, 2, 2), (1, 1, 1, 1)])
def test_every_worker_has_a_part_of_equal_size_that_no_other_has(degrees):
    parts = divided_cells(degrees, 12.0, 6.0)
    images, channels, rows, columns = degrees
    assert len(set(parts)) == len(parts) == images * channels * rows * columns
    assert len({(round(width, 9), round(height, 9)) for _, _, width, height in parts}) == 1
    assert all(x >= 0 and x + width <= 12.0 + 1e-9 and y >= 0 and y + height <= 6.0 + 1e-9 for x, y, width, height in parts)


def test_height_and_width_cut_without_a_gap_and_images_with_one():
    left, right = divided_cells((1, 1, 1, 2), 4.0, 2.0)
    assert left[0] + left[2] == right[0]
    first, second = divided_cells((2, 1, 1, 1), 4.0, 2.0)
    assert first[0] + first[2] < second[0]


def test_the_color_is_that_of_the_largest_degree():
    assert color_of((2, 4, 1, 1)) == reproductions.COLORS["channel"]
    assert color_of((1, 1, 1, 1)) == reproductions.WHOLE
    assert division_words((4, 1, 2, 1)) == "n=4 h=2"
    assert division_words((1, 1, 1, 1)) == "1 worker"


def test_every_layer_has_its_cells_its_name_and_its_lines(monkeypatch):
    monkeypatch.setattr(reproductions, "LAYER_COLUMNS", 2)
    layers = [each.model_copy(update={"degrees": (2, 1, 2, 1)}) for each in BRANCHES]
    figure = division_figure(DividedNetwork(name="net", title="A network", layers=tuple(layers)))
    lines, cells, names, how = figure.data
    assert list(cells.x).count(None) == 4 * len(layers)
    assert (cells.name, cells.fillcolor) == ("mostly by image", reproductions.COLORS["image"])
    assert names.text == tuple(each.name for each in layers)
    assert set(how.text) == {"n=2 h=2"}
    assert list(lines.x).count(None) >= sum(len(each.inputs) for each in layers)


def test_a_chart_has_solid_lines_that_are_predicted_and_dashed_ones_that_are_published():
    both = (Series(name="a", x=(1, 2), y=(1, 3)), Series(name="a", x=(1, 2), y=(2, 4), published=True))
    panels = tuple(Panel(title=title, series=both) for title in ("one", "two <b>", "three", "four"))
    figure = chart_figure(Chart(name="c", title="T", x_label="x", y_label="y", panels=panels, level=1.0, ticks=("p", "q")))
    assert [(trace.line.dash, list(trace.y)) for trace in figure.data[:2]] == [("solid", [1, 3]), ("dash", [2, 4])]
    assert len({trace.marker.color for trace in figure.data}) == 2
    assert [trace.showlegend for trace in figure.data] == [True, True, *[False] * 6]
    assert [note.text for note in figure.layout.annotations][1] == "<b>two &lt;b&gt;</b>"
    assert len({axis.range for axis in (figure.layout.yaxis, figure.layout.yaxis4)}) == 1, "heights can be compared"
    assert figure.layout.xaxis.ticktext == ("p", "q")
    assert [shape.y0 for shape in figure.layout.shapes] == [1.0] * 4
