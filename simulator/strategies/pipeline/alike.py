"""A pipeline's plan with many microbatches, from one with two of them: the others repeat the second one.

The first microbatch makes the gradients that all others add to. Copies of the second one have their own values and names, but share its
bodies; the single ops in an `OpList` body still name the values of the second one. So such a plan is only for predictions.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from simulator.plan.plan import Plan
from simulator.plan.task import CARRIED_KINDS, Operand, Task
from simulator.strategies.pipeline.schedule import Action, Schedule, first_microbatches

#: The microbatches that are planned, op by op.
PLANNED = 2
_COPIED = PLANNED - 1


def may_copy(schedule: Schedule) -> bool:
    """Whether all microbatches except the first are identical in each stage, and the first one makes the gradients."""
    kinds: dict[tuple[int, int], set[str]] = defaultdict(set)  # by stage and microbatch
    for stage, kind, microbatch in schedule.actions:
        kinds[stage, microbatch].add(kind)
    first = first_microbatches(action for actions in schedule.ranks for action in actions)
    alike = all(own == kinds[stage, _COPIED] for (stage, microbatch), own in kinds.items() if microbatch)
    return schedule.microbatches > PLANNED and alike and set(first.values()) == {0}


def planned(actions: Iterable[Action]) -> list[Action]:
    """Those of the actions that are planned."""
    return [action for action in actions if action.microbatch < PLANNED]


def with_copies(plan: Plan, actions: Sequence[Action]) -> Plan:
    """The plan of all `actions`, in this order, from that of those that are `planned`."""
    before, own, after = _by_action(plan, planned(actions))
    copied = [(task, action) for action, group in own.items() if action.microbatch == _COPIED for task in group]
    fresh = _fresh(plan, copied)
    values, storages, losses = dict(plan.values), dict(plan.storages), list(plan.losses)
    names: dict[int, dict[str, str]] = {}  # by microbatch: those of its copies, by those of the second one
    for microbatch in range(PLANNED, 1 + max(action.microbatch for action in actions)):
        renamed = {name: _name(name, action, microbatch) for name, action in fresh.items()}
        for name, action in fresh.items():
            value = plan.values[name]
            storage = replace(plan.storages[value.storage], name=_name(value.storage, action, microbatch))
            values[renamed[name]] = replace(value, name=renamed[name], storage=storage.name)
            storages[storage.name] = storage
        losses += [renamed[name] for name in plan.losses if name in fresh]
        names[microbatch] = renamed | {task.name: _name(task.name, action, microbatch) for task, action in copied}
    tasks: list[Task] = []
    last = {action.stage: number for number, action in enumerate(actions)}
    for number, action in enumerate(actions):
        tasks += before.get(action, ())
        if action.microbatch < PLANNED:
            tasks += own.get(action, ())
        else:
            tasks += [_copy(task, action, names[action.microbatch]) for task in own.get(action._replace(microbatch=_COPIED), ())]
        if last[action.stage] == number:
            tasks += after.get(action.stage, ())
    return replace(plan, tasks=tuple(tasks), values=values, storages=storages, losses=tuple(losses))


def _fresh(plan: Plan, copied: Sequence[tuple[Task, Action]]) -> dict[str, Action]:
    """The values that only the tasks `copied`, of one microbatch, use, each with an action that uses it."""
    own = {task.name for task, _ in copied}
    used = {operand.value: action for task, action in copied for operand in _operands(task)}
    shared = {plan.storage_of(operand) for task in plan.tasks if task.name not in own for operand in _operands(task)}
    shared |= {value.storage for value in plan.values.values() if value.kind in CARRIED_KINDS}
    return {name: action for name, action in used.items() if plan.values[name].storage not in shared}


def _by_action(plan: Plan, actions: Sequence[Action]) -> tuple[dict[Action, list[Task]], dict[Action, list[Task]], dict[int, list[Task]]]:
    """The tasks that come before the first action of a stage, those of each action, and those after the last action of each stage."""
    before: dict[Action, list[Task]] = {}
    own: dict[Action, list[Task]] = {}
    after: dict[int, list[Task]] = defaultdict(list)
    waiting: list[Task] = []
    starts = {next(action for action in actions if action.stage == stage) for stage in {action.stage for action in actions}}
    starting, stage = len(starts), -1
    for text, group in groupby(plan.tasks, key=lambda task: task.action):
        action = Action.read(text)
        if action is not None:
            own.setdefault(action, []).extend(group)
            before.setdefault(action, []).extend(waiting)
            starting, stage, waiting = len(starts - own.keys()), action.stage, []
        elif starting:
            waiting = list(group)
        else:
            after[stage] += group
    return before, own, after


def _operands(task: Task) -> Iterator[Operand]:
    yield from (*task.inputs, *task.writes)


def _name(name: str, action: Action, microbatch: int) -> str:
    """The name of a copy of a value or task called `name`, which belongs to an action of the second microbatch."""
    parts = name.removeprefix(str(action)).removesuffix(f"@{_COPIED}")
    if name.startswith(str(action)):
        parts = f"{action._replace(microbatch=microbatch)}{parts}"
    return f"{parts}@{microbatch}" if name.endswith(f"@{_COPIED}") or parts == name else parts


def _copy(task: Task, action: Action, names: Mapping[str, str]) -> Task:
    def renamed(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(replace(o, value=names[o.value]) if o.value in names else o for o in operands)

    return replace(
        task,
        name=names[task.name],
        reads=renamed(task.reads),
        writes=renamed(task.writes),
        mutates=renamed(task.mutates),
        after=tuple(names.get(name, name) for name in task.after),
        microbatch=action.microbatch,
        action=str(action),
    )
