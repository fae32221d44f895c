"""A step of too many micro-batches is refused before it is planned."""

import pytest

from simulator.job import Job
from simulator.machine.presets import load_machine
from simulator.strategies import registry as strategies
from traces.errors import StepcastError


@pytest.mark.parametrize("spec", ["baseline", "pytorch", "gpipe:microbatches=1000000"])
def test_a_million_micro_batches_are_refused(spec):
    accumulate = 1 if "microbatches" in spec else 1_000_000
    strategy, options = strategies.parse(spec)
    with pytest.raises(StepcastError, match=r"1,000,000 micro-batches make more than 100,000 tasks in a step; choose fewer"):
        strategy.plan(Job("lenet5", 1_000_000, accumulate=accumulate), load_machine("p100x4"), None, options)


def test_a_few_hundred_are_planned():
    strategy, options = strategies.parse("baseline")
    plan = strategy.plan(Job("lenet5", 300, accumulate=300), load_machine("p100"), None, options)
    assert 300 * 10 < len(plan.tasks) < strategies.MOST_TASKS
