"""The error of costs that were not measured: `python -m tests.benchmarks.cost_fit PROFILE.json MODEL:BATCH:SIZE MODEL:BATCH:SIZE...`.

PROFILE must have the keys of every model's baseline plan on one core of this CPU. The keys that only one model has are hidden and
predicted twice: from the profile's keys of the other models, and from the committed table alone. Prints the root mean square of
log(predicted / measured) by op class, the errors that the cost model states, and the error of the model's summed task time.
"""

import math
import sys
from collections import defaultdict
from pathlib import Path

from simulator.costs.cost import Cost
from simulator.costs.model import CostModel
from simulator.job import Job
from simulator.machine.this_cpu import this_cpu
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from simulator.strategies import baseline
from traces.profile import Profile


def rms(values: list[float]) -> float:
    """Root mean square."""
    return math.sqrt(sum(v * v for v in values) / len(values)) if values else math.nan


def report(name: str, plan: Plan, measured: list[Cost], predicted: list[Cost]) -> None:
    """Print the errors of the keys that were predicted, by class, and of the sum over all tasks."""
    wrong, stated = defaultdict(dict), defaultdict(dict)
    for truth, guess in zip(measured, predicted, strict=True):
        if guess.source != "measured" and truth.source == "measured":
            wrong[truth.op_class][truth.key] = math.log(guess.cold_s / truth.cold_s)
            stated[truth.op_class][truth.key] = guess.error
    total, said = sum(c.cold_s for c in measured), sum(c.cold_s for c in predicted)
    print(f"  {name}: {len(plan.tasks)} tasks, {total * 1e3:.1f} ms measured, {said * 1e3:.1f} ms predicted ({said / total - 1:+.1%})")
    for op_class, errors in sorted(wrong.items()):
        found = list(errors.values())
        print(f"    {op_class:24} {len(found):4} keys  rms {rms(found):.2f}  stated {rms(list(stated[op_class].values())):.2f}")


def main(path: Path, *jobs: str):
    """Leave one model out, for each model."""
    profile, machine = Profile.load(path), this_cpu(cores=1)
    plans = {}
    for job in jobs:
        name, batch, size = job.split(":")
        given = Job(model=name, batch=int(batch), image_size=int(size))
        plans[job] = baseline.plan(given, machine, CostModel(machine), baseline.Options())
    keys = {job: {cost_key(task, machine) for task in plan.tasks} for job, plan in plans.items()}
    for job, plan in plans.items():
        measured = CostModel(machine, profile).resolve(plan)
        others = set().union(*(keys[other] for other in jobs if other != job))
        known = profile.model_copy(update={"costs": {key: cost for key, cost in profile.costs.items() if key in others}})
        print(f"{job}: {len(keys[job] - others)} of {len(keys[job])} keys hidden")
        report("fitted on the others", plan, measured, CostModel(machine, known).resolve(plan))
        report("committed table", plan, measured, CostModel(machine).resolve(plan))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
