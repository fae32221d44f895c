"""Charts contain the data of timelines and documents. How they look is checked by eye."""

from dataclasses import replace

import plotly.graph_objects as go
import pytest

from tests.support import hostile
from tests.support.page_samples import prediction, result, skipped, two_lanes, validation
from tests.support.sample_runs import comparisons, sample_validation
from tests.support.sample_trainings import training
from traces.documents.comparison import Change, Comparison
from ui.present import charts, palette
from ui.present.timeline_rows import timeline_panel
from ui.present.trainings_page import training_figure
from ui.present.waterfall_figures import LABEL_ROOM, waterfall_figure
from ui.present.waterfalls import bars


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
    short, long = (charts.finished(go.Figure(), title, drawn_px=200).layout for title in ("word", "word " * 25))
    lines = long.title.text.split("<br>")
    assert " ".join(lines) == " ".join(["word"] * 25)
    assert max(map(len, lines)) <= charts.TITLE_WIDTH
    more = charts.TITLE_LINE_PX * (len(lines) - 1)
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
    colors = [palette.phase_color(phase) for phase in palette.PHASE]
    assert len({*colors, palette.OTHER, palette.CRITICAL}) == len(colors) + 2
    assert palette.phases_in_order({"zeta", "update", "forward"}) == ["forward", "update", "zeta"]
