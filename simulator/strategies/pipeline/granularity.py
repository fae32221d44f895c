"""Coarse plans of pipelines: one task for each action of a stage, instead of a task for each op.

The ops of an action run one after another as an `OpList`. An action has several lists if it sends something before its last op, or if it
updates a layer or sums gradients before it: a list ends with each op whose result is sent, so that transfers begin when they would, and
before each update and sum.
Values that no other task uses live inside the list; one scratch value of the task has the size of their peak.

Devices that divide layers run collectives within an action, some dozen in each of its layers. Their order matters little: almost every
one waits for the op before it, and the next op for it. So an action runs its ops first, then all collectives of one kind and size as one
task, and its last op at the end. If ops run concurrently with collectives (those between a collective and the first op that reads its
result), equally many run concurrently with the one task that represents these.

What that costs in accuracy, in twelve plans for 16 H100s (decoders of 8 layers, 512 and 2,048 wide; 2 or 4 stages, with and without divided
layers): steps are 12 % shorter to 2 % longer than those of plans of single ops, most where hosts limit them, and the peak of memory is 2 %
lower to 10 % higher.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from simulator.plan.bodies.opcall import ListedOp, OpList
from simulator.plan.plan import Plan
from simulator.plan.task import (
    CARRIED_KINDS,
    COLLECTIVE,
    INPUT,
    SCRATCH,
    TRANSFER,
    UPDATE,
    Operand,
    Resource,
    Storage,
    Task,
    Value,
)
from simulator.plan.tensors import contiguous


def by_action(plan: Plan, runs: bool = True) -> Plan:
    """The plan with one task for each action, or for each part of it that ends with what is sent.

    `runs`: an executor may run it, which does not free what a task reads until the task ends. A plan that is only predicted allocates as
    much as a plan of ops.
    """
    unit_of = _units(plan)
    users: dict[str, dict[str, None]] = {}  # by storage: the units that use it, in order
    for task, unit in zip(plan.tasks, unit_of, strict=True):
        for operand in (*task.inputs, *task.writes):
            users.setdefault(plan.storage_of(operand), {})[unit] = None
    lasting = {value.storage for value in plan.values.values() if value.kind in (CARRIED_KINDS | {INPUT})}
    lasting |= {plan.values[name].storage for name in plan.losses} | {plan.storage_of(o) for o in plan.gradients.values()}
    inner = {name for name, units in users.items() if len(units) == 1 and name not in lasting}
    #: By unit: the storages that it is the first, or the last, of several to use.
    passing: dict[str, set[str]] = defaultdict(set)
    for name, units in users.items() if not runs else ():
        if name not in inner and name not in lasting:
            passing[next(iter(units))].add(name)
            passing[next(reversed(units))].add(name)
    values, storages = dict(plan.values), dict(plan.storages)
    tasks: list[Task] = []
    for unit, group in groupby(zip(plan.tasks, unit_of, strict=True), lambda item: item[1]):
        run = [task for task, _ in group]
        bundles = _bundles(plan, run)
        if len(run) < 2 or (bundles and len(_in_order(run, bundles)) < 2):
            tasks += run
            inner -= {plan.storage_of(operand) for task in run for operand in (*task.inputs, *task.writes)}
            continue
        one, held = _merged(plan, unit, run, inner), _most_bytes(plan, run, inner, passing[unit])
        held = max([held, *(operand.bytes for bundle in bundles for operand in bundle.operands)])
        if not held:
            tasks.append(one)
            continue
        scratch = Value(f"{unit} scratch", (held,), (1,), dtype="uint8", device=one.device, kind=SCRATCH)
        storages[scratch.storage] = Storage(scratch.storage, held, one.device)
        own = [value for bundle in bundles for value in bundle.values(unit, scratch)]
        values |= {value.name: value for value in (scratch, *own)}
        tasks += _in_bundles(one, run, bundles, scratch.operand()) if bundles else [replace(one, writes=(*one.writes, scratch.operand()))]
    values = {name: value for name, value in values.items() if value.storage not in inner}
    storages = {name: storage for name, storage in storages.items() if name not in inner}
    return replace(plan, tasks=tuple(tasks), values=values, storages=storages)


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
        moved = task.phase == COLLECTIVE and not _is_collective(task)
        if not task.action or moved or task.phase in (TRANSFER, UPDATE):
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
    computing = [task for task in run if not _is_collective(task)]
    first = computing[0]
    return Task(
        name,
        _listed(computing),
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


def _is_collective(task: Task) -> bool:
    return task.body.resource is Resource.COLLECTIVE


def _listed(run: Iterable[Task]) -> OpList:
    return OpList(tuple(ListedOp(task.body, task.reads, task.writes, task.mutates) for task in run), "action")


@dataclass(frozen=True)
class _Bundle:
    """Collectives of one kind and size, the first of which is `like`; `beside`: the ops that run concurrently."""

    like: Task
    name: str
    beside: list[Task] = field(default_factory=list)
    members: list[Task] = field(default_factory=list)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Those of the first collective."""
        return (*self.like.inputs, *self.like.writes)

    def values(self, unit: str, scratch: Value) -> Iterator[Value]:
        """Values like these operands in the memory of `scratch`."""
        for operand in self.operands:
            own = self._own(unit, operand)
            yield replace(scratch, name=own.value, shape=own.shape, strides=own.strides, dtype=own.dtype)

    def _own(self, unit: str, operand: Operand) -> Operand:
        strides = contiguous(operand.shape)
        return replace(operand, value=f"{unit} {self.name} {operand.value}", strides=strides, views=())

    def task(self, unit: str, after: tuple[str, ...]) -> Task:
        """One task for all collectives."""
        reads, writes, mutates = (
            tuple(self._own(unit, operand) for operand in operands) for operands in (self.like.reads, self.like.writes, self.like.mutates)
        )
        body = replace(self.like.body, times=len(self.members))
        return replace(self.like, name=f"{unit}/{self.name}", body=body, reads=reads, writes=writes, mutates=mutates, after=after)


def _bundles(plan: Plan, run: Sequence[Task]) -> list[_Bundle]:
    """The collectives of a run of tasks, and the ops concurrent with them: those of one kind and size, with the same ops, in one bundle."""
    bundles: dict[object, _Bundle] = {}
    for position, task in enumerate(run):
        if not _is_collective(task):
            continue
        made = {plan.storage_of(operand) for operand in (*task.writes, *task.mutates)}
        beside: list[Task] = []
        for later in run[position + 1 :]:
            if _is_collective(later) or not made.isdisjoint(plan.storage_of(operand) for operand in (*later.inputs, *later.writes)):
                break
            beside.append(later)
        kind = (task.body, task.body.payload_bytes(task), tuple(each.body.key(each) for each in beside))
        bundle = bundles.setdefault(kind, _Bundle(task, f"{task.body.operation} {len(bundles)}"))
        bundle.beside.extend(beside)
        bundle.members.append(task)
    return list(bundles.values())


def _in_order(run: Sequence[Task], bundles: Sequence[_Bundle]) -> list[Task]:
    """The ops that are not concurrent with a collective."""
    beside = {task.name for bundle in bundles for task in bundle.beside}
    return [task for task in run if not _is_collective(task) and task.name not in beside]


def _in_bundles(one: Task, run: Sequence[Task], bundles: Sequence[_Bundle], scratch: Operand) -> list[Task]:
    """The tasks of an action with collectives: its first ops, bundle after bundle with the ops concurrent with each, and its last op.

    `one`: the task of all ops, whose operands the last one has. The other ops' values are in `scratch`.
    """
    *first, last = _in_order(run, bundles)
    tasks = [replace(one, body=_listed(first), reads=one.reads, writes=(scratch,), mutates=())]
    for bundle in bundles:
        tasks.append(bundle.task(one.name, (tasks[-1].name,)))
        if bundle.beside:
            name = f"{one.name}/beside {bundle.name}"
            tasks.append(replace(one, name=name, body=_listed(bundle.beside), reads=(), writes=(), mutates=(), after=(tasks[-2].name,)))
    end = replace(one, name=f"{one.name}/end", body=_listed([last]), reads=(*one.reads, scratch), after=(tasks[-1].name,))
    return [*tasks, end]


def _most_bytes(plan: Plan, run: Sequence[Task], inner: set[str], passing: set[str]) -> int:
    """The peak bytes of the storages in `inner`, if each is freed after its last use.

    Those in `passing` are made by `run` or used last by it, and as operands of the one task count from its start to its end. Before they
    are made and after their last use, others may use their memory.
    """
    uses: dict[str, list[int]] = {}
    for position, task in enumerate(run):
        for name in {plan.storage_of(operand) for operand in (*task.inputs, *task.writes)}:
            if name in inner or name in passing:
                uses.setdefault(name, []).append(position)
    made = {plan.storage_of(operand) for task in run for operand in task.writes}
    end = len(run)
    lives = {name: (at[0] if name in made else 0, at[-1] if name in inner or name not in made else end) for name, at in uses.items()}
    size = {name: plan.storages[name].bytes for name in uses}
    return max(0, _peak(lives, size, end) - sum(size[name] for name in uses if name in passing))


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
