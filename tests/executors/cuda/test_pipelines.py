"""Pipelines on partitions of one GPU: their numbers, with lags of several iterations and transfers between streams, eagerly and in graphs.

The simulated GPU fails a test whose streams race or whose tensors are freed too early.
"""

import pytest

from calibrate.numerics import References, compare, steps_to_compare
from executors.cuda.backend import CudaBackend
from executors.tensors import job_tensors
from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.machine.presets import gpu_machine
from simulator.model.job import Job
from simulator.predict.forecast import plan_strategy
from tests.fake_gpu import FakeGpu
from tests.support import staged_models
from traces.documents.profile import Identity, Profile

TWO = ("gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "pipedream", "pipedream-2bw", "stale-pipeline", "hybrid-pipeline")
UNFOLDED = "on=unfolded,stages=2,backward_weights=stashed"
FOUR = (
    "1f1b", "stale-pipeline:stages=3", f"stale-pipeline:{UNFOLDED}", f"hybrid-pipeline:{UNFOLDED},then=gpipe", "zero-bubble:shape=v",
)  # fmt: skip
CASES = [(2, text, mode) for text in TWO for mode in ("eager", "graph")] + [(4, text, "graph") for text in FOUR]


def partitioned(count: int) -> Machine:
    """An H200 in `count` partitions."""
    return gpu_machine(Profile(identity=Identity(kind="gpu", gpu="NVIDIA H200", sms=132)), count)


@pytest.mark.parametrize(("count", "strategy", "mode"), CASES)
def test_numbers_are_those_of_the_reference_trainer(count, strategy, mode):
    machine = partitioned(count)
    model = "chain" if count == 4 else "residual"
    job = Job(f"{staged_models.__file__}:{model}", 8, precision="fp64", optimizer="adam")
    built, plan = job.build(), plan_strategy(strategy, {}, job, machine, CostModel(machine))
    plan.validate(machine)
    with FakeGpu() as gpu:
        backend = CudaBackend(machine, gpu, mode)
        steps = steps_to_compare(backend)
        numerics = compare(job, built, plan, backend, References(job, built, steps, backend).of(plan), steps)
    assert numerics.equal("fp64"), numerics


@pytest.mark.parametrize("steps", [11, 13])
def test_a_drain_after_graphs_completes_every_iteration(steps):
    """Three eager periods, two graphs of four, and with 13 steps two more eager ones, which tasks of the graphs come before.

    The last loss is computed in the drain.
    """
    machine, job = partitioned(4), Job(f"{staged_models.__file__}:chain", 8, precision="fp64")
    text = f"stale-pipeline:{UNFOLDED}"
    with FakeGpu() as gpu:
        plan = plan_strategy(text, {}, job, machine, CostModel(machine))
        program = CudaBackend(machine, gpu, "graph").load(plan, job_tensors(job, job.build(), job.graph()))
        program.run(steps)
        program.sync()
    assert sorted(program.losses) == list(range(steps))
