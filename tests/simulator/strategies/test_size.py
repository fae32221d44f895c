"""A step of too many micro-batches is refused before it is planned."""

import pytest

from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.strategies import registry as strategies
from tests.support.jobs import planned
from traces.errors import SchedcastError


@pytest.mark.parametrize("spec", ["baseline", "pytorch", "gpipe:microbatches=1000000"])
def test_a_million_micro_batches_are_refused(spec):
    accumulate = 1 if "microbatches" in spec else 1_000_000
    with pytest.raises(SchedcastError, match=r"1,000,000 micro-batches make more than 100,000 tasks in a step; choose fewer"):
        planned(spec, Job("lenet5", 1_000_000, accumulate=accumulate), load_machine("p100x4"))


def test_a_few_hundred_are_planned():
    plan = planned("baseline", Job("lenet5", 300, accumulate=300), load_machine("p100"))
    assert 300 * 10 < len(plan.tasks) < strategies.MOST_TASKS


def test_more_micro_batches_than_samples_are_refused_however_many():
    with pytest.raises(SchedcastError, match=r"--batch 32 does not divide into 10,000,.*; choose at most 32$"):
        planned(f"zero-bubble:microbatches={10**400}", Job("lenet5", 32), load_machine("p100x4"))


def test_a_step_of_too_many_devices_is_refused_before_it_is_simulated(monkeypatch):
    monkeypatch.setattr(strategies, "MOST_TASKS", 500)
    with pytest.raises(
        SchedcastError, match=r"^image-parallel: [\d,]+ tasks in a step on 16 devices, more than the 500 .*; choose fewer devices"
    ):
        planned("image-parallel", Job("lenet5", 32), load_machine("k80x16"))
