"""Labels of timelines, lanes, options and rows."""

from tests.support.page_samples import result
from ui.text.labels import headline, lane_label, options_text, row_labels


def test_headline():
    assert headline(0.0412, 0.0420) == "predicted 41.2 ms, measured 42.0 ms: -1.9 %"
    assert headline(0.0412, None) == "predicted 41.2 ms"


def test_lanes_and_options():
    assert lane_label("gpu0", "0") == "gpu0 stream 0"
    assert lane_label("gpu0", "copy in") == "gpu0 copy in"
    assert options_text({"async": False, "alpha": 2, "level": "channel"}) == "async=off,alpha=2,level=channel"


def test_rows_of_one_strategy_differ_by_their_options():
    rows = [
        result("turbodl", options={"alpha": 1, "beta": 3}),
        result("turbodl", options={"alpha": 2, "beta": 3}),
        result("gpipe", options={"stages": 2}),
    ]
    assert row_labels(rows) == ["turbodl:alpha=1", "turbodl:alpha=2", "gpipe"]
