"""Interference: what one worker is timed on, and what the other worker runs meanwhile."""

from calibrate.cpu.contention import InterferenceRounds
from calibrate.identity import cpu_identity
from simulator.engine.costs.model import CostModel
from simulator.model.job import Job
from tests.support.jobs import MLP, planned
from traces.documents.profile import Profile


def test_the_workers_of_a_co_run_have_no_tensors_in_common(two_cores):
    """Otherwise one would find in the shared cache what the other has read, as lanes of a plan do not."""
    job, profile = Job(MLP, 4), Profile(identity=cpu_identity())
    plan = planned("turbodl", job, two_cores, CostModel(two_cores, profile))
    interference = InterferenceRounds.for_plans([plan], two_cores, profile)
    timed, other = ({t.data_ptr() for t in sampler._pool._tensors.values()} for sampler in (interference._sampler, interference._beside))
    assert len(timed) == len(other) > 0
    assert not timed & other
    assert interference._sampler.samples.keys() == interference._beside.samples.keys()
