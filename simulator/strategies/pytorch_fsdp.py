"""PyTorch's FSDP2 around the user's own loop: `fully_shard` of each block, and of the whole model, with its defaults.

As torch.distributed.fsdp does it in PyTorch 2.13. A hook before a block's forward gathers its parameters and copies them out of the
gathered tensor; a hook after it frees them. Before a block's backward they are gathered again, and those of the block before it ahead of
their use; after it the gradients are copied into one tensor, which is summed and scattered. Parameters outside of blocks belong to the
model, which is gathered at the start of forward and stays gathered until the end of backward. A gather in forward starts when the host
reaches its block, and the copy of the last block but one has ended. The hooks are Python code on the host. The optimizer works on DTensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.bodies.copy import KERNEL, Copy
from simulator.plan.bodies.host import HookName
from simulator.plan.plan import Plan
from simulator.plan.task import BACKWARD, COLLECTIVE, Operand, Task
from simulator.plan.tensors import merged
from simulator.strategies.data_parallel import interleaved, whole_counts
from simulator.strategies.layout import Layout
from simulator.strategies.options import option_values
from simulator.strategies.pytorch import called_once, with_views
from simulator.strategies.pytorch_ddp import hook, layout_of, own_builders
from simulator.strategies.zero.shards import Gathered, Shards
from simulator.strategies.zero.units import ROOT, Span, Units, unit_of
from traces.documents.comparison import PYTORCH_FSDP
from traces.errors import Code, SchedcastError
from traces.process import gc_paused

NAME = PYTORCH_FSDP
FAMILY = "data-parallel"
ABOUT = "PyTorch's FSDP2 (fully_shard of each block and of the model) around your own loop, a process on each device; predicted only"
LEAST_DEVICES = 2
EXECUTED = False

#: The host time of an optimizer's form for DTensors.
_UPDATES: Mapping[str, HookName] = MappingProxyType({
    "for": "dtensor update for", "foreach": "dtensor update foreach", "fused": "dtensor update fused",
})  # fmt: skip
#: Streams of a device.
COMPUTE, GATHER, REDUCE = 0, 1, 2


@dataclass(frozen=True)
class Options:
    """No options."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """The step of every device on its part of the batch, on `Machine.for_parallel_loops`.

    Raises SchedcastError for what plain PyTorch is not predicted for, for a gradient scaler, for devices that are no processes, and if
    there are too few or the batch does not divide among them.
    """
    layout = layout_of(NAME, job, machine)
    if job.scales_loss:
        raise SchedcastError(f"{NAME} cannot {job.needs_all_gradients}; use --precision amp", Code.MODEL)
    with gc_paused():
        priority = 1 - machine.priority_levels if layout.folded else 0
        return _Loop(job, machine, replace(layout, size=layout.copies, priority=priority)).plan(options)


class _Loop:
    """The loop of all devices, or of the first as representative."""

    def __init__(self, job: Job, machine: Machine, layout: Layout):
        self.job, self.layout, self.builders = job, layout, own_builders(job, layout, first=2)
        self.graph = self.builders[0].graph
        self.units = Units(NAME, self.graph, rest=ROOT)
        #: A CPU has no streams: the thread that computes waits for each collective.
        streams = (COMPUTE, GATHER, REDUCE) if machine.devices[0].kind == "gpu" else (COMPUTE,) * 3
        self.shards = Shards(job, machine, self.builders, layout=layout, units=self.units, first_device=layout.names[0], streams=streams)
        self._tasks = whole_counts(layout.across(streams[2]), self.builders)
        self._gathered: dict[str, Gathered] = {}  # by unit, what was gathered and not copied out
        self._read: list[dict[str, Operand]] = [{} for _ in self.builders]  # by device, what ops read in place of values of the graph
        self._copied: list[str] = []  # the names of what copied units out on the first device, in order

    def plan(self, options: Options) -> Plan:
        """The finished plan."""
        for m in range(len(self.builders[0].microbatches)):
            self._pass(m)
        if self.job.clip_norm is not None:
            self._tasks += self.shards.clip(self.job.clip_norm)
        self._hooks(_UPDATES[self.job.form], "optimizer", len(self.graph.parameters))
        self._tasks += called_once(self.shards.pieces.updates())
        for build in self.builders:
            build.carry_unused(frozenset(self.graph.parameters))
        tensors = merged([*(build.tensors for build in self.builders), self.shards.tensors])
        notes: dict[str, object] = {"staleness": 0, "replicas": self.layout.replicas, "shards": self.layout.size}
        plan = Plan(
            strategy=NAME,
            tasks=tuple(self._tasks),
            values=tensors.values,
            storages=tensors.storages,
            losses=tuple(name for build in self.builders for name in build.losses),
            gradients=self.shards.pieces.gradients,
            options=option_values(options),
            semantics=notes | self.builders[0].graph_notes(several=True) | self.layout.semantics,
            classes=self.layout.classes,
        )
        return self.builders[0].with_omitted(plan)

    def _pass(self, m: int) -> None:
        """Forward and backward of a microbatch, each of which gathers all units and sums their gradients."""
        for build in self.builders:
            if m:  # each microbatch has separate gradients, which are summed in shards
                build.first_of = dict.fromkeys(self.graph.parameters, build.microbatches[m])
        begins, ends = self._blocks
        backward = [unit for _, (unit, phase) in sorted(begins.items()) if phase]
        summed: tuple[str, ...] = ()
        self._hooks("fsdp forward", ROOT)
        if ROOT in self.units.parameters:
            self._hooks("fsdp pre-forward", ROOT)
            self._gather(ROOT, f"gather {m}", ())
            self._copy_out(ROOT, f"gather {m}")
        for position in range(len(self.graph.ops)):
            unit, phase = begins.get(position, ("", 0))
            if unit:
                self._hooks("fsdp pre-backward" if phase else "fsdp pre-forward", unit)
                name = f"gather {m}{' again' * phase}"
                if unit not in self._gathered:
                    self._gather(unit, name, tuple(self._copied[-1:]) if phase else tuple(self._copied[-2:-1]))
                self._copy_out(unit, name)
                for following in backward[backward.index(unit) + 1 :][:1] if phase else ():
                    self._gather(following, name, tuple(self._copied[-1:]))
            self._run(position, m)
            for unit, phase in ends.get(position, ()):
                self._hooks("fsdp post-backward" if phase else "fsdp post-forward", unit)
                if phase:
                    summed = self._reduce(unit, m, summed)
        self._hooks("fsdp end", ROOT)

    @cached_property
    def _blocks(self) -> tuple[dict[int, tuple[str, int]], dict[int, list[tuple[str, int]]]]:
        """The first op of each block's forward (0) and backward (1), and the last ones, by their positions.

        A block's backward ends when its gradients are complete, and that of the model with the last op: its inputs have no gradients.
        """
        at: dict[tuple[str, int], list[int]] = {}
        for position, op in enumerate(self.graph.ops):
            unit = unit_of(op.layer, ROOT)
            if unit in self.units.parameters and unit != ROOT:
                at.setdefault((unit, int(op.phase == BACKWARD)), []).append(position)
        for position, units in self.units.completed.items():
            for unit in units:
                at.setdefault((unit, 1), []).append(position if unit != ROOT else len(self.graph.ops) - 1)
        begins = {min(positions): key for key, positions in at.items() if key[0] != ROOT}
        ends: dict[int, list[tuple[str, int]]] = {}
        for key, positions in at.items():
            ends.setdefault(max(positions), []).append(key)
        return begins, ends

    def _hooks(self, name: HookName, unit: str, parameters: int | None = None) -> None:
        """Add a hook of a unit on every device. `parameters`: how many it works on (default: the unit's)."""
        count = len(self.units.parameters.get(unit, ())) if parameters is None else parameters
        self._tasks += [hook(name, f"{unit}/{len(self._tasks)}", build.device, count, unit) for build in self.builders]

    def _gather(self, unit: str, name: str, after: tuple[str, ...]) -> None:
        """Gather a unit after these tasks of the first device; each has a counterpart on the others."""
        waits = [tuple(self._on(device, each) for each in after) for device in self.layout.devices]
        tasks, self._gathered[unit] = self.shards.gather(Span(unit, 0, 0, False), name, waits)
        self._tasks += tasks

    def _copy_out(self, unit: str, name: str) -> None:
        """Copy a unit's gathered parameters to separate memory, by one kernel (split_with_sizes_copy)."""
        tasks, read = self.shards.unpack(Span(unit, 0, 0, False), name, self._gathered.pop(unit))
        self._tasks += [_in_one_kernel(task) for task in tasks]
        self._copied += [task.name for task in tasks if task.device == self.layout.devices[0]][-1:]
        for current, own in zip(self._read, read, strict=True):
            current |= own

    def _on(self, device: str, name: str) -> str:
        """The name that a task of the first device has on another one."""
        return name.removesuffix(f"@{self.layout.devices[0]}") + f"@{device}"

    def _run(self, position: int, m: int) -> None:
        if position not in self.units.casts:
            self._tasks += interleaved(
                with_views(build.ops([position], build.microbatches[m], COMPUTE, own), build)
                for build, own in zip(self.builders, self._read, strict=True)
            )

    def _reduce(self, unit: str, m: int, before: tuple[str, ...]) -> tuple[str, ...]:
        """Sum and scatter a unit's gradients. What computes copies them into one tensor, once the sum `before` has ended.

        Returns the names of the sum.
        """
        last = m == len(self.builders[0].microbatches) - 1
        names = []
        for task in self.shards.reduce(unit, m, last):
            if task.body.kind == "collective":
                names.append(task.name)
            elif task.phase == COLLECTIVE:
                task = replace(task, stream=COMPUTE, priority=0, after=(*task.after, *before))
            self._tasks.append(task)
        return tuple(names)


def _in_one_kernel(task: Task) -> Task:
    """A list of copies as one kernel that makes them all."""
    if task.body.kind != "ops":
        return task
    return replace(task, body=Copy(task.device, task.device, means=KERNEL), reads=tuple(step.reads[0] for step in task.body.steps))
