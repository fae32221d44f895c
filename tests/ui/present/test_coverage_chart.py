"""The chart of coverage: each step once, in the part of its group."""

from simulator.predict.coverage import Judged
from ui.present.charts import coverage_figure


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
