"""In float64, every strategy of the registry, optimizer and form trains exactly as plain PyTorch does, or as weights as stale do."""

from functools import cache
from pathlib import Path

import pytest

from calibrate.numerics import STEPS, Expected, References, compare
from executors.cpu.backend import CpuBackend
from simulator.model.job import Job
from simulator.plan.bodies.update import STATE, forms
from simulator.strategies import registry as strategies
from tests.support.applicable import core_groups, default_plans, plan_unless_refused, specs
from tests.support.jobs import planned
from tests.support.places import USER_MODELS
from traces.errors import SchedcastError

MODELS = USER_MODELS
LIMIT = 1e-10


@cache  # with its graph: a user's model is captured for each new job
def job_of(path: Path, **fields) -> Job:
    return Job(f"{path}:make", 4, precision="fp64", **fields)


@cache
def references(path: Path):
    """A job, its model, and the references: plain PyTorch with as many microbatches, or with weights as stale as the plan's."""
    job = job_of(path)
    built = job.build()
    return job, built, References(job, built, STEPS, None)


@pytest.fixture(scope="module")
def backends(two_cores, backend):
    """The machine and the executor with a given number of devices."""

    @cache
    def of(devices: int):
        if devices == 1:
            return two_cores, backend
        machine = core_groups(devices)
        return machine, CpuBackend(machine)

    return of


def unless(usual: bool) -> tuple:
    """The marks of a case: none for a usual one, which `make test` runs."""
    return () if usual else (pytest.mark.thorough,)


#: Every model with every strategy. The usual third has every strategy with two or three of the models.
CASES = [
    pytest.param(path, spec, marks=unless((i + j) % 3 == 0), id=f"{path.stem}-{spec}")
    for i, path in enumerate(MODELS)
    for j, spec in enumerate(specs())
]


@pytest.mark.parametrize(("path", "spec"), CASES)
def test_five_steps_equal_plain_pytorch(path, spec, backends):
    machine, executor = backends(strategies.parse(spec)[0].least_devices)
    plan = plan_unless_refused(spec, job_of(path), machine)
    if plan is None:
        pytest.skip(f"{spec} does not apply to {path.stem}")
    job, built, expected = references(path)
    numerics = compare(job, built, plan, executor, expected.of(plan))
    assert numerics.max_grad_error <= LIMIT
    assert numerics.max_param_error <= LIMIT


#: Three models with every optimizer. The usual third has every optimizer once.
TRAINED = [
    pytest.param(model, optimizer, marks=unless((i + j) % 3 == 0), id=f"{model}-{optimizer}")
    for i, model in enumerate(("tied_cnn", "language_model", "frozen_regression"))
    for j, optimizer in enumerate(STATE)
]


@pytest.mark.parametrize(("model", "optimizer"), TRAINED)
def test_every_form_of_every_optimizer(model, optimizer, two_cores, backend):
    path = next(p for p in MODELS if p.stem == model)
    for form in forms(optimizer):
        job = job_of(path, optimizer=optimizer, form=form)
        built = job.build()
        expected = Expected.of(job, built)
        for strategy, plan in default_plans(job, two_cores).items():
            numerics = compare(job, built, plan, backend, expected)
            assert max(numerics.max_grad_error, numerics.max_param_error) <= LIMIT, (form, strategy)


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_clipping_and_accumulation(path, two_cores, backend):
    job = job_of(path, accumulate=2, clip_norm=0.05, optimizer="adam")
    built = job.build()
    expected = Expected.of(job, built)
    compared = set()
    for strategy in strategies.names(1):
        try:
            plan = plan_unless_refused(strategy, job, two_cores)
        except SchedcastError as error:
            if "cannot clip by the global norm" not in str(error):
                raise
            continue
        if plan is not None:
            numerics = compare(job, built, plan, backend, expected)
            assert max(numerics.max_grad_error, numerics.max_param_error) <= LIMIT, strategy
            compared.add(strategy)
    assert compared >= {"baseline", "forward-fusion"}


def test_backward_fusion_updates_on_the_last_microbatch(two_cores, backend):
    job = job_of(MODELS[0], accumulate=2)
    built = job.build()
    plan = planned("backward-fusion", job, two_cores)
    updates = [i for i, task in enumerate(plan.tasks) if task.phase == "update"]
    last_forward = max(i for i, task in enumerate(plan.tasks) if task.phase == "forward")
    assert min(updates) > last_forward
    assert compare(job, built, plan, backend, Expected.of(job, built)).max_param_error <= LIMIT


def test_backward_fusion_refuses_global_norm_clipping(two_cores):
    with pytest.raises(SchedcastError, match="cannot clip by the global norm"):
        planned("backward-fusion", job_of(MODELS[0], clip_norm=1.0), two_cores)


def test_the_comparison_notices_a_missing_update(two_cores, backend):
    from dataclasses import replace

    job = job_of(MODELS[0])
    built = job.build()
    plan = planned("forward-fusion", job, two_cores)
    (segment,) = plan.segments
    first = next(task for task in segment.tasks if task.phase == "update")
    broken = replace(plan, segments=(replace(segment, tasks=tuple(t for t in segment.tasks if t is not first)),))
    assert compare(job, built, broken, backend, Expected.of(job, built)).max_param_error > 1e-6
