import pytest

from traces.speedup import verdict


@pytest.mark.parametrize(
    ("interval", "word"),
    [
        ((1.08, 1.22), "faster"),
        ((0.80, 0.97), "slower"),
        ((0.99, 1.01), "same"),
        ((1.005, 1.015), "same"),
        ((0.95, 1.10), "cannot tell"),
        (None, "cannot tell"),
    ],
)
def test_the_interval_of_a_speed_up_decides_its_verdict(interval, word):
    assert verdict(interval) == word
