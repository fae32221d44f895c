"""Samples of a key, and what each is as a multiple of their median."""

import pytest

from calibrate.samples import MOST_RELATIVE, Samples
from tests.support.tiny import task


def test_a_sample_is_relative_to_the_median_of_those_that_count():
    """A pair counts with both its times; number 0 belongs to the warm-up."""
    samples = Samples(task("a").task, cold_s=[9.0, 2.0, 3.0, 4.0], warm_s=[9.0, 2.0, 1.0, 2.0], numbers=[0, 1, 2, 5])
    assert samples.relative(frozenset({1, 2, 5})) == {1: 1.0, 2: 1.0, 5: 1.5}
    assert samples.relative(frozenset({7})) == {}


def test_a_sample_during_which_another_thread_took_the_core_is_limited():
    samples = Samples(task("a").task, cold_s=[1.0, 1.0, 50.0], warm_s=[1.0, 1.0, 1.0], numbers=[1, 2, 3])
    assert samples.relative(frozenset({1, 2, 3}))[3] == pytest.approx(MOST_RELATIVE)
