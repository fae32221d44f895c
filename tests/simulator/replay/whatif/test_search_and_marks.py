"""What a regular expression matches before a rule is applied, and what rules have changed afterwards."""

import pytest

from simulator.replay.replay import simulate_replay
from simulator.replay.whatif.matching import kernel_matches
from simulator.replay.whatif.registry import apply_rules
from simulator.replay.whatif.replayed import LONGER, NEW, REMOVED, SHORTER, changes, marked
from tests.support.small_replays import kernel, launched, recording
from traces.errors import SchedcastError

REPLAY = recording(
    launched("a", 3.0, called="void gemm_128<float>(int)"),
    launched("b", 1.0, called="relu"),
    launched("c", 2.0, called="void gemm_64<x>(y)"),
)


def test_matches_are_counted_before_a_rule_is_applied():
    matches = kernel_matches(REPLAY, "gemm")
    assert (matches.kernels, matches.seconds, matches.share, matches.steps) == (2, 5.0, pytest.approx(5 / 6), 1)
    assert [(count, seconds) for _, count, seconds in matches.names] == [(1, 3.0), (1, 2.0)]


@pytest.mark.parametrize(("regex", "line"), [("conv", "no kernel matches 'conv'"), ("(", "is not a regular expression")])
def test_what_matches_nothing_or_cannot_be_read_is_one_line(regex, line):
    with pytest.raises(SchedcastError, match=line):
        kernel_matches(REPLAY, regex)


def test_changed_tasks_are_marked():
    faster, _ = apply_rules(REPLAY, ["kernel:/gemm_128/ 2x faster", "kernel:/gemm_64/ 2x slower", "remove:/relu/"])
    before, after = simulate_replay(REPLAY), simulate_replay(faster)
    changed = changes(before, after)
    assert {task: kind for task, kind in changed.kind.items() if not task.startswith("l.")} == {"a": SHORTER, "c": LONGER, "b": REMOVED}
    assert changed.seconds[SHORTER] == -1.5
    assert changed.counts[LONGER] == 1
    phases = {span.task: span.phase for span in marked(after, changed).spans}
    assert (phases["a"], phases["c"]) == (SHORTER, LONGER)
    assert changes(before, before).kind == {}


def test_a_task_that_only_the_change_has_is_new():
    before, after = simulate_replay(recording(kernel("a", 1.0))), simulate_replay(recording(kernel("a", 1.0), kernel("d", 1.0)))
    assert changes(before, after).kind == {"d": NEW}
