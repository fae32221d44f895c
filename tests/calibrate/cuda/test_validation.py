"""Calibrate, predict, run and compare on a simulated GPU, whose kernels' times nothing but measuring can tell: the circle must close."""

import statistics
from dataclasses import replace

import pytest

from calibrate.cuda.bench import Effort
from calibrate.cuda.concurrency import Sizes
from calibrate.cuda.testbed import GpuTestbed
from calibrate.validation import validate
from simulator.job import Job
from tests.fake_gpu import FACTS, FakeGpu
from tests.support import mlp
from traces.profile import Profile

#: Rates are measured on what a share of the memory holds, on this machine's CPU.
SMALL = replace(FACTS, memory_bytes=256 << 20)
QUICK = Effort(rounds=3, graph_s=5e-5, most_copies=8, most_sets=4)
#: Two sizes of kernels that are small on this machine's CPU too.
KERNELS = Sizes(16, 8, 4096)
STRATEGIES = [
    "baseline", "forward-fusion", "backward-fusion", "backward-fusion:update_stream=on", "turbodl", "turbodl:update=callback",
]  # fmt: skip


def open_testbed(gpu: FakeGpu, mode: str = "eager", **fields) -> GpuTestbed:
    return GpuTestbed(gpu, mode, effort=QUICK, anchor_edge=32, transfer_sizes=(4096, 65536, 1 << 20), kernels=KERNELS, **fields)


@pytest.fixture(scope="module")
def measured() -> Profile:
    """The simulated machine's own figures; no key yet."""
    with FakeGpu(facts=SMALL) as gpu:
        testbed = open_testbed(gpu)
        profile = Profile(identity=testbed.identity)
        testbed.measure_machine(profile)
    return profile


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_predicted_is_measured(mode, measured):
    job = Job(f"{mlp.__file__}:make", 4, optimizer="adam")
    with FakeGpu(facts=SMALL) as gpu:
        outcome = validate(job, STRATEGIES, {}, measured, testbed=open_testbed(gpu, mode), mode=mode)
    validation = outcome.validation
    assert outcome.same_numbers
    assert (validation.mode, validation.aa_spread < 0.01) == (mode, True)
    assert [row.status for row in validation.results] == ["ok"] * len(STRATEGIES)
    assert {row.shares.measured for row in validation.results} == {1.0}
    errors = {row.strategy + str(row.options): row.error for row in validation.results}
    assert all(abs(error) < 0.02 for error in errors.values()), errors


@pytest.mark.parametrize(("mode", "periods", "gap_s"), [("eager", 1, 0.0), ("graph", 4, 1e-6)])
def test_task_times_are_those_of_the_kernels(mode, periods, gap_s, measured):
    """Put together from twins with events on some tasks. Kernels take 2 us; in a graph the gap before a node counts with it.

    An event of a graph is a node too, whose gap is seen in what follows.
    """
    job = Job(f"{mlp.__file__}:make", 4)
    with FakeGpu(facts=SMALL) as gpu:
        outcome = validate(job, ["baseline"], {}, measured, testbed=open_testbed(gpu, mode), mode=mode)
    found = outcome.comparisons["baseline"]
    tasks = [task.name for task in outcome.forecasts["baseline"].plan.tasks]
    assert [span.task for span in found.measured.window()] == [span.task for span in found.predicted.window()] == tasks * periods
    assert found.measured.mode == mode
    single = [span.end_s - span.start_s for span in found.measured.window() if span.task != "update"]
    assert statistics.median(single) == pytest.approx(2e-6 + gap_s, abs=2e-8)
    assert max(single) < 2e-6 + 2.1 * gap_s + 2e-8
