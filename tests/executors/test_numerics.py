"""In float64, every strategy, optimizer and form trains exactly as plain PyTorch does."""

from pathlib import Path

import pytest

from calibrate.numerics import Expected, compare
from simulator.bodies.update import STATE, forms
from simulator.job import Job
from simulator.strategies import registry as strategies
from tests.support.applicable import default_plans
from tests.support.places import USER_MODELS
from traces.errors import StepcastError

MODELS = USER_MODELS
LIMIT = 1e-10


def planned(job: Job, strategy: str, machine):
    found, options = strategies.parse(strategy)
    return found.plan(job, machine, None, options)


def job_of(path: Path, **fields) -> Job:
    return Job(f"{path}:make", 4, precision="fp64", **fields)


@pytest.mark.parametrize("strategy", ["baseline", "forward-fusion", "backward-fusion", "backward-fusion:update_stream=on", "turbodl"])
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_five_steps_equal_plain_pytorch(path, strategy, two_cores, backend):
    job = job_of(path)
    built = job.build()
    found = compare(job, built, planned(job, strategy, two_cores), backend, Expected.of(job, built))
    assert found.max_grad_error <= LIMIT
    assert found.max_param_error <= LIMIT


@pytest.mark.parametrize("optimizer", STATE)
@pytest.mark.parametrize("model", ["tied_cnn", "language_model", "frozen_regression"])
def test_every_form_of_every_optimizer(model, optimizer, two_cores, backend):
    path = next(p for p in MODELS if p.stem == model)
    for form in forms(optimizer):
        job = job_of(path, optimizer=optimizer, form=form)
        built = job.build()
        expected = Expected.of(job, built)
        for strategy, plan in default_plans(job, two_cores).items():
            found = compare(job, built, plan, backend, expected)
            assert max(found.max_grad_error, found.max_param_error) <= LIMIT, (form, strategy)


@pytest.mark.parametrize("strategy", ["baseline", "forward-fusion"])
def test_clipping_and_accumulation(strategy, two_cores, backend):
    for path in MODELS:
        job = job_of(path, accumulate=2, clip_norm=0.05, optimizer="adam")
        built = job.build()
        found = compare(job, built, planned(job, strategy, two_cores), backend, Expected.of(job, built))
        assert max(found.max_grad_error, found.max_param_error) <= LIMIT, path.stem


def test_backward_fusion_updates_on_the_last_micro_batch(two_cores, backend):
    job = job_of(MODELS[0], accumulate=2)
    built = job.build()
    plan = planned(job, "backward-fusion", two_cores)
    updates = [i for i, task in enumerate(plan.tasks) if task.phase == "update"]
    last_forward = max(i for i, task in enumerate(plan.tasks) if task.phase == "forward")
    assert min(updates) > last_forward
    assert compare(job, built, plan, backend, Expected.of(job, built)).max_param_error <= LIMIT


def test_backward_fusion_refuses_global_norm_clipping(two_cores):
    with pytest.raises(StepcastError, match="cannot clip by the global norm"):
        planned(job_of(MODELS[0], clip_norm=1.0), "backward-fusion", two_cores)


def test_the_comparison_notices_a_missing_update(two_cores, backend):
    from dataclasses import replace

    job = job_of(MODELS[0])
    built = job.build()
    plan = planned(job, "forward-fusion", two_cores)
    (segment,) = plan.segments
    first = next(task for task in segment.tasks if task.phase == "update")
    broken = replace(plan, segments=(replace(segment, tasks=tuple(t for t in segment.tasks if t is not first)),))
    assert compare(job, built, broken, backend, Expected.of(job, built)).max_param_error > 1e-6
