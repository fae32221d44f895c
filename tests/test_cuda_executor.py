"""The CUDA executor on a simulated GPU: same numbers as plain PyTorch, no races, and times that follow from the kernels'."""

from pathlib import Path

import mlp
import pytest
from fake_gpu import FakeGpu

from calibrate.numerics import Expected, compare
from executors.cuda.backend import CudaBackend
from simulator import strategies
from simulator.job import Job
from simulator.machine import Machine
from simulator.presets import load_machine

MODELS = {path.stem: f"{path}:make" for path in sorted((Path(__file__).parent / "user_models").glob("[a-z]*.py"))}
MODELS |= {"mlp": f"{mlp.__file__}:make", "lenet5": "lenet5"}
STRATEGIES = ["baseline", "forward-fusion", "backward-fusion", "backward-fusion:update_stream=on"]


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine("h200")


def planned(model: str, strategy: str, machine: Machine, **fields):
    job = Job(MODELS[model], 4, **{"precision": "fp64", **fields})
    found, options = strategies.parse(strategy)
    return job, found.plan(job, machine, None, options)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", sorted(MODELS))
def test_numbers_are_those_of_plain_pytorch(model, strategy, mode, machine):
    """11 steps: in graph mode three eager ones, two graphs of four, and the drain."""
    job, plan = planned(model, strategy, machine, optimizer="adam")
    built = job.build()
    gpu = FakeGpu()
    backend = CudaBackend(machine, gpu, mode)
    with gpu:
        expected = Expected.of(job, built, 11, backend)
        numerics = compare(job, built, plan, backend, expected, 11)
    assert numerics.equal("fp64"), numerics
