"""Compare what plans of a job train with plain PyTorch."""

from calibrate.numerics import Expected, compare
from simulator.model.job import Job
from tests.support.jobs import planned


def assert_trains_alike(job: Job, machine, backend, names=("turbodl", "backward-fusion")) -> None:
    """Check that five steps by each strategy have the gradients and parameters of plain PyTorch's, up to the job's precision."""
    built = job.build()
    expected = Expected.of(job, built)
    for name in names:
        numerics = compare(job, built, planned(name, job, machine), backend, expected)
        assert numerics.equal(job.precision), name
