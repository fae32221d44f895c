"""Plans of a job with autocast compute what plain PyTorch computes under autocast, on a CPU."""

from functools import cache
from itertools import pairwise

import pytest
import torch

from calibrate.numerics import STEPS, TOLERANCE, References, compare
from executors.cpu.backend import CpuBackend
from executors.tensors import job_tensors
from simulator.model.gradients import GROWTH, INITIAL_SCALE, SCALE
from simulator.model.job import Job
from simulator.strategies import registry as strategies
from tests.support import mlp
from tests.support.applicable import core_groups, plan_unless_refused
from tests.support.places import USER_MODELS
from tests.support.refusals import refuses
from traces.errors import Code

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


@pytest.mark.thorough
@pytest.mark.parametrize("spec", strategies.names())
@pytest.mark.parametrize("model", [CNN, TRANSFORMER], ids=["cnn", "transformer"])
def test_five_steps_agree_within_the_tolerance(model, spec):
    result = numerics(model, spec)
    if result is None:
        pytest.skip(f"{spec} does not apply to {model}")
    assert max(result.max_grad_error, result.max_param_error) <= TOLERANCE["amp"]


@pytest.mark.parametrize("spec", ["baseline", "forward-fusion", "backward-fusion", "turbodl", "data-parallel"])
def test_a_cnn_computes_the_same_bits(spec):
    result = numerics(CNN, spec)
    assert (result.max_grad_error, result.max_param_error) == (0.0, 0.0)


SCALED = ["baseline", "forward-fusion", "turbodl", "data-parallel"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "fields", [{}, {"optimizer": "adam", "form": "fused", "clip_norm": 0.1}, {"form": "for", "accumulate": 2}], ids=str
)
def test_with_a_gradient_scaler_a_cnn_computes_the_same_bits(fields):
    job = Job("lenet5", 4, precision="amp-fp16", **fields)
    built = job.build()
    expected = References(job, built, STEPS, None)
    for spec in SCALED:
        machine, backend = executor(strategies.parse(spec)[0].least_devices)
        plan = plan_unless_refused(spec, job, machine)
        result = compare(job, built, plan, backend, expected.of(plan))
        rounding = 2**-24 if spec == "data-parallel" and job.accumulate > 1 else 0.0  # each device first adds up its own microbatches
        assert max(result.max_grad_error, result.max_param_error) <= rounding, spec


@pytest.mark.parametrize(("optimizer", "form"), [("momentum", "foreach"), ("momentum", "for"), ("adam", "fused")])
def test_steps_whose_gradients_overflow_are_skipped(optimizer, form):
    job = Job(f"{mlp.__file__}:steep", 4, precision="amp-fp16", optimizer=optimizer, form=form)
    built, (machine, backend) = job.build(), executor(1)
    plan = plan_unless_refused("baseline", job, machine)
    program = backend.load(plan, job_tensors(job, built, job.graph()), job.seed)
    weight, scale, growth = torch.empty(5, 4), torch.empty(()), torch.empty((), dtype=torch.int32)
    seen = [built.module[0].weight.detach().clone()]
    for _ in range(STEPS):
        program.run(1)
        program.copy_current({"0.weight": weight, SCALE: scale, GROWTH: growth})
        seen.append(weight.clone())
    assert [before.equal(after) for before, after in pairwise(seen)] == [True, True, False, False, False]
    assert (scale.item(), growth.item()) == (INITIAL_SCALE / 4, 3)
    result = compare(job, built, plan, backend, References(job, built, STEPS, None).of(plan))
    assert (result.max_grad_error, result.max_param_error) == (0.0, 0.0)


@pytest.mark.parametrize("spec", ["backward-fusion", "turbodl:fuse=backward", "1f1b", "owt", "data-parallel:update=backward-fusion"])
def test_updates_before_all_gradients_are_known_are_refused_in_one_line(spec):
    job = Job("lenet5", 4, precision="amp-fp16")
    strategy, options = strategies.parse(spec)
    with refuses(Code.MODEL, r"cannot skip steps whose gradients overflow \(--precision amp-fp16\): "):
        strategy.plan(job, executor(strategy.least_devices)[0], None, options)
