"""The fields of a plan, and properties that follow from them without a machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Self, TypeVar

from simulator.plan.task import CARRIED_KINDS, INPUT, DeviceClass, Operand, Repeat, Storage, Task, Value
from traces.errors import Code, SchedcastError

T = TypeVar("T")


@dataclass(frozen=True)
class PlanContents:
    """What a strategy decided: the fields of a plan, and properties derived from them alone.

    `tasks` are those of one period in issue order, which a run repeats. `losses` are the scalar values whose mean is the step's loss (one
    per microbatch, or one per shard of a microbatch). `gradients` maps a parameter, or a value with a piece of one (`gradient_sources`), to
    the operand with its complete gradient. `semantics` describes what differs from plain training. A plan that can only be predicted
    may have one device for many (`classes`), and omit microbatches (`repeat`).

    A run may go from one plan to another. It then follows each of the `earlier` plans for its number of `iterations`, completes them, and
    continues with the next plan, at last with this one until the run ends (`sequence`). The plans have the parameters, buffers and
    optimizer state in common.
    """

    strategy: str
    tasks: tuple[Task, ...]
    values: Mapping[str, Value]
    storages: Mapping[str, Storage]
    losses: tuple[str, ...] = ()
    gradients: Mapping[str, Operand] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    semantics: Mapping[str, object] = field(default_factory=dict)
    classes: tuple[DeviceClass, ...] = ()
    repeat: Repeat | None = None
    iterations: int | None = None
    earlier: tuple[Self, ...] = ()

    @classmethod
    def of_run(cls, parts: Sequence[tuple[tuple[Task, ...], int | None]], **contents: Any) -> Self:
        """The last plan of a run that follows several, in order: their tasks and iterations. `contents`: other fields, of all together.

        Every plan has the values that live as long as the job, and of the others those that its tasks use.
        """
        *before, (tasks, iterations) = parts
        last = cls(tasks=tasks, iterations=iterations, **contents)
        if not before:
            return last
        earlier = tuple(last._part(tasks, iterations) for tasks, iterations in before)
        kept = last._part(tasks, iterations).values.keys() | {operand.value for operand in last.gradients.values()}
        gone = {name for own in earlier for name in own.values} - kept
        values = {name: value for name, value in last.values.items() if name not in gone}
        held, free = ({value.storage for value in own} for own in (values.values(), (last.values[name] for name in gone)))
        return replace(
            last,
            values=values,
            storages={name: storage for name, storage in last.storages.items() if name in held or name not in free},
            losses=tuple(name for name in last.losses if name not in gone),
            earlier=earlier,
        )

    def _part(self, tasks: tuple[Task, ...], iterations: int | None) -> Self:
        used = {operand.value for task in tasks for operand in (*task.inputs, *task.writes)}
        values = {name: value for name, value in self.values.items() if name in used or value.kind in CARRIED_KINDS}
        storages = {value.storage for value in values.values()}
        return replace(
            self,
            tasks=tasks,
            values=values,
            storages={name: storage for name, storage in self.storages.items() if name in storages},
            losses=tuple(name for name in self.losses if name in values),
            gradients={name: operand for name, operand in self.gradients.items() if operand.value in values},
            iterations=iterations,
        )

    @property
    def sequence(self) -> tuple[Self, ...]:
        """The plans that a run follows, in order, each without earlier ones. Most runs follow one plan: this one."""
        return (*self.earlier, self._alone) if self.earlier else (self,)  # a plan that cached itself would never be freed

    @cached_property
    def _alone(self) -> Self:
        return replace(self, earlier=())

    @property
    def together(self) -> Self:
        """The plan with the values, storages and losses of all plans that the run follows."""
        if not self.earlier:
            return self
        values = {name: value for own in self.sequence for name, value in own.values.items()}
        storages = {name: storage for own in self.sequence for name, storage in own.storages.items()}
        losses = tuple(dict.fromkeys(name for own in self.sequence for name in own.losses))
        return replace(self, values=values, storages=storages, losses=losses)

    def each(self, change: Callable[[Self], Self]) -> Self:
        """The plan with each plan of its `sequence` changed."""
        *earlier, last = map(change, self.sequence)
        return replace(last, earlier=tuple(earlier))

    def lasting(self, *iterations: int) -> Self:
        """The same plans, each followed for another number of iterations."""
        numbers = iter(iterations)
        return self.each(lambda own: replace(own, iterations=next(numbers)))

    def derived(self, make: "Callable[..., T]", *arguments: object) -> T:
        """Return `make(self, *arguments)`, which is computed once and cached as long as the plan exists.

        For results that depend only on the plan and hashable arguments, so that they need not be derived again for a machine with other
        figures. Callers must not change the result.
        """
        key = (make, *arguments)
        if key not in self._derived:
            self._derived[key] = make(self, *arguments)
        return self._derived[key]

    @cached_property
    def _derived(self) -> dict[tuple, Any]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Only the fields, for other processes, which derive what they need."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def body_keys(self) -> tuple[str, ...]:
        """Per task, the body's part of its cost key."""
        lists = {id(task.body): task for task in self.tasks if task.body.inner_ops}  # of each list of ops, which tasks may share, one
        known = {number: task.body.key(task) for number, task in lists.items()}
        return tuple(known.get(id(task.body)) or task.body.key(task) for task in self.tasks)

    @cached_property
    def every_task(self) -> tuple[Task, ...]:
        """The tasks of all plans that a run follows, those of one plan after those of another."""
        return tuple(task for own in self.sequence for task in own.tasks) if self.earlier else self.tasks

    def require_whole(self) -> None:
        """Raise SchedcastError if the plan omits microbatches."""
        if self.repeat is not None:
            raise SchedcastError(f"{self.strategy}: {self.repeat.words}, to be predicted; plan it with fold=off, or for a run", Code.PLAN)

    def require_runnable(self) -> None:
        """Raise SchedcastError if the plan omits microbatches or devices, so that it can only be predicted."""
        self.require_whole()
        if self.classes:
            device, members = self.classes[0].device, len(self.classes[0].members)
            raise SchedcastError(
                f"{self.strategy}: {device} is in the plan for {members} devices that do the same, to be predicted; plan it with fold=off",
                Code.PLAN,
            )

    def require_alone(self) -> None:
        """Raise ValueError if the plan is the last of several that a run follows."""
        if self.earlier:
            raise ValueError(f"a run follows {len(self.earlier)} plans before that of {self.strategy!r}; take each of its `sequence`")

    def check_graph(self) -> None:
        """Raise SchedcastError if the host waits for one of the tasks: the launch of a graph issues everything at once."""
        awaited = next((task for task in self.tasks if task.body.blocks_host), None)
        if awaited is not None:
            raise SchedcastError(
                f"{self.strategy}: the host waits for {awaited.name}, which a CUDA graph cannot; use --mode eager", Code.PLAN
            )

    @cached_property
    def microbatches(self) -> int:
        """The microbatches into which a step divides the batch. Shards of one microbatch have one loss each."""
        losses = set(self.losses)
        numbers = {task.microbatch for task in self.tasks if any(operand.value in losses for operand in task.writes)}
        return len(numbers) or len(losses)

    @cached_property
    def runs(self) -> tuple[float, ...]:
        """Per task, how many tasks of a step it represents, itself included: those of omitted microbatches count."""
        more = dict.fromkeys(self.repeat.tasks, float(self.repeat.times)) if self.repeat is not None else {}
        return tuple(1.0 + more.get(task.name, 0.0) for task in self.tasks)

    @cached_property
    def gradient_sources(self) -> dict[str, Operand]:
        """By name in `gradients`, the parameter of the job that it is the gradient of, or the piece of that parameter (`plan.tensors`).

        A name that is not a value of the plan, or a value without a source, means a whole parameter of the job.
        """
        values = {name: self.values.get(name) for name in self.gradients}
        return {
            name: Operand(name, operand.shape, operand.strides, operand.dtype) if value is None or value.source is None else value.source
            for (name, operand), value in zip(self.gradients.items(), values.values(), strict=True)
        }

    @cached_property
    def largest_lag(self) -> int:
        """The largest lag of `tasks`: how many more periods than iterations a run has."""
        return max((task.lag for task in self.tasks), default=0)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Devices in order of first use."""
        return tuple(dict.fromkeys(task.device for task in self.every_task))

    @cached_property
    def members(self) -> dict[str, tuple[str, ...]]:
        """By device of the plan, the devices that do the same: itself, and those of its class that the plan omits."""
        return {device: (device,) for device in self.devices} | {each.device: each.members for each in self.classes}

    def counterparts(self, source: str, target: str) -> tuple[tuple[str, str], ...]:
        """The ends of the copies that a copy between these places represents, itself first. Each member of a class has its own."""
        return tuple(zip(self.members.get(source, (source,)), self.members.get(target, (target,)), strict=False))

    @cached_property
    def carried(self) -> frozenset[str]:
        """Storages with one buffer for the whole job; all others have a fresh instance per iteration.

        These are parameters, optimizer state, buffers, and storages that an iteration reads before it writes them, except inputs, which are
        fed.
        """
        carried = {value.storage for value in self.values.values() if value.kind in CARRIED_KINDS}
        fed = {value.storage for value in self.values.values() if value.kind == INPUT}
        written: set[str] = set()
        for task in sorted(self.tasks, key=lambda t: t.lag):  # the order in which an iteration runs them
            read = {self.values[o.value].storage for o in task.inputs}
            carried |= read - written - fed
            written |= {self.values[o.value].storage for o in task.writes}
        return frozenset(carried)

    @cached_property
    def instances(self) -> tuple[tuple[str, ...], ...]:
        """Per task, the per-iteration storages it accesses, each once, in the order of its operands.

        The last access of an input is also that of the omitted inputs that it represents (`Repeat.inputs`).
        """
        carried, values = self.carried, self.values
        accessed = [
            tuple(dict.fromkeys(name for o in (*task.inputs, *task.writes) if (name := values[o.value].storage) not in carried))
            for task in self.tasks
        ]
        stand_for = self.repeat.inputs if self.repeat is not None else {}
        last = {name: index for index, names in enumerate(accessed) for name in names if name in stand_for}
        for name, index in last.items():
            accessed[index] += stand_for[name]
        return tuple(accessed)

    def storage_of(self, operand: Operand) -> str:
        """The storage of an operand."""
        return self.values[operand.value].storage
