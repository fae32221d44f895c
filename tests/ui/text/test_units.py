"""Quantities as people read them."""

import pytest

from tests.support.page_samples import result
from ui.text import units


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0412, "41.2"),
        (1.2345, "1234"),
        (0.4123, "412.3"),
        (0.00412, "4.12"),
        (0.000412, "0.412"),
        (0.00001234, "0.0123"),
        (0.0, "0"),
        (None, "-"),
    ],
)
def test_ms(seconds, text):
    assert units.ms(seconds) == text


def test_headline():
    assert units.headline(0.0412, 0.0420) == "predicted 41.2 ms, measured 42.0 ms: -1.9 %"
    assert units.headline(0.0412, None) == "predicted 41.2 ms"


def test_units_and_nothing():
    assert units.gigabytes(12_340_000_000) == "12.34 GB"
    assert units.gigabytes(2_000_000) == "2.0 MB"
    assert units.error_of(0.0) == "exact"
    assert units.error_of(2.4e-7) == "2e-07"
    assert units.interval((0.039, 0.0415)) == "39.0 to 41.5"
    empty = [
        units.gigabytes(None),
        units.error_of(None),
        units.interval(None),
        units.percent(None),
        units.speedup(None),
        units.with_unit(None),
    ]
    assert empty == ["-"] * 6


def test_lanes_and_options():
    assert units.lane_label("gpu0", "0") == "gpu0 stream 0"
    assert units.lane_label("gpu0", "copy in") == "gpu0 copy in"
    assert units.options_text({"async": False, "alpha": 2, "level": "channel"}) == "async=off,alpha=2,level=channel"


def test_rows_of_one_strategy_differ_by_their_options():
    rows = [
        result("turbodl", options={"alpha": 1, "beta": 3}),
        result("turbodl", options={"alpha": 2, "beta": 3}),
        result("gpipe", options={"stages": 2}),
    ]
    assert units.row_labels(rows) == ["turbodl:alpha=1", "turbodl:alpha=2", "gpipe"]
