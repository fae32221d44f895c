"""Pictures show the figures of pages: everything lies where the labels of the axes say, and no name breaks the file."""

import re
from xml.etree import ElementTree

import plotly.graph_objects as go
import pytest
from plotly.subplots import make_subplots

from tests.support.page_samples import skipped, validation
from ui.present import labels
from ui.present.blocks import Bar
from ui.present.charts import speedups_figure, waterfall_figure
from ui.present.labels import finished
from ui.present.pictures import svg, write_picture


def drawn(*figures, **how):
    return ElementTree.fromstring(svg(*figures, **how))


def label(root, text):
    """Where the middle of a label is."""
    (element,) = [each for each in root.iter() if each.text == text and each.tag.endswith("text")]
    return float(element.get("x")), float(element.get("y")) - 0.35 * float(element.get("font-size"))


def paths(root, **look):
    """The numbers in the paths of that look."""
    found = [each.get("d") for each in root.iter() if all(each.get(name) == value for name, value in look.items()) and each.get("d")]
    return [[float(number) for number in re.findall(r"-?[\d.]+", path)] for path in found]


def test_a_line_goes_through_its_points_and_stops_at_gaps():
    figure = finished(go.Figure(), "", 200)
    figure.add_scatter(x=[0, 4, None, 6], y=[0, 10, None, 10], mode="lines", line={"color": "#123456"})
    root = drawn(figure.update_xaxes(range=[0, 8]).update_yaxes(range=[0, 20]))
    (points,) = paths(root, stroke="#123456")
    (x4, _), (x6, _), (_, y10) = label(root, "4"), label(root, "6"), label(root, "10")
    assert points[2:] == pytest.approx([x4, y10, x6, y10], abs=0.2)


@pytest.mark.parametrize(("kind", "middle"), [("linear", "50"), ("log", "10")])
def test_marks_are_on_their_axis_linear_and_logarithmic(kind, middle):
    figure = finished(go.Figure(go.Scatter(x=[1, 2, 3], y=[0.1 if kind == "log" else 0, float(middle), 100], mode="markers")), "", 500)
    figure.update_traces(marker={"color": "#123456", "size": 10}).update_yaxes(type=kind)
    root = drawn(figure)
    (marks,) = [each.get("d") for each in root.iter() if each.get("fill") == "#123456"]
    places = [float(y) for y in re.findall(r"M\S+ ([\d.]+)m", marks)]
    assert places[1] == pytest.approx(label(root, middle)[1], abs=0.2)


def test_bars_lie_from_start_to_end_and_whiskers_span_their_interval():
    figure = finished(go.Figure(), "", 200).update_xaxes(range=[0, 10])
    figure.add_bar(y=[0], base=[2], x=[4], orientation="h", marker={"color": "#123456"}, name="bar")
    whiskers = {"type": "data", "symmetric": False, "array": [2], "arrayminus": [1], "color": "#654321"}
    figure.add_scatter(x=[4], y=[0], mode="markers", marker={"color": "#111111"}, error_x=whiskers)
    root = drawn(figure)
    (bar,), (ends,) = paths(root, fill="#123456"), paths(root, stroke="#654321")
    assert [bar[0], bar[2]] == pytest.approx([label(root, "2")[0], label(root, "6")[0]], abs=0.2)
    assert [ends[0], ends[5]] == pytest.approx([(label(root, "2")[0] + label(root, "4")[0]) / 2, label(root, "6")[0]], abs=0.2)


def test_an_axis_reaches_to_its_lines():
    figure = finished(go.Figure(go.Scatter(x=[3, 4], y=[0, 1], mode="markers", marker={"color": "#111111"})), "", 200)
    root = drawn(figure.add_vline(7, line={"color": "#123456"}))
    assert paths(root, stroke="#123456")[0][0] == pytest.approx(label(root, "7")[0], abs=0.2)


def test_a_waterfall_starts_each_part_where_the_part_above_it_ends():
    parts = [Bar("a", "10", 0, 0.010, True), Bar("b", "+4", 0.010, 0.014), Bar("c", "-8", 0.014, 0.006), Bar("d", "6", 0, 0.006, True)]
    root = drawn(waterfall_figure(parts, "why"))
    bars = [each for each in root.iter() if each.tag.endswith("rect")][1:]
    assert [bar.get("fill") for bar in bars] == [labels.GREY, labels.LONGER, labels.SHORTER, labels.GREY]
    ends = [(float(bar.get("x")), float(bar.get("x")) + float(bar.get("width"))) for bar in bars]
    assert ends[1] == pytest.approx((label(root, "10")[0], label(root, "14")[0]), abs=0.2)
    assert ends[2] == pytest.approx((ends[3][1], ends[1][1]), abs=0.2)
    assert label(root, "-8 ms")[1] == pytest.approx(label(root, "c")[1], abs=0.2)


def test_a_legend_names_each_line_once_and_continues_in_a_further_row():
    long = [f"stale-pipeline:on=simulated,placement=3-5-7-9-{number}" for number in range(4)]
    figure = make_subplots(1, 2)
    for column in (1, 2):
        for name in long:
            figure.add_scatter(x=[1], y=[1], mode="lines", name=name, legendgroup=name, row=1, col=column)
    root = drawn(finished(figure, "title", 100))
    assert len({label(root, name)[1] for name in long}) == 2
    assert len({label(root, name) for name in long}) == 4


def test_names_with_markup_and_control_characters_are_words(tmp_path):
    figure = finished(go.Figure(), "$\\frac$ <b> & \x07\"x'", 100)
    path = write_picture(tmp_path / "p.svg", figure, figure, heading="<i>\x00 & more")
    root = ElementTree.parse(path).getroot()
    assert root.get("aria-label") == "<i> & more $\\frac$ <b> & \"x'"
    assert next(each.text for each in root.iter() if each.tag.endswith("text")) == "$\\frac$ <b> & \"x'"


def test_a_validation_that_ran_nothing_has_a_picture_too():
    assert drawn(speedups_figure(validation(skipped())))


def test_without_a_heading_no_empty_text_is_written():
    figure = finished(go.Figure(go.Scatter(x=[1, 2], y=[1, 2], mode="lines")), "why", 200)
    assert all(each.text for each in drawn(figure).iter() if each.tag.endswith("text"))
    assert label(drawn(figure, heading="both"), "both")
