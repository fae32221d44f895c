"""Data parallelism: every device trains on its shard of the batch, and gradients are summed over the devices.

This is the scheme of PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020): gradients are grouped into buckets in
the order in which backward completes them, and each bucket is reduced while backward continues. Each device updates its own copy of the
parameters. DeePa calls this image parallelism. Batch-norm uses separate statistics on every device.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Literal

from simulator.engine.collectives.rounds import ALGORITHM_OF
from simulator.engine.collectives.tasks import URGENCIES, Group, priority_of, urgencies
from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import HOST, Machine
from simulator.model.job import Job
from simulator.plan.fusion import delayed, insert
from simulator.plan.plan import Plan
from simulator.plan.task import Operand, Task
from simulator.plan.tensors import merged
from simulator.strategies.builder import Kept, PlanBuilder, Share, kept_by
from simulator.strategies.compact import folds, omitted
from simulator.strategies.layout import Layout
from simulator.strategies.options import Fetch, Fold, Gradients, Overlap, Portion, Streams, Update, Updating, Urgent
from simulator.strategies.turbodl import in_replicas
from traces.errors import Code, SchedcastError
from traces.process import gc_paused

NAME = "data-parallel"
#: Its name in DeePa, and here until November 2026.
ABOUT = "every device trains on its shard of the batch, and gradients are summed over all devices"
LEAST_DEVICES = 2
#: With every rule of updates (such as backward-fusion): the sizes of buckets, transfers in the order of need, and another server.
CANDIDATES = tuple(
    f"update={update}{more}"
    for update in ("baseline", "forward-fusion", "backward-fusion", "asynchronous")
    for more in (
        *(f",bucket={size}{first}" for size in (25, 1, 5, 100) for first in ("", ",priorities=on")),
        ",server=distributed", ",algorithm=tree",
    )
)  # fmt: skip

#: Streams of a device. Transfers use one stream per urgency, starting at TRANSFERS.
COMPUTE, TRANSFERS = 0, 1


@dataclass(frozen=True)
class Options(Updating):
    """How gradients are reduced, and when parameters are updated."""

    update: Update = "baseline"
    overlap: Overlap = True
    bucket: float = 25.0
    """Size of a gradient bucket in MB; 0: each gradient is reduced separately."""
    server: Literal["all-reduce", "distributed", "host", "first"] = "all-reduce"
    """Who sums: all devices together; each device as the parameter server of its chunk; the host (not for partitions of one GPU); or first.

    first: the first device sums all gradients and sends the sum back, as torch.nn.DataParallel's reduce and broadcast do.
    """
    algorithm: Literal["ring", "tree"] = "ring"
    """Algorithm of the all-reduce."""
    priorities: Urgent = False
    streams: Streams = "one"
    fetch: Fetch = True
    fold: Fold = "auto"
    gradients: Gradients = "freed"
    """Held gradients of the last backward are added from buckets."""

    def __post_init__(self):
        """Raise SchedcastError if the bucket size is negative or infinite."""
        if not 0 <= self.bucket < float("inf"):
            raise SchedcastError(f"strategy {NAME}: bucket is {self.bucket} MB; expected a number of at least 0")

    @property
    def aside(self) -> bool:
        """Whether gradients are reduced in separate lanes, concurrently with computation."""
        return self.overlap or bool(self.lag)


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """One replica of the training step per device; the issue order takes one task of each device in turn.

    Raises SchedcastError if the machine has too few devices, if the batch does not divide among them, or if the host cannot sum.
    """
    devices = check_replicas(NAME, job, machine, LEAST_DEVICES)
    if options.server == "host" and not machine.library and any(device.kind == "gpu" for device in machine.devices):
        raise SchedcastError(
            f"{NAME}:server=host needs a collective library between GPUs, and partitions of one GPU have none: no GPU kernel can add in"
            " host memory; use server=distributed, which sums on the devices",
            Code.DEVICES,
        )
    if options.lag and job.scales_loss:
        raise SchedcastError(
            f"{NAME} with update=asynchronous cannot {job.needs_all_gradients}: a gradient is unscaled a step late, when the scale may have"
            " changed; use update=baseline, or --precision amp",
            Code.MODEL,
        )
    layout = Layout(machine, devices, folded=folds(options.fold, job, machine))
    replicas = Replicas(job, layout, options)
    notes: dict[str, object] = {"replicas": layout.replicas, "staleness": options.lag} | layout.semantics | options.notes
    first, *others = replicas.builders
    with gc_paused():
        return first.plan(NAME, replicas.tasks(), options, notes, others, classes=layout.classes)


def portion(job: Job, machine: Machine, options: Options) -> Portion:
    """Every device runs all ops of its microbatches, and stores all parameters and their optimizer state."""
    return Portion(len(machine.devices), job.accumulate, held=1.0, sums=True)


def replica_builders(job: Job, layout: Layout, kept: Kept = "freed", fold: str = "off", first: int = 1) -> list[PlanBuilder]:
    """A builder for each device that the plan has, of replicas that work on equally many microbatches.

    `kept`: as in `PlanBuilder`. `fold`, `first`: as in `compact.omitted`.
    """
    devices, division = layout.devices, layout.division
    parts, each = job.accumulate * layout.replicas, division.devices
    without = omitted(job, len(job.graph(job.batch // parts, parts).ops), fold, first) if len(devices) == 1 else 0
    own = job.accumulate - without
    return [
        PlanBuilder(
            job,
            device,
            share=Share(parts, range(i // each * own, (i // each + 1) * own), without),
            suffix=f"@{device}" if i else "",
            kept=kept,
            division=division if each == division.experts == 1 else division.of(i),
        )
        for i, device in enumerate(devices)
    ]


def interleaved(lists: Iterable[Sequence[Task]]) -> list[Task]:
    """The devices' lists of tasks, one task of each device in turn while it has any."""
    return [task for turn in zip_longest(*lists) for task in turn if task is not None]


def sum_counts(group: Group, builders: Sequence[PlanBuilder]) -> list[Task]:
    """The tasks that sum over the devices what counts in their parts of the batch (`PlanBuilder.counts`), for the builders of a group."""
    if not builders[0].graph.counts or len(group.devices) == 1:
        return []
    name = f"sum targets@{group.devices[0]}"
    at_host = builders[0].at_host(builders[0].counted, name) if group.root == HOST and not group.machine.library else ()
    return group.all_reduce(name, [builder.counted for builder in builders], at_host)


def whole_counts(groups: Iterable[tuple[Group, Sequence[int]]], builders: Sequence[PlanBuilder]) -> list[Task]:
    """The tasks that make the numbers that losses are divided by. `groups`: of devices of all replicas, with their builders' numbers."""
    own = [builder.counts() for builder in builders]
    sums = [task for group, numbers in groups for task in sum_counts(group, [builders[at] for at in numbers])]
    return [*interleaved(tasks[:1] for tasks in own), *sums, *interleaved(tasks[1:] for tasks in own)]


def check_replicas(strategy: str, job: Job, machine: Machine, least: int, per_replica: int = 1) -> tuple[str, ...]:
    """The machine's devices. Raises SchedcastError if there are too few, or if the batch does not divide among their replicas."""
    devices = tuple(device.name for device in machine.devices)
    if len(devices) < least:
        gpu = machine.devices[0].kind == "gpu"
        do = f"split the GPU with --partition {least}, or use a machine with several" if gpu else f"use --devices {least}"
        raise SchedcastError(f"{strategy} needs at least {least} devices, there is {len(devices)}; {do}", Code.DEVICES)
    replicas = len(devices) // per_replica
    if job.batch % (replicas * job.accumulate):
        shards = f"{replicas} {'devices' if per_replica == 1 else 'replicas'}"
        shards += f" x {job.accumulate} microbatches" if job.accumulate > 1 else ""
        raise SchedcastError(
            f"--batch {job.batch} does not divide into {shards}; choose a multiple of {replicas * job.accumulate}", Code.BATCH
        )
    return devices


@dataclass(frozen=True)
class _Bucket:
    """Gradients that are reduced together, named by their storages on the first device. They are complete after task `position`."""

    name: str
    position: int
    storages: tuple[str, ...]


class Replicas:
    """The builders of all devices, and the plan's tasks over all of them."""

    def __init__(self, job: Job, layout: Layout, options: Options):
        self.machine, self.options, self.layout = layout.machine, options, layout
        self.builders = replica_builders(job, layout, kept_by(options.gradients, layout.replicas, sharded=False), options.fold)

    @cached_property
    def _passes(self) -> list[list[Task]]:
        return [builder.passes() for builder in self.builders]

    @cached_property
    def _gradients(self) -> list[dict[str, Operand]]:
        """Per device, the gradients by their storage on the first device. Building the passes first gives the gradients their values."""
        return [self._gradients_of(builder) for builder, _ in zip(self.builders, self._passes, strict=True)]

    def tasks(self) -> list[Task]:
        """A period's tasks in issue order."""
        options, builders = self.options, self.builders
        if options.update == "backward-fusion":
            builders[0].refuse_clipping(f"{NAME} with update=backward-fusion", "update=forward-fusion")
        buckets = self._buckets()
        reduced = {bucket.name: self._reduced(bucket, urgency) for bucket, urgency in zip(buckets, self._urgencies(buckets), strict=True)}
        early = self._fused(buckets) if options.update == "backward-fusion" else {}
        order = [(1, task) for task in sum_counts(self._group(0), builders)]
        end = len(self._passes[0])
        for bucket in buckets:
            earliest = bucket.position + 1 if options.overlap else end
            order += [(earliest, task) for task in reduced[bucket.name]]
            order += [(max(earliest, ready + 1), task) for ready, task in early.get(bucket.name, ())]
        # a position counts the tasks of one device
        tasks = insert(interleaved(self._passes), [(position * len(self.builders), task) for position, task in order])
        if options.gradients != "freed":
            tasks = [*(builder.zero_gradients() for builder in builders), *tasks]
        if options.fetch:
            tasks = [*interleaved(builder.fetches(self.machine) for builder in builders), *tasks]
        tasks += interleaved(builder.finish_gradients(options.lag) for builder in builders)
        if options.update in ("baseline", "asynchronous"):
            tasks += interleaved(self._updates(builder) for builder in builders)
        elif options.update == "forward-fusion":
            updates = [update for builder in builders for update in builder.updates_of_layers(lag=1)]
            tasks = delayed(tasks, updates, merged(builder.tensors for builder in builders))
        return in_replicas(builders, tasks, self._levels, builders[0].layers) if options.streams == "turbodl" else tasks

    def _updates(self, builder: PlanBuilder) -> list[Task]:
        """A device's updates after backward; on TurboDL's streams one per layer, in the order of the next forward."""
        if self.options.streams == "one":
            return builder.updates(self.options.lag)
        layers = builder.first_use(self._passes[self.builders.index(builder)])
        return [builder.update(builder.layers[layer], f"{layer}/update", layer, self.options.lag) for layer in layers]

    def _buckets(self) -> list[_Bucket]:
        """Buckets of gradients in the order of completion. A bucket is closed once it has at least `bucket` MB."""
        first, bucket_bytes = self.builders[0], self.options.bucket * 1e6
        buckets: list[_Bucket] = []
        storages: list[str] = []
        size = 0
        complete = first.complete(self._passes[0])
        for number, (storage, position) in enumerate(complete.items()):
            storages.append(storage)
            size += self._gradients[0][storage].bytes
            if size >= bucket_bytes or number == len(complete) - 1:
                buckets.append(_Bucket(f"reduce {len(buckets)}", position, tuple(storages)))
                storages, size = [], 0
        return buckets

    def _urgencies(self, buckets: Sequence[_Bucket]) -> list[int]:
        """Urgency of each bucket, 0 the most urgent: by the first use of its parameters in the next forward (TurboDL's reuse distance)."""
        if not (self.options.priorities and self.options.aside):
            return [0] * len(buckets)
        first = self.builders[0]
        use = {layer: index for index, layer in enumerate(first.first_use(self._passes[0]))}
        layer_of = {first.storage(first.gradient(p).value): layer for layer, owned in first.layers.items() for p in owned}
        return urgencies([min(use[layer_of[storage]] for storage in bucket.storages) for bucket in buckets], self._levels)

    @property
    def _levels(self) -> int:
        """Priority levels that every device has."""
        return self.machine.priority_levels

    def _reduced(self, bucket: _Bucket, urgency: int) -> list[Task]:
        """The tasks that sum a bucket over the devices."""
        group = self._group(urgency)
        operands = [tuple(gradients[storage] for storage in bucket.storages) for gradients in self._gradients]
        at_host = self.builders[0].at_host(operands[0], bucket.name) if group.root == HOST and not self.machine.library else ()
        return group.all_reduce(bucket.name, operands, at_host)

    def _group(self, urgency: int) -> Group:
        """All devices, which sum."""
        options = self.options
        stream, priority = (TRANSFERS + urgency, priority_of(urgency, self._levels)) if options.aside else (COMPUTE, 0)
        algorithm = options.algorithm if options.server == "all-reduce" else ALGORITHM_OF[options.server]
        root = {"host": HOST, "first": self.layout.names[0]}.get(options.server, "")
        return self.layout.all(stream, algorithm, root, priority)

    def _gradients_of(self, builder: PlanBuilder) -> dict[str, Operand]:
        """The gradients of one device by their storage on the first device."""
        first, holders = self.builders[0], builder.tensors.holders(builder.device)
        return {
            first.storage(first.gradient(parameter).value): holders[builder.storage(builder.gradient(parameter).value)]
            for parameter in first.graph.parameters
        }

    def _fused(self, buckets: Sequence[_Bucket]) -> dict[str, list[tuple[int, Task]]]:
        """Bucket -> (position, update) pairs: the updates that follow its reduction, and the position of the task each must come after.

        With overlap, updates run on a separate stream.
        """
        first = self.builders[0]
        stream = TRANSFERS + URGENCIES if self.options.overlap else COMPUTE
        bucket_of = {storage: index for index, bucket in enumerate(buckets) for storage in bucket.storages}
        updates: dict[str, list[tuple[int, Task]]] = {}
        for layer, ready in first.ready(self._passes[0]).items():
            owned = first.layers[layer]
            last = max(bucket_of[first.storage(first.gradient(p).value)] for p in owned)
            following = next((i for i in range(last, len(buckets)) if buckets[i].position >= ready), len(buckets) - 1)
            updates.setdefault(buckets[following].name, []).extend(
                (ready, builder.update(owned, f"{layer}/update", layer, stream=stream)) for builder in self.builders
            )
        return updates
