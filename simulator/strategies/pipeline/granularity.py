"""Coarse plans of pipelines: one task for each action of a stage, in the place of a task for each op.

The ops of an action run one after another as an `OpList`. An action has several lists if it sends something before its last op, or if it
updates a layer or runs a collective before it: a list ends with each op whose result is sent, so that transfers begin when they would, and
before each update and collective.
Values that no other task uses live inside the list; one scratch value of the task stands for the most bytes that they hold at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from simulator.plan.bodies.opcall import ListedOp, OpList
from simulator.plan.plan import Plan
from simulator.plan.task import CARRIED_KINDS, COLLECTIVE, INPUT, SCRATCH, TRANSFER, UPDATE, Operand, Segment, Storage, Task, Value


def by_action(plan: Plan) -> Plan:
    """The plan with one task for each action, or for each part of it that ends with what is sent."""
    unit_of = _units(plan)
    users: dict[str, set[str]] = {}  # by storage: the units that use it
    for task, unit in zip(plan.tasks, unit_of, strict=True):
        for operand in (*task.inputs, *task.writes):
            users.setdefault(plan.storage_of(operand), set()).add(unit)
    lasting = {value.storage for value in plan.values.values() if value.kind in (CARRIED_KINDS | {INPUT})}
    lasting |= {plan.values[name].storage for name in plan.losses} | {plan.storage_of(o) for o in plan.gradients.values()}
    inner = {name for name, units in users.items() if len(units) == 1 and name not in lasting}
    values, storages = dict(plan.values), dict(plan.storages)
    tasks: list[Task] = []
    for unit, group in groupby(zip(plan.tasks, unit_of, strict=True), lambda item: item[1]):
        run = [task for task, _ in group]
        if len(run) < 2:
            tasks += run
            inner -= {plan.storage_of(operand) for task in run for operand in (*task.inputs, *task.writes)}
            continue
        one = _merged(plan, unit, run, inner)
        held = _most_bytes(plan, run, inner)
        if held:
            scratch = Value(f"{unit} scratch", (held,), (1,), "uint8", one.device, SCRATCH, f"{unit} scratch")
            values[scratch.name], storages[scratch.storage] = scratch, Storage(scratch.storage, held, one.device)
            one = replace(one, writes=(*one.writes, scratch.operand()))
        tasks.append(one)
    values = {name: value for name, value in values.items() if value.storage not in inner}
    storages = {name: storage for name, storage in storages.items() if name not in inner}
    return replace(plan, segments=(Segment(tuple(tasks)),), values=values, storages=storages)


def _units(plan: Plan) -> list[str]:
    """By task, the name of the task that it becomes part of; its own name for a task that computes no action."""
    sent = {plan.storage_of(operand) for task in plan.tasks if task.phase == TRANSFER for operand in task.reads}
    last_change = {
        plan.storage_of(operand): index
        for index, task in enumerate(plan.tasks)
        if task.phase != TRANSFER
        for operand in (*task.writes, *task.mutates)
    }
    ends = {last_change[storage] for storage in sent if storage in last_change}
    parts: dict[str, int] = {}
    names, action = [], ""
    for index, task in enumerate(plan.tasks):
        if not task.action or task.phase in (TRANSFER, UPDATE):
            names.append(task.name)
            if task.phase in (UPDATE, COLLECTIVE) and action:
                parts[action] += 1
            continue
        action = task.action
        part = parts.setdefault(task.action, 0)
        names.append(f"{task.action}/{part}" if part else task.action)
        parts[task.action] += index in ends
    return names


def _merged(plan: Plan, name: str, run: Sequence[Task], inner: set[str]) -> Task:
    """One task for all of `run`, which reads, writes and changes whole values."""
    roles: dict[str, str] = {}  # by value, of those that others use: how it is first used, and whether it is changed
    for task in run:
        for role, operands in (("reads", task.reads), ("mutates", task.mutates), ("writes", task.writes)):
            for operand in operands:
                if plan.storage_of(operand) not in inner and (role != "mutates" or roles.get(operand.value) != "writes"):
                    roles[operand.value] = role if role == "mutates" else roles.get(operand.value, role)
    by_role: dict[str, list[Operand]] = {"reads": [], "mutates": [], "writes": []}
    for value, role in roles.items():
        by_role[role].append(plan.values[value].operand())
    first = run[0]
    return Task(
        name,
        OpList(tuple(ListedOp(task.body, task.reads, task.writes, task.mutates) for task in run), "action"),
        first.device,
        first.stream,
        first.priority,
        reads=tuple(by_role["reads"]),
        writes=tuple(by_role["writes"]),
        mutates=tuple(by_role["mutates"]),
        phase=first.phase,
        layer=f"stage {first.action.rstrip('0123456789')[:-1]}",
        microbatch=first.microbatch,
        lag=first.lag,
        action=first.action,
    )


def _most_bytes(plan: Plan, run: Sequence[Task], inner: set[str]) -> int:
    """The most bytes that the storages in `inner` hold at once, if each is freed after its last use."""
    uses: dict[str, list[int]] = {}
    for position, task in enumerate(run):
        for name in {plan.storage_of(operand) for operand in (*task.inputs, *task.writes)} & inner:
            uses.setdefault(name, []).append(position)
    return _peak({name: (at[0], at[-1]) for name, at in uses.items()}, {name: plan.storages[name].bytes for name in uses}, len(run))


def _peak(lives: Mapping[str, tuple[int, int]], size: Mapping[str, int], length: int) -> int:
    begins, ends = [0] * (length + 1), [0] * (length + 1)
    for name, (first, last) in lives.items():
        begins[first] += size[name]
        ends[last] += size[name]
    return max(_sums(begins, ends))


def _sums(begins: Iterable[int], ends: Iterable[int]) -> Iterable[int]:
    held = 0
    for begun, ended in zip(begins, ends, strict=True):
        held += begun
        yield held
        held -= ended
