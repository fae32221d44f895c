"""Data parallelism: every device trains on its part of the batch, and gradients are summed over the devices.

As PyTorch's DistributedDataParallel does it (Li et al., "PyTorch Distributed", VLDB 2020): gradients are put together in buckets in the
order in which backward completes them, and a bucket is reduced while backward goes on. Each device updates its own copy of the
parameters. DeePa calls it image parallelism. Batch-norm has its own statistics on every device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Literal

from simulator.build import PlanBuilder, insert
from simulator.collectives.rounds import DISTRIBUTED, SERVER
from simulator.collectives.tasks import Group
from simulator.machine.machine import HOST
from simulator.plan.plan import Plan
from simulator.plan.task import Operand, Task
from traces.errors import StepcastError
from traces.garbage import gc_paused

NAME = "image-parallel"
ABOUT = "data parallel: every device trains on its part of the batch, and gradients are summed over all devices"
LEAST_DEVICES = 2

#: Streams of a device. Transfers have several where they are urgent to different degrees.
COMPUTE, TRANSFERS = 0, 1
#: So many degrees of urgency, with a stream each.
DEGREES = 4


@dataclass(frozen=True)
class Options:
    """How gradients are reduced, and when parameters are updated."""

    update: Literal["baseline", "forward-fusion", "backward-fusion"] = "baseline"
    """When parameters are updated: after backward, before the next forward needs them, or as soon as their gradient is reduced."""
    overlap: bool = True
    """Reduce gradients while backward goes on; else after it."""
    bucket: float = 25.0
    """MB of gradients that are reduced together; 0: each gradient by itself."""
    server: Literal["all-reduce", "distributed", "host"] = "all-reduce"
    """Who sums: all devices together, each device a part as a parameter server, or the host (not for parts of one GPU)."""
    algorithm: Literal["ring", "tree"] = "ring"
    """How an all-reduce travels."""
    priorities: bool = False
    """Transfers overtake those of parameters that the next forward uses later."""
    fetch: bool = True
    """Copy each device's part of the batch from the host; else it is there."""

    def __post_init__(self):
        """Raise StepcastError for a bucket that cannot be."""
        if not 0 <= self.bucket < float("inf"):
            raise StepcastError(f"strategy {NAME}: bucket is {self.bucket} MB; expected a number of at least 0")


def plan(job, machine, costs, options: Options) -> Plan:
    """Replicas of the training step, one per device, in step with one another; issue order goes round the devices."""
    devices = tuple(device.name for device in machine.devices)
    if len(devices) < LEAST_DEVICES:
        raise StepcastError(f"{NAME} needs at least {LEAST_DEVICES} devices, there is {len(devices)}; use --devices {LEAST_DEVICES}")
    if job.batch % (len(devices) * job.accumulate):
        parts = f"{len(devices)} devices" + (f" x {job.accumulate} micro-batches" if job.accumulate > 1 else "")
        raise StepcastError(f"--batch {job.batch} does not divide into {parts}; choose a multiple of {len(devices) * job.accumulate}")
    if options.server == "host" and not machine.library and any(device.kind == "gpu" for device in machine.devices):
        raise StepcastError(
            f"{NAME}:server=host needs a library of collectives between GPUs, and parts of one have none: no kernel of a GPU adds in the"
            " host's memory; use server=distributed, which sums on the devices"
        )
    replicas = Replicas(job, machine, devices, options)
    notes = {"replicas": len(devices)}
    if options.update == "forward-fusion":
        notes["updates"] = "delayed to the next forward; sync() flushes them"
    first, *others = replicas.builders
    with gc_paused():
        return first.plan(NAME, replicas.tasks(), options, notes, others)


@dataclass(frozen=True)
class _Bucket:
    """Gradients, by storage on the first device, that are complete behind task `position` and reduced together."""

    name: str
    position: int
    storages: tuple[str, ...]


class Replicas:
    """The devices' builders, and the tasks that they have together."""

    def __init__(self, job, machine, devices: tuple[str, ...], options: Options):
        self.machine, self.devices, self.options = machine, devices, options
        self.builders = [PlanBuilder(job, device, replica=i, replicas=len(devices)) for i, device in enumerate(devices)]

    @cached_property
    def _passes(self) -> list[list[Task]]:
        return [builder.passes() for builder in self.builders]

    @cached_property
    def _gradients(self) -> list[dict[str, Operand]]:
        """By device, once the passes have placed them, the gradients by their storage on the first."""
        return [self._there(builder) for builder, _ in zip(self.builders, self._passes, strict=True)]

    def tasks(self) -> list[Task]:
        """A period's tasks in issue order."""
        options, builders = self.options, self.builders
        if options.update == "backward-fusion":
            builders[0].refuse_clipping(f"{NAME} with update=backward-fusion", "update=forward-fusion")
        buckets = self._buckets()
        reduced = {bucket.name: self._reduced(bucket, degree) for bucket, degree in zip(buckets, self._degrees(buckets), strict=True)}
        early = self._fused(buckets) if options.update == "backward-fusion" else {}
        order: list[tuple[int, Task]] = []
        end = len(self._passes[0])
        for bucket in buckets:
            behind = bucket.position + 1 if options.overlap else end
            order += [(behind, task) for task in reduced[bucket.name]]
            order += [(max(behind, ready + 1), task) for ready, task in early.get(bucket.name, ())]
        found = self._inserted(order)
        if options.fetch:
            found = [*self._round(builder.fetches(self.machine) for builder in builders), *found]
        found += self._round(builder.clip() for builder in builders)
        if options.update == "baseline":
            found += self._round(builder.updates() for builder in builders)
        elif options.update == "forward-fusion":
            found = self._with_delayed(found)
        return found

    def _round(self, lists) -> list[Task]:
        """The devices' tasks in turns."""
        return list(chain.from_iterable(zip(*lists, strict=True)))

    def _inserted(self, additions: list[tuple[int, Task]]) -> list[Task]:
        """All passes in turns; a position counts one device's tasks."""
        return insert(self._round(self._passes), [(position * len(self.devices), task) for position, task in additions])

    def _buckets(self) -> list[_Bucket]:
        """Gradients in the order of their completion, filled up to the stated bytes."""
        first, most = self.builders[0], self.options.bucket * 1e6
        found: list[_Bucket] = []
        held: list[str] = []
        size = 0
        complete = first.complete(self._passes[0])
        for number, (storage, position) in enumerate(complete.items()):
            held.append(storage)
            size += self._gradients[0][storage].bytes
            if size >= most or number == len(complete) - 1:
                found.append(_Bucket(f"reduce {len(found)}", position, tuple(held)))
                held, size = [], 0
        return found

    def _degrees(self, buckets: Sequence[_Bucket]) -> list[int]:
        """How urgent each bucket is, 0 the most: by the first use of its parameters in the next forward (TurboDL's reuse distance)."""
        if not (self.options.priorities and self.options.overlap):
            return [0] * len(buckets)
        first = self.builders[0]
        use = {layer: index for index, layer in enumerate(first.first_use(self._passes[0]))}
        layer_of = {first.storage(first.gradient(p).value): layer for layer, owned in first.layers.items() for p in owned}
        reach = [min(use[layer_of[storage]] for storage in bucket.storages) for bucket in buckets]
        ranks = {distance: rank for rank, distance in enumerate(sorted(set(reach)))}
        degrees = min(DEGREES, max(1, self._levels - 1), len(ranks))
        return [ranks[distance] * degrees // len(ranks) for distance in reach]

    @property
    def _levels(self) -> int:
        return min(device.priority_levels for device in self.machine.devices)

    def _reduced(self, bucket: _Bucket, degree: int) -> list[Task]:
        """The tasks that sum a bucket over the devices."""
        options = self.options
        stream, priority = (TRANSFERS + degree, max(1 - self._levels, degree - DEGREES)) if options.overlap else (COMPUTE, 0)
        algorithm = {"all-reduce": options.algorithm, "distributed": DISTRIBUTED, "host": SERVER}[options.server]
        root = HOST if options.server == "host" else ""
        group = Group(self.machine, self.devices, algorithm, root, stream, priority)
        operands = [tuple(gradients[storage] for storage in bucket.storages) for gradients in self._gradients]
        at_host = self.builders[0].at_host(operands[0], bucket.name) if root and not self.machine.library else ()
        return group.all_reduce(bucket.name, operands, at_host)

    def _there(self, builder: PlanBuilder) -> dict[str, Operand]:
        """A replica's gradients, by their storage on the first device."""
        first, holders = self.builders[0], builder.holders()
        return {
            first.storage(first.gradient(parameter).value): holders[builder.storage(builder.gradient(parameter).value)]
            for parameter in first.graph.parameters
        }

    def _fused(self, buckets: Sequence[_Bucket]) -> dict[str, list[tuple[int, Task]]]:
        """Bucket -> the updates that follow its reduction, on a stream of their own, each with the task that it must stand behind."""
        first = self.builders[0]
        stream = TRANSFERS + DEGREES if self.options.overlap else COMPUTE
        place = {storage: index for index, bucket in enumerate(buckets) for storage in bucket.storages}
        found: dict[str, list[tuple[int, Task]]] = {}
        for layer, ready in first.ready(self._passes[0]).items():
            owned = first.layers[layer]
            last = max(place[first.storage(first.gradient(p).value)] for p in owned)
            late = next((i for i in range(last, len(buckets)) if buckets[i].position >= ready), len(buckets) - 1)
            found.setdefault(buckets[late].name, []).extend(
                (ready, builder.update(owned, f"{layer}/update", layer, stream=stream)) for builder in self.builders
            )
        return found

    def _with_delayed(self, tasks: list[Task]) -> list[Task]:
        """With each layer's update (lag 1) before the first task that reads its parameters."""
        places: dict[str, list[int]] = {}
        for index, task in enumerate(tasks):
            places.setdefault(task.device, []).append(index)
        additions = []
        for builder in self.builders:
            own = places[builder.device]
            first = builder.first_use([tasks[index] for index in own])
            for layer, owned in builder.layers.items():
                additions.append((own[first[layer]], builder.update(owned, f"{layer}/update", layer, lag=1)))
        return insert(tasks, additions)
