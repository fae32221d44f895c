"""Compare what plans of a job train with plain PyTorch."""

from calibrate.numerics import Expected, compare
from simulator.model.job import Job
from simulator.strategies import registry as strategies


def assert_trains_alike(job: Job, machine, backend, names=("turbodl", "backward-fusion")) -> None:
    """Check that five steps by each strategy have the gradients and parameters of plain PyTorch's, up to the job's precision."""
    built = job.build()
    expected = Expected.of(job, built)
    for name in names:
        strategy, options = strategies.parse(name)
        numerics = compare(job, built, strategy.plan(job, machine, None, options), backend, expected)
        assert numerics.equal(job.precision), name
