"""Plans of a job with autocast compute what plain PyTorch computes under autocast, on a CPU."""

from functools import cache

import pytest

from calibrate.numerics import STEPS, TOLERANCE, References, compare
from executors.cpu.backend import CpuBackend
from simulator.job import Job
from simulator.strategies import registry as strategies
from tests.support.applicable import core_groups, plan_unless_refused
from tests.support.places import USER_MODELS

CNN, TRANSFORMER = "lenet5", f"{next(path for path in USER_MODELS if path.stem == 'vision_transformer')}:make"


@cache
def references(model):
    job = Job(model, 4, precision="amp")
    built = job.build()
    return job, built, References(job, built, STEPS, None)


@cache
def executor(devices):
    machine = core_groups(devices)
    return machine, CpuBackend(machine)


def numerics(model, spec):
    job, built, expected = references(model)
    machine, backend = executor(strategies.parse(spec)[0].least_devices)
    plan = plan_unless_refused(spec, job, machine)
    return None if plan is None else compare(job, built, plan, backend, expected.of(plan))


@pytest.mark.parametrize("spec", strategies.names())
@pytest.mark.parametrize("model", [CNN, TRANSFORMER], ids=["cnn", "transformer"])
def test_five_steps_agree_within_the_tolerance(model, spec):
    result = numerics(model, spec)
    if result is None:
        pytest.skip(f"{spec} does not apply to {model}")
    assert max(result.max_grad_error, result.max_param_error) <= TOLERANCE["amp"]


@pytest.mark.parametrize("spec", ["baseline", "forward-fusion", "backward-fusion", "turbodl", "image-parallel"])
def test_a_cnn_computes_the_same_bits(spec):
    result = numerics(CNN, spec)
    assert (result.max_grad_error, result.max_param_error) == (0.0, 0.0)
