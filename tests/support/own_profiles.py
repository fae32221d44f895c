"""Made-up profiles of this machine that have some of a job's keys."""

from calibrate.identity import cpu_identity
from calibrate.profiles import target_for
from simulator.model.job import Job
from simulator.plan.keys import cost_key
from simulator.predict.answers import answers
from traces.documents.profile import Dispatch, KeyCost, LoopCosts, Profile, Stats


def profile_with(share: float, job: Job) -> Profile:
    """A profile of this machine with that share of the keys of plain PyTorch and of the baseline; each takes 1 ms."""
    dispatch = Dispatch(task_overhead_s=1e-6, shared_overhead_s=1e-6, wake_s=1e-6)
    profile = Profile(identity=cpu_identity(), dispatch=dispatch, loop=LoopCosts(), anchor_s=1e-4)
    stats = Stats.from_samples([1e-3] * 9)
    for each in answers(job, ["baseline"], target_for(job, None, "this-cpu")).forecasts.values():
        tasks = list({cost_key(task, each.machine): task for task in each.plan.tasks}.items())
        for key, task in tasks[: round(share * len(tasks))]:
            work = task.body.work(task)
            profile.costs[key] = KeyCost(stats, stats, work.op_class, work.flops, work.bytes, model=job.model)
    return profile
