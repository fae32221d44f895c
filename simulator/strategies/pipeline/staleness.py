"""How stale the weights are that a plan computes with: found by walking its sequential program, not from a formula.

The staleness of a read is the number of updates that plain training would have made before the mini-batch and that the weights lack.
"""

from collections.abc import Sequence
from typing import NamedTuple

from simulator.plan.plan import Plan, program
from simulator.plan.task import BACKWARD, COLLECTIVE, FORWARD, PARAMETER
from traces.errors import Code, SchedcastError

#: Iterations beyond the largest lag after which every mini-batch is like the previous one.
_SETTLED = 3


class Staleness(NamedTuple):
    """Updates that the weights lack in a mini-batch's forward and in its backward."""

    forward: int = 0
    backward: int = 0


def staleness(plan: Plan) -> dict[str, Staleness]:
    """Return the staleness of each parameter; of a plan in which every task works on the newest mini-batch, nothing.

    Raises SchedcastError for a parameter that one phase reads in two versions, as tied weights on two stages, which no training does.
    """
    if not any(task.lag for task in plan.tasks):
        return {}
    read = _reads(plan)
    for (parameter, phase), lacking in read.items():
        if len(lacking) > 1:
            raise SchedcastError(
                f"two stages use {parameter}, and in {phase} it lacks {' and '.join(map(str, sorted(lacking)))} updates: tied weights must"
                " be on one stage; choose another placement, or a pipeline that drains in every step",
                Code.MODEL,
            )
    names = dict.fromkeys(parameter for parameter, _ in read)
    return {name: Staleness(*(max(read.get((name, phase), {0})) for phase in (FORWARD, BACKWARD))) for name in names}


def stale_notes(plan: Plan, stages: Sequence[Sequence[str]]) -> dict[str, object]:
    """What a plan's semantics say about stale weights: staleness by stage, the share of stale weights, and the versions stored by stage.

    `stages`: the parameters of each stage. Raises SchedcastError as `staleness` does.
    """
    lacking_of = staleness(plan)
    by_stage = [[lacking_of.get(parameter, Staleness()) for parameter in parameters] or [Staleness()] for parameters in stages]
    forward, backward = ([max(each[phase] for each in own) for own in by_stage] for phase in (0, 1))
    sizes = [sum(plan.values[parameter].operand().elements for parameter in parameters) for parameters in stages]
    stale = sum(size for size, lacking in zip(sizes, forward, strict=True) if lacking)
    kept = [any(f"{parameter}@kept" in plan.values for parameter in parameters) for parameters in stages]
    return {
        "staleness": max(forward),
        "staleness_by_stage": forward,
        "backward_staleness_by_stage": backward,
        "stale_weights": round(stale / (sum(sizes) or 1), 6),
        "versions_by_stage": [1 + lacking if keeps else 1 for lacking, keeps in zip(forward, kept, strict=True)],
    }


def _reads(plan: Plan) -> dict[tuple[str, str], set[int]]:
    """By (parameter, phase): how many updates the weights lack that a mini-batch reads once the pipeline is full."""
    last = max(task.lag for task in plan.tasks)
    parameter_of = {v.storage: v.source.value for v in plan.values.values() if v.kind == PARAMETER and v.source is not None}
    version = dict.fromkeys(parameter_of, 0)
    kept: dict[tuple[str, int], list[tuple[str, int]]] = {}  # (value, iteration) -> (storage, version) of each that it is a copy of
    reads: dict[tuple[str, str], set[int]] = {}
    watched = last + _SETTLED
    for period, _, task in program(plan.tasks, watched + last + 1):
        iteration = period - task.lag
        if task.body.is_update:
            for storage in {plan.storage_of(operand) for operand in task.mutates} & version.keys():
                version[storage] += 1
            continue
        contents = []
        for operand in task.inputs:
            storage = plan.storage_of(operand)
            if storage in version:
                contents.append((storage, version[storage]))
            elif (operand.value, iteration) in kept:
                contents += kept[operand.value, iteration]
        if contents and (task.body.is_copy or task.phase == COLLECTIVE):
            kept.update({(operand.value, iteration): contents for operand in task.writes})
        elif iteration == watched and task.phase in (FORWARD, BACKWARD):
            for storage, number in contents:
                reads.setdefault((parameter_of[storage], task.phase), set()).add(iteration - number)
    return reads
