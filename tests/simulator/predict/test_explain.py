"""Explanations name the phases and causes in which two critical paths differ, largest first."""

from simulator.predict.explain import explain, path_seconds
from traces.timeline import Cause, CriticalSpan, Timeline


def timeline(*parts: tuple[str, Cause, float], steps: int = 1) -> Timeline:
    """A critical path of (phase, cause, milliseconds) parts over a window of `steps` steps."""
    path, now = [], 0.0
    for phase, cause, ms in parts:
        path.append(CriticalSpan("t", now, now + ms / 1e3, cause, phase))
        now += ms / 1e3
    return Timeline("predicted", (), now / steps, (0.0, now), critical_path=tuple(path))


BASELINE = timeline(
    ("forward", Cause.LANE, 2.0), ("backward", Cause.LANE, 4.0), ("backward", Cause.DEPENDENCY, 1.0), ("update", Cause.LANE, 1.2)
)


def test_a_hidden_update_is_the_first_thing_said():
    other = timeline(("forward", Cause.LANE, 2.0), ("backward", Cause.LANE, 4.0), ("backward", Cause.SMS, 1.25))
    assert explain(BASELINE, other) == [
        "the step takes 7.25 ms instead of 8.20 ms: 1.13 times as fast",
        "the backward phase takes 1.25 ms more on the critical path: 1.25 ms instead of 0 ms in tasks held up by SMs or cores that others "
        "used",
        "the update phase takes 1.20 ms less on the critical path: 0 ms instead of 1.20 ms",
        "the backward phase takes 1.00 ms less on the critical path: 4.00 ms instead of 5.00 ms",
    ]


def test_a_slower_schedule_is_called_slower():
    other = timeline(("forward", Cause.LANE, 2.0), ("transfer", Cause.LINK, 14.4))
    lines = explain(BASELINE, other)
    assert lines[0] == "the step takes 16.4 ms instead of 8.20 ms: 2.00 times as long"
    assert lines[1] == "the transfers take 14.4 ms more on the critical path: 14.4 ms instead of 0 ms in tasks held up by a link"


def test_the_host_has_its_own_words():
    other = timeline(("forward", Cause.LANE, 2.0), ("host", Cause.START, 6.2))
    assert "issuing tasks from the host takes 6.20 ms more on the critical path: 6.20 ms instead of 0 ms" in explain(BASELINE, other)


def test_equal_paths_differ_in_nothing():
    assert explain(BASELINE, BASELINE) == [
        "the step takes 8.20 ms instead of 8.20 ms: 1.00 times as fast",
        "no phase differs by more than 0.5% of the step on the critical path",
    ]


def test_a_window_of_several_steps_counts_per_step():
    assert path_seconds(timeline(("forward", Cause.LANE, 6.0), steps=3)) == {("forward", Cause.LANE): 0.002}


def test_without_a_path_there_is_nothing_to_explain():
    bare = Timeline("measured", (), 0.0082, (0.0, 0.0082))
    assert explain(BASELINE, bare)[1] == "the other timeline has no critical path, so the causes are unknown"
