"""The engine against a second one that shares no code with it (`reference_engine`), on random plans."""

import pytest

from simulator.engine.simulation import simulate
from tests.support.reference_engine import Reference, long_run_step_s, random_small_run


@pytest.mark.parametrize("seed", range(20))
def test_a_run_takes_as_long_as_in_the_reference(seed):
    run = random_small_run(seed)
    if run is not None:
        plan, machine, costs = run
        seconds = 3 * simulate(plan, machine, costs, iterations=3, use_cache=False).step_s
        assert seconds == pytest.approx(Reference(plan, machine, costs, 3).seconds, rel=1e-7)


def test_a_settled_step_is_that_of_a_long_run_of_the_reference():
    """`python -m tests.benchmarks settle` tries many more plans, and larger ones, in longer runs."""
    settled = tried = 0
    for seed in range(14):
        run = random_small_run(seed, tasks=5)
        if run is not None:
            timeline = simulate(*run, use_cache=False)
            tried += 1
            settled += timeline.settled
            assert not timeline.settled or timeline.step_s == pytest.approx(long_run_step_s(*run, 16), rel=0.02), f"seed {seed}"
    assert settled >= 0.9 * tried
