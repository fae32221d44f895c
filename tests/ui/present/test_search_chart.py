"""The chart of a search."""

from tests.support.search_samples import ranked, search_result
from ui.present.searches_page import frontier, search_figure


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
