"""Data-parallel training with sharded parameters, gradients and optimizer state: ZeRO and PyTorch's FSDP2.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020): each device stores a part of the
optimizer state (stage 1), of the gradients (2) and of the parameters (3). Zhao et al., "PyTorch FSDP" (VLDB 2023): the parameters of a
unit, usually a transformer's block, are gathered while the previous block runs, and freed after use; in backward, they are gathered again,
and the gradients of a unit are summed and scattered as soon as they are complete. In DeePa's terms, every device is the parameter server of
its part. Devices may also divide the layers (`tp`) and the tokens (`cp`) of each microbatch, or experts (`ep`; `simulator.model.division`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.division import local
from simulator.model.division.divide import UNDIVIDED, Division
from simulator.model.division.experts import parameters_of_experts
from simulator.model.graph import TrainingGraph
from simulator.model.job import Job
from simulator.model.workloads.registry import language_model
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.plan.tensors import merged
from simulator.strategies.builder import kept_by
from simulator.strategies.compact import folds
from simulator.strategies.data_parallel import check_replicas, interleaved, replica_builders, whole_counts
from simulator.strategies.layout import Layout
from simulator.strategies.options import (
    Count,
    Fetch,
    Fold,
    Gradients,
    Least,
    Portion,
    SequenceParallel,
    Streams,
    TensorDegree,
    Update,
    Updating,
    option_values,
)
from simulator.strategies.turbodl import in_replicas
from simulator.strategies.zero.shards import Gathered, Shards, Sums
from simulator.strategies.zero.units import Units
from traces.errors import Code, SchedcastError
from traces.process import gc_paused

NAME = "fsdp"
FAMILY = "data-parallel"
ABOUT = "every device trains on its shard of the batch and holds a shard of the parameters, which are gathered where they are used"
LEAST_DEVICES = 2
FOR_LANGUAGE_MODELS = True

#: Streams of a device.
COMPUTE, GATHER, REDUCE, TENSOR, CONTEXT, EXPERTS = 0, 1, 2, 3, 4, 5
#: Streams of the collectives of devices that divide layers, tokens, or experts.
_STREAMS = {local.TENSOR: TENSOR, local.CONTEXT: CONTEXT, local.EXPERTS: EXPERTS}
#: A plan with more devices than this has one representative device.
MOST_DEVICES = 8
#: Tokens of a sequence from which on a search divides them.
_LONG = 16_384


@dataclass(frozen=True)
class Options(Updating):
    """What is sharded, and when parameters are gathered."""

    shard: Literal["0", "1", "2", "3"] = "3"
    """The stage of ZeRO: 0 shards nothing, 1 optimizer state, 2 gradients as well, 3 parameters as well."""
    hybrid: Annotated[int, Least(0)] = 0
    """Shard over groups of this many consecutive devices, with a copy in each group (HSDP); 0: over all devices."""
    tp: TensorDegree = 1
    sp: SequenceParallel = True
    cp: Count = 1
    """The number of consecutive devices, or groups of tp devices, that divide the tokens of each sequence (context parallelism); 1: none.
    """
    ep: Count = 1
    """The number of consecutive devices that divide the experts, to which they send their tokens (expert parallelism, predicted only); 1:
    none."""
    prefetch: Annotated[int, Least(0)] = 1
    """How many units are gathered ahead of the running one."""
    reshard: bool = True
    """Free a unit's gathered parameters after forward, and gather them again for backward; off: keep them. Stages 1 and 2 keep them."""
    fetch: Fetch = True
    fold: Fold = "auto"
    """More than 8 devices are enough for one to be planned."""
    update: Update = "baseline"
    """With fusion, each unit's shards together: before they are gathered, or once their gradients are scattered."""
    streams: Streams = "one"
    """Gathers and sums of gradients have the highest priority, before the critical path."""
    gradients: Gradients = "freed"
    """With stage 1, held gradients are summed whole after the last backward, and all parameters are gathered together."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """The training step of every device on its part of the batch.

    Raises SchedcastError if the machine has too few devices, or if the batch does not divide among them, or the devices into groups.
    """
    count, divided = len(machine.devices), division(options)
    if count % divided.devices:
        words = " x ".join(f"{name}={n}" for name, n in (("tp", options.tp), ("cp", options.cp)) if n > 1)
        raise SchedcastError(f"strategy {NAME}: {words} does not divide {count} devices; choose one of {_divisors(count)}")
    devices = check_replicas(NAME, job, machine, LEAST_DEVICES, divided.devices)
    if job.scales_loss:
        raise SchedcastError(f"{NAME} cannot {job.needs_all_gradients}; use --precision amp", Code.MODEL)
    copies = count // options.tp
    size = 1 if options.shard == "0" else options.hybrid or copies
    if copies % size:
        raise SchedcastError(f"strategy {NAME}: hybrid={size} does not divide {copies} replicas; choose one of {_divisors(copies)}")
    among = count if size == 1 else size  # devices with the same experts are among those that shard the rest together
    if among % options.ep:
        raise SchedcastError(f"strategy {NAME}: ep={options.ep} does not divide {among} devices; choose one of {_divisors(among)}")
    with gc_paused():
        priority = 1 - machine.priority_levels
        layout = Layout(machine, devices, divided, size, folds(options.fold, job, machine, MOST_DEVICES, divided.devices), priority)
        return ShardedReplicas(job, machine, layout, options).plan()


def _divisors(count: int) -> str:
    return ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)


def candidates(job: Job, machine: Machine) -> list[str]:
    """Option texts that a search tries: what is sharded over which groups, for each useful time to gather; and divided layers.

    Of language models also divided tokens, if sequences are long or fewer than devices, and divided experts.
    """
    count, node = len(machine.devices), machine.node_size
    sizes = [0, *(size for size in (node, 2 * node, 4 * node) if LEAST_DEVICES <= size < count and count % size == 0)]
    model = language_model(job.model)
    degrees = [degree for degree in (2, 4, 8) if model and node % degree == 0]
    tokens = [degree for degree in degrees if (job.image_size or 0) >= _LONG or job.batch < count]
    return [
        *(
            (f"hybrid={size}," if size else "") + how
            for how in ("prefetch=1", "prefetch=2", "reshard=off", "shard=1", "prefetch=0", "update=backward-fusion")
            for size in sizes
        ),
        *(f"tp={degree}{how}" for degree in degrees for how in ("", ",shard=1")),
        *(f"{how}cp={degree}" for degree in tokens for how in ("", "tp=2,", "tp=4,")),
        *(f"ep={degree}" for degree in degrees if model and model.experts),
    ]


def division(options: Options) -> Division:
    """How the microbatches and the layers of a replica are divided."""
    own = Division(options.tp, sequence=options.sp, context=options.cp, experts=options.ep)
    return own if own.devices * own.experts > 1 else UNDIVIDED


def portion(job: Job, machine: Machine, options: Options) -> Portion | None:
    """Every device runs all ops of its microbatches, and stores its share of its layers' parameters, or its experts."""
    divided = division(options)
    replicas, rest = divmod(len(machine.devices), divided.devices)
    held = 1.0 / options.ep if options.shard == "0" else 1.0 / (options.hybrid or len(machine.devices) // options.tp)
    if rest:
        return None
    gathers = held < 1.0 and options.ep == 1 and not _reshards(options)
    return Portion(replicas, job.accumulate, held, divided, gathers=gathers, sums=options.shard in ("0", "1"))


def _reshards(options: Options) -> bool:
    return options.reshard and options.shard == "3"


class ShardedReplicas:
    """The builders of all devices, or of the first as representative, and what they run."""

    def __init__(self, job: Job, machine: Machine, layout: Layout, options: Options):
        self.job, self.machine, self.options, self.layout = job, machine, options, layout
        whole = options.gradients == "held" and layout.size > 1  # parameters are gathered, and gradients summed, all at once
        kept = kept_by(options.gradients, layout.replicas, sharded=layout.size > 1)
        parts, fold, first = job.accumulate * layout.replicas, options.fold, 1
        if options.shard not in ("0", "1"):  # sums are added to those of the first microbatch, and gathers go on into the next one
            units = Units(NAME, job.graph(job.batch // parts, parts)).weights
            fold, first = fold if len(units) > options.prefetch + 1 else "off", 2
        self.builders = replica_builders(job, layout, kept, fold, first)
        if options.update == "backward-fusion":
            self.builders[0].refuse_clipping(f"{NAME} with update=backward-fusion", "update=forward-fusion")
        self.graph = self.builders[0].graph
        #: By device and op of the first device's graph, that op in its own: those that divide tokens lack some.
        self._same = [_same_ops(self.graph, builder.graph) for builder in self.builders]
        experts = frozenset(parameters_of_experts(self.graph)) if options.ep > 1 else frozenset[str]()
        self.units = Units(NAME, self.graph, apart=experts, whole=whole)
        sums: Sums = "flat" if options.shard != "1" else "whole" if whole else "in place"
        self.shards = Shards(
            job,
            machine,
            self.builders,
            layout=layout,
            units=self.units,
            first_device=layout.names[0],
            streams=(COMPUTE, GATHER, REDUCE),
            sums=sums,
            changed=(options.update, options.streams) != ("baseline", "one"),
        )

    def plan(self) -> Plan:
        """The finished plan."""
        tasks = [*whole_counts(self.layout.across(REDUCE), self.builders), *self._passes()]
        if self.options.gradients != "freed":
            tasks = [*(builder.zero_gradients() for builder in self.builders), *tasks]
        if self.job.clip_norm is not None:
            tasks += [replace(task, lag=self.options.lag) for task in self.shards.clip(self.job.clip_norm)]
        tensors = [builder.tensors for builder in self.builders]
        turbodl = self.options.streams == "turbodl"
        tasks = self.shards.pieces.with_updates(tasks, self.options, REDUCE, GATHER, tensors, self.units.unit_of, by_unit=turbodl)
        if turbodl:
            tasks = in_replicas(self.builders, tasks, self.machine.priority_levels, self.units.parameters)
        fetches = [builder.fetches(self.machine) for builder in self.builders] if self.options.fetch else []
        for builder in self.builders:
            builder.carry_unused(frozenset(self.graph.parameters))
        merged_tensors = merged([*tensors, self.shards.tensors])
        notes: dict[str, object] = {"staleness": self.options.lag, "replicas": self.layout.replicas, "shards": self.layout.size}
        if self.layout.division is not UNDIVIDED:
            notes["divided"] = self._division()
        plan = Plan(
            strategy=NAME,
            tasks=(*interleaved(fetches), *tasks),
            values=merged_tensors.values,
            storages=merged_tensors.storages,
            losses=tuple(name for builder in self.builders for name in builder.losses),
            gradients=self.shards.pieces.gradients,
            options=option_values(self.options),
            semantics=notes | self.builders[0].graph_notes(several=True) | self.layout.semantics | self.options.notes,
            classes=self.layout.classes,
        )
        return self.builders[0].with_omitted(plan)

    def _division(self) -> str:
        """How layers are divided, and which kinds of ops with products every device runs on whole tensors because they cannot be
        divided."""
        flops = {op.name: op.body.flops for op in self.job.graph(self.graph.batch, self.layout.replicas * self.job.accumulate).ops}
        words, divides = self.layout.division.words, self.layout.division.devices > 1
        whole = {op.body.target.split(".")[1] for op in self.graph.ops if divides and op.body.flops == flops.get(op.name, 0.0) > 0}
        words += ["between products by tokens"] if self.options.sp and self.layout.division.degree > 1 else []
        return ", and ".join(words) + (f"; each of them runs all of some {', '.join(sorted(whole))}" if whole else "")

    # --- forward and backward

    def _sharded(self, parameter: str) -> bool:
        return self.shards.is_sharded(self.units.unit(parameter))

    @property
    def _accumulates(self) -> bool:
        """Whether a device adds up its own gradients of all microbatches before they are summed over devices."""
        return self.layout.size == 1 or self.options.shard == "1"

    def _passes(self) -> list[Task]:
        """Forward and backward of all microbatches, with what is gathered and summed.

        If gradients are summed for each microbatch, a device continues after a unit only when the sum of the previous unit has ended, as in
        FSDP2. Otherwise, the gradients of all units would be allocated: they belong to the compute stream, and the stream of sums reads
        them.
        """
        count, own = len(self.graph.ops), len(self.builders[0].microbatches)
        spans = [span for span in self.units.spans(own, _reshards(self.options)) if self.shards.is_sharded(span.unit)]
        summed = [name for name in self.graph.parameters if self._sharded(name) and not self._accumulates]
        issued: dict[int, list[int]] = {}  # by position, the spans whose parameters are gathered before it
        for number in range(len(spans)):
            before = number - self.options.prefetch
            issued.setdefault(spans[before].first if before >= 0 else 0, []).append(number)
        begins: dict[int, list[int]] = {}
        for number, span in enumerate(spans):
            begins.setdefault(span.first, []).append(number)
        tasks: list[Task] = []
        gathered: dict[int, Gathered] = {}
        instead = [{name: operand for name, operand in held.items() if not self._sharded(name)} for held in self.shards.held]
        latest: list[tuple[str, ...]] = [()] * len(self.builders)
        last_sum: list[Task] = []  # what sums the gradients of the last unit
        awaited: list[tuple[str, ...]] = [()] * len(self.builders)  # the names of what summed those of the unit before
        for position in range(own * count):
            m, index = divmod(position, count)
            if m and not index and summed:  # each microbatch has separate gradients, which are summed in shards
                for builder in self.builders:
                    builder.first_of = dict.fromkeys(summed, builder.microbatches[m])
            for number in issued.get(position, ()):
                made, gathered[number] = self.shards.gather(spans[number], f"gather {number}", latest)
                tasks += made
            for number in begins.get(position, ()):
                made, operands = self.shards.unpack(spans[number], f"gather {number}", gathered.pop(number))
                tasks += made
                for current, own_operands in zip(instead, operands, strict=True):
                    current |= own_operands
            if index not in self.units.casts or not self._sharded(self.units.casts[index]):
                lists = [
                    builder.ops(same[index], builder.microbatches[m], COMPUTE, current)
                    for builder, same, current in zip(self.builders, self._same, instead, strict=True)
                ]
                if (target := self.graph.ops[index].body.target) in local.COLLECTIVES:
                    tasks += self._together(target.rpartition(".")[2], [first for first, *_ in lists])
                    lists = [own for _, *own in lists]
                lists = [_after(own_tasks, names) for own_tasks, names in zip(lists, awaited, strict=True)]
                awaited = [() if own_tasks else names for own_tasks, names in zip(lists, awaited, strict=True)]
                tasks += interleaved(lists)
                latest = [(own_tasks[-1].name,) if own_tasks else before for own_tasks, before in zip(lists, latest, strict=True)]
            if index == count - 1:
                tasks += interleaved([builder.additions() for builder in self.builders])
            for unit in self.units.completed.get(index, ()):
                if self.shards.is_sharded(unit) and (m == own - 1 or not self._accumulates):
                    if not self._accumulates:
                        names = [_names_on(device, last_sum) for device in self.layout.devices]
                        awaited = [before + new for before, new in zip(awaited, names, strict=True)]
                    last_sum = self.shards.reduce(unit, m, m == own - 1)
                    tasks += last_sum
                elif m == own - 1:
                    tasks += self.shards.reduce_whole(unit)
        return tasks

    def _together(self, what: str, ops: Sequence[Task]) -> list[Task]:
        """The tasks of a collective of the devices that divide layers, tokens or experts, from how it is in each device's graph."""
        groups = self.layout.dividing(what, _STREAMS[what])
        return [task for group, numbers in groups for task in group.together(self.shards.tensors, [ops[at] for at in numbers])]


def _after(tasks: list[Task], names: tuple[str, ...]) -> list[Task]:
    """Tasks, of which the first comes after those of these names."""
    return [replace(task, after=(*task.after, *names)) for task in tasks[:1]] + tasks[1:]


def _names_on(device: str, tasks: Sequence[Task]) -> tuple[str, ...]:
    """The names of those tasks that a device runs, or takes part in."""
    return tuple(task.name for task in tasks if device == task.device or device in getattr(task.body, "devices", ()))


def _same_ops(first: TrainingGraph, own: TrainingGraph) -> list[list[int]]:
    """By op of the first device's graph, the op of that name in the graph of another, if it has one."""
    numbers = {op.name: [index] for index, op in enumerate(own.ops)}
    return [numbers.get(op.name, []) for op in first.ops]
