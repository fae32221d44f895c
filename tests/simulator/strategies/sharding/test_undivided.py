"""Ops and views that no rule divides run on one device, on whole tensors, and the plan says so."""

import pytest

from calibrate.numerics import References, compare
from executors.cpu.backend import CpuBackend
from simulator.model.job import Job
from tests.support import undivided_models
from tests.support.applicable import core_groups
from tests.support.jobs import planned

#: The kinds of ops of each model that run on one device.
MODELS = {
    "sequence_first": {"mean"},
    "one_dimensional": {"amax", "convolution"},
    "empty_cache": {"amax", "bmm", "new_empty", "new_ones", "_softmax"},
    "viewed_parameters": {"amax"},
    "spectral": {"_fft_c2r", "_fft_r2c"},
}


@pytest.fixture(scope="module")
def backend():
    return CpuBackend(core_groups(2))


def numerics(factory: str, strategy: str, backend: CpuBackend, batch: int = 4):
    """The plan of a strategy, and how far its numbers are from plain PyTorch's after two steps."""
    job = Job(f"{undivided_models.__file__}:{factory}", batch, precision="fp64")
    plan = planned(strategy, job, backend.machine)
    built = job.build()
    errors = compare(job, built, plan, backend, References(job, built, 2, None).of(plan), 2)
    return plan, max(errors.max_grad_error, errors.max_param_error)


@pytest.mark.parametrize("strategy", ["deepa", "owt"])
@pytest.mark.parametrize("model", MODELS)
def test_numbers_are_those_of_plain_pytorch(model, strategy, backend):
    plan, error = numerics(model, strategy, backend)
    assert set(plan.semantics["on_one_device"]) == MODELS[model]
    assert error <= 1e-10


@pytest.mark.parametrize("batch", [8, 12], ids=["as large as the bias", "with parts as large as the mask"])
@pytest.mark.parametrize("strategy", ["data-parallel", "gpipe:microbatches=2"])
def test_inputs_without_a_batch_dimension_are_not_split(strategy, batch, backend):
    assert numerics("masked", strategy, backend, batch)[1] <= 1e-10
