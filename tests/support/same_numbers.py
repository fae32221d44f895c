"""Compare what plans of a job train with plain PyTorch."""

from calibrate.numerics import STEPS, Expected, References, compare
from simulator.model.job import Job
from simulator.plan.plan import Plan
from tests.support.jobs import planned


def largest_error(job: Job, plan: Plan, backend, steps: int = STEPS) -> float:
    """The largest error of gradients and of parameters after some steps of a plan, against plain PyTorch with weights as stale."""
    built = job.build()
    numerics = compare(job, built, plan, backend, References(job, built, steps, backend).of(plan), steps)
    return max(numerics.max_grad_error, numerics.max_param_error)


def assert_trains_alike(job: Job, machine, backend, names=("turbodl", "backward-fusion")) -> None:
    """Check that five steps by each strategy have the gradients and parameters of plain PyTorch's, up to the job's precision."""
    built = job.build()
    expected = Expected.of(job, built)
    for name in names:
        numerics = compare(job, built, planned(name, job, machine), backend, expected)
        assert numerics.equal(job.precision), name
