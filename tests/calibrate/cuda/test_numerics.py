"""Numbers on a GPU whose kernels add in an order that changes from run to run."""

import pytest

from calibrate.cuda.testbed import GpuTestbed
from calibrate.numerics import Expected, Numerics, compare
from calibrate.training import Training
from executors.cuda.backend import CudaBackend
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from tests.fake_gpu import FakeGpu
from tests.support.gpu_testbeds import SMALL, open_testbed
from tests.support.jobs import MLP, planned

JOB = Job(MLP, 4)


def plan_of(name: str = "baseline"):
    return planned(name, JOB, load_machine("h200"))


def numerics_on(gpu: FakeGpu, wrong_by: float = 0.0) -> Numerics:
    """The numerics of the baseline, whose expected gradients are made wrong by a share of themselves."""
    backend, built = CudaBackend(load_machine("h200"), gpu), JOB.build()
    with gpu:
        expected = Expected.of(JOB, built, 2, backend)
        for tensor in expected.gradients.values():
            tensor.mul_(1 + wrong_by)
        return compare(JOB, built, plan_of(), backend, expected, 2)


def test_kernels_that_vary_are_no_difference():
    numerics = numerics_on(FakeGpu(varying={"aten.mm": 0.01}))
    assert numerics.max_grad_error > 1e-3, "more than the tolerance of fp32"
    assert numerics.reference_grad_error > 1e-3
    assert numerics.equal("fp32")


def test_a_difference_beyond_what_varies_is_one():
    assert not numerics_on(FakeGpu(varying={"aten.mm": 0.01}), wrong_by=1.0).equal("fp32")


def test_without_varying_kernels_the_tolerance_counts():
    numerics = numerics_on(FakeGpu(), wrong_by=2e-3)
    assert (numerics.reference_grad_error, numerics.reference_param_error) == (0.0, 0.0)
    assert not numerics.equal("fp32")


@pytest.mark.parametrize(
    ("numerics", "same"),
    [
        (Numerics(1e-4, 1e-4), True),
        (Numerics(2e-3, 0.0), False),
        (Numerics(2e-3, 0.0, reference_grad_error=1e-3), True),
        (Numerics(0.0, 2e-3, reference_grad_error=1e-3), False),
        (Numerics(float("inf"), 0.0, reference_grad_error=float("inf")), False),
    ],
)
def test_what_counts_as_the_same_numbers(numerics, same):
    assert numerics.equal("fp32") is same


def test_a_trainings_first_steps_are_judged_alike():
    with FakeGpu(facts=SMALL, varying={"aten.mm": 0.01}) as gpu:
        testbed: GpuTestbed = open_testbed(gpu)
        testbed.open(load_machine("h200"))
        training = Training.begin(JOB, testbed, {"baseline": plan_of()}, False, ["baseline"])
        assert training.numerics["baseline"].max_grad_error > 1e-3
        assert training.differences() == []
