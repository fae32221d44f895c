"""Co-runs: what one worker is timed on, and what the other worker runs meanwhile."""

from calibrate.cpu.contention import CoRuns
from calibrate.identity import cpu_identity
from simulator.engine.costs.model import CostModel
from simulator.model.job import Job
from tests.support.jobs import MLP, planned
from traces.documents.profile import Profile


def test_the_workers_of_a_co_run_have_no_tensors_in_common(two_cores):
    """Otherwise one would find in the shared cache what the other has read, as lanes of a plan do not."""
    job, profile = Job(MLP, 4), Profile(identity=cpu_identity())
    plan = planned("turbodl", job, two_cores, CostModel(two_cores, profile))
    co_runs = CoRuns.of([plan], two_cores, profile)
    timed, other = ({t.data_ptr() for t in sampler._pool._tensors.values()} for sampler in (co_runs._sampler, co_runs._beside))
    assert len(timed) == len(other) > 0
    assert not timed & other
    assert co_runs._sampler.samples.keys() == co_runs._beside.samples.keys()
