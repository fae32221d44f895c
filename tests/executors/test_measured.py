"""From task times to step times. Reference kernels are subtracted if they delay the step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.measured import Measured, critical_reference_s, ends_from_start, lengths, period_ends, step_without_reference_s


def times(*rows: tuple[int, int, float, float, int, float]) -> list[Measured]:
    """(index, period, start, end, core, reference kernel before the start)."""
    return [Measured(*row) for row in rows]


def test_on_one_lane_every_reference_kernel_is_subtracted():
    measured = times((0, 0, 0.0, 1.0, 0, 0.0), (0, 1, 1.5, 2.5, 0, 0.5), (0, 2, 2.5, 3.5, 0, 0.0), (0, 3, 3.75, 4.75, 0, 0.25))
    assert period_ends(measured) == {0: 1.0, 1: 2.5, 2: 3.5, 3: 4.75}
    assert critical_reference_s(measured) == {0: 0.0, 1: 0.5, 2: 0.0, 3: 0.25}
    assert ends_from_start(measured) == (1.0, 2.0, 3.0, 4.0)
    assert lengths(ends_from_start(measured)) == (1.0, 1.0, 1.0)


def test_a_reference_kernel_off_the_critical_path_is_not_subtracted():
    """Core 1's task ends long before core 0's, so its reference kernel delays nothing."""
    measured = times(
        (0, 0, 0.0, 1.0, 0, 0.0),
        (0, 1, 1.0, 3.0, 0, 0.0), (1, 1, 1.5, 2.0, 1, 0.5),
        (0, 2, 3.25, 5.25, 0, 0.25), (1, 2, 3.5, 4.0, 1, 0.5),
    )  # fmt: skip
    assert critical_reference_s(measured) == {0: 0.0, 1: 0.0, 2: 0.25}
    assert lengths(ends_from_start(measured)) == (2.0, 2.0)


def test_the_critical_path_changes_lanes_at_a_wait():
    """Period 1 ends with core 1's task, which started when core 0's ended, so both reference kernels delay it."""
    measured = times((0, 0, 0.0, 1.0, 0, 0.0), (0, 1, 1.25, 2.0, 0, 0.25), (1, 1, 2.5, 4.0, 1, 0.5))
    assert critical_reference_s(measured) == {0: 0.0, 1: 0.75}
    assert lengths(ends_from_start(measured)) == (pytest.approx(2.25),)
    assert step_without_reference_s(measured) == pytest.approx(2.25)


def test_a_reference_kernel_that_ran_while_the_period_before_was_in_progress_counts_in_that_period():
    """Period 1 took 0.25 s after period 0 ended. Most of the reference kernel before its task ran earlier."""
    measured = times((0, 0, 0.0, 2.0, 0, 0.0), (1, 1, 1.75, 2.25, 1, 0.75))
    assert critical_reference_s(measured) == {0: 0.75, 1: 0.0}
    assert lengths(ends_from_start(measured)) == (0.25,)


@given(st.lists(st.tuples(*[st.integers(0, top) for top in (2, 3, 9, 4, 1)]), min_size=1, max_size=12))
def test_no_step_is_shorter_than_nothing(rows):
    """Whatever overlaps, at most the time of a period is subtracted from it. (Rows: lane, period, pause, length, length of the kernel.)"""
    lane_s, measured = [0, 0, 0], []
    for lane, period, pause, length, kernel in rows:
        start_s = lane_s[lane] + pause + kernel
        lane_s[lane] = start_s + 1 + length
        measured.append(Measured(lane, period, start_s, lane_s[lane], lane, kernel))
    assert all(length_s >= 0 for length_s in lengths(ends_from_start(measured)))


def test_without_reference_steps_are_as_measured():
    measured = times((0, 0, 0.0, 1.0, 0, 0.0), (0, 1, 1.0, 2.5, 0, 0.0))
    assert critical_reference_s(measured) == {}
    assert lengths(ends_from_start(measured)) == (1.5,)
    assert step_without_reference_s(measured) is None


def test_a_period_ends_no_earlier_than_the_one_before():
    """A drained task of period 0 may end after all tasks of period 1; the step length is not negative."""
    measured = times((0, 1, 1.0, 2.0, 0, 0.0), (1, 0, 0.0, 3.0, 1, 0.0))
    assert period_ends(measured) == {0: 3.0, 1: 3.0}
    assert lengths(ends_from_start(measured)) == (0.0,)
