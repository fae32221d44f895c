"""The CUDA executor on a simulated GPU: same numbers as plain PyTorch, no races, and times that follow from the kernels'."""

from dataclasses import replace
from pathlib import Path

import mlp
import pytest
import torch
from fake_gpu import FakeGpu, Times
from small_plans import mm, plan_of, value

from calibrate.numerics import Expected, compare
from executors.cuda.backend import CudaBackend
from executors.run import execute
from executors.tensors import job_tensors
from simulator import strategies
from simulator.job import Job
from simulator.machine import Machine
from simulator.plan import ACTIVATION, INPUT
from simulator.presets import load_machine
from traces.errors import StepcastError

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
    draws = "stream" if mode == "graph" else "keyed"
    expected = Expected.of(job, built, 11, draws)
    with FakeGpu() as gpu:
        numerics = compare(job, built, plan, CudaBackend(machine, gpu, mode), expected, 11)
    assert numerics.equal("fp64"), numerics
