"""PyTorch's DistributedDataParallel around the user's own loop, with its defaults and `no_sync` for all microbatches but the last.

As the reducer of PyTorch 2.13 does it (torch/csrc/distributed/c10d/reducer.cpp): a hook of each parameter copies its gradient into a
bucket, divided by the number of devices, and a full bucket is summed during backward. Buckets hold gradients in the order in which backward
completes them, the first of them 1 MiB, the others 25 MiB. After backward every sum is copied back to its gradient, so that memory has
gradients and buckets. Buffers, such as statistics of batch-norm, are sent from the first device before each forward.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from simulator.engine.collectives.tasks import Group, priority_of
from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.bodies.host import Hook, HookName
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.fusion import insert
from simulator.plan.plan import Plan
from simulator.plan.task import BUFFER, COLLECTIVE, Operand, Task, Value
from simulator.plan.tensors import contiguous, part
from simulator.strategies.builder import COPY, PlanBuilder, Share
from simulator.strategies.compact import omitted
from simulator.strategies.data_parallel import check_replicas, interleaved, sum_counts
from simulator.strategies.layout import Layout
from simulator.strategies.pytorch import called_once, own_graph, with_views
from simulator.strategies.zero.units import shaped
from traces.documents.comparison import PYTORCH_DDP
from traces.errors import Code, SchedcastError
from traces.process import gc_paused

NAME = PYTORCH_DDP
FAMILY = "data-parallel"
ABOUT = "PyTorch's DistributedDataParallel around your own loop, a process on each device; predicted only"
LEAST_DEVICES = 2
EXECUTED = False

#: Streams of a device: what it computes, and its library's.
COMPUTE, TRANSFERS = 0, 1
#: Sizes of the first bucket and of the others (torch.nn.parallel.DistributedDataParallel).
FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20


@dataclass(frozen=True)
class Options:
    """No options."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """The step of every device on its part of the batch, on `Machine.for_parallel_loops`.

    Raises SchedcastError for what plain PyTorch is not predicted for, for devices that are no processes, and if there are too few or the
    batch does not divide among them.
    """
    layout = layout_of(NAME, job, machine)
    builders = own_builders(job, layout)
    first, *others = builders
    with gc_paused():
        notes: dict[str, object] = {"replicas": layout.replicas} | layout.semantics
        return first.plan(NAME, _tasks(layout, builders), options, notes, others, classes=layout.classes)


def layout_of(strategy: str, job: Job, machine: Machine) -> Layout:
    """All devices as replicas; of GPUs the first one represents all, since each has its own host.

    Raises SchedcastError if they are no processes, too few, or if the batch does not divide among them.
    """
    if not machine.library:
        raise SchedcastError(
            f"{strategy} runs a process on each of several devices, and {machine.name} has none; start this with torchrun, or choose"
            " a machine of several GPUs",
            Code.DEVICES,
        )
    devices = check_replicas(strategy, job, machine, LEAST_DEVICES)
    return Layout(machine, devices, folded=machine.devices[0].kind == "gpu")


def own_builders(job: Job, layout: Layout, first: int = 1) -> list[PlanBuilder]:
    """A builder of the user's loop for each device that the plan has. `first`: as in `compact.omitted`."""
    count = layout.replicas
    graph = own_graph(job, job.accumulate * count)
    without = omitted(job, len(graph.ops), first=first) if len(layout.devices) == 1 else 0
    own = job.accumulate - without
    return [
        PlanBuilder(
            job,
            device,
            graph,
            Share(job.accumulate * count, range(at * own, (at + 1) * own), without),
            suffix=f"@{device}" if at else "",
        )
        for at, device in enumerate(layout.devices)
    ]


def hook(runs: HookName, label: str, device: str, parameters: int = 0, layer: str = "") -> Task:
    """The task of a hook on a device. `label`: what it is called for."""
    return Task(f"{label}/{runs}@{device}", Hook(runs, parameters), device, COMPUTE, phase=COLLECTIVE, layer=layer)


def _tasks(layout: Layout, builders: Sequence[PlanBuilder]) -> list[Task]:
    """A step in issue order."""
    first = builders[0]
    group = layout.all(TRANSFERS, priority=priority_of(0, layout.machine.priority_levels))
    passes = [build.passes() for build in builders]
    # what runs before the task at a position of a device's passes
    order = [(1, task) for task in sum_counts(group, builders)]
    back: list[list[Task]] = [[] for _ in builders]
    for number, complete in enumerate(_buckets(first, passes[0])):
        name = f"bucket {number}"
        flats = [_flat(build, name, complete) for build in builders]
        for parameter, position in complete.items():
            for build, flat, copies in zip(builders, flats, back, strict=True):
                place = shaped(part(flat, *_span(first, complete, parameter)), build.gradient(parameter).shape)
                fill, take = _copies(build, parameter, place)
                order += [(position + 1, hook("ddp parameter", fill.name, build.device, 1)), (position + 1, fill)]
                copies.append(take)
        order += [(position + 1, hook("ddp bucket", name, build.device)) for build in builders]
        order += [(position + 1, task) for task in group.all_reduce(name, [(flat,) for flat in flats])]
    order = [(position * len(builders), task) for position, task in order]  # a position counts the tasks of one device
    tasks = [*_sent_buffers(builders, group), *(hook("ddp step", "forward", build.device) for build in builders)]
    tasks += insert(interleaved(with_views(own, build) for own, build in zip(passes, builders, strict=True)), order)
    tasks += interleaved(back)
    tasks += interleaved(build.finish_gradients() for build in builders)
    return tasks + interleaved(called_once(build.updates()) for build in builders)


def _buckets(build: PlanBuilder, passes: Sequence[Task]) -> list[dict[str, int]]:
    """The parameters of each bucket in the order in which their gradients are complete, with the position of the task that completes them.

    Gradients of one bucket have one type. A bucket is full once it has reached its size.
    """
    of_storage: dict[str, list[str]] = {}
    for parameter in reversed(build.graph.parameters):
        of_storage.setdefault(build.storage(build.gradient(parameter).value), []).append(parameter)
    full: list[dict[str, int]] = []
    filling: dict[str, dict[str, int]] = {}  # by type
    sizes: dict[str, int] = {}
    for storage, position in build.complete(passes).items():
        for parameter in of_storage[storage]:
            gradient = build.gradient(parameter)
            filling.setdefault(gradient.dtype, {})[parameter] = position
            sizes[gradient.dtype] = sizes.get(gradient.dtype, 0) + gradient.bytes
            if sizes[gradient.dtype] >= (BUCKET_BYTES if full else FIRST_BUCKET_BYTES):
                full.append(filling.pop(gradient.dtype))
                del sizes[gradient.dtype]
    return full + list(filling.values())


def _span(build: PlanBuilder, parameters: Iterable[str], parameter: str) -> tuple[int, int]:
    """Where the gradient of a parameter begins and ends in the bucket of these parameters."""
    before = sum(build.gradient(name).elements for name in takewhile(lambda name: name != parameter, parameters))
    return before, before + build.gradient(parameter).elements


def _flat(build: PlanBuilder, name: str, parameters: Iterable[str]) -> Operand:
    """A device's bucket, which stays allocated from step to step."""
    gradients = [build.gradient(parameter) for parameter in parameters]
    shape, own = (sum(gradient.elements for gradient in gradients),), f"{name}@{build.device}"
    return build.tensors.add(Value(own, shape, contiguous(shape), dtype=gradients[0].dtype, device=build.device, kind=BUFFER)).operand()


def _copies(build: PlanBuilder, parameter: str, place: Operand) -> tuple[Task, Task]:
    """The tasks that copy a gradient to its place in a bucket, and back."""
    gradient, label = build.gradient(parameter), f"{parameter}@{build.device}"
    own = Task(label, COPY, build.device, COMPUTE, phase=COLLECTIVE, layer=build.graph.layers[parameter])
    fill = replace(own, name=f"{label}/fill", reads=(gradient,), mutates=(place,))
    return fill, replace(own, name=f"{label}/take", reads=(place,), mutates=(gradient,))


def _sent_buffers(builders: Sequence[PlanBuilder], group: Group) -> list[Task]:
    """The tasks that send buffers: those of a type become one tensor, which is sent and copied back to each of them.

    A library sends a small number of bytes in the time in which it sums them; that time is used here.
    """
    tasks: list[Task] = []
    own = [[value for value in build.tensors.values.values() if value.kind == BUFFER and value.source is not None] for build in builders]
    for dtype in sorted({value.dtype for value in own[0]}):
        flats: list[tuple[Operand, ...]] = []
        back: list[Task] = []
        for build, values in zip(builders, own, strict=True):
            buffers = tuple(value.operand() for value in values if value.dtype == dtype)
            label, place = f"buffers {dtype}@{build.device}", (build.device, COMPUTE)
            flat = build.tensors.scratch(label, (sum(buffer.elements for buffer in buffers),), dtype, build.device)
            cat = OpCall("aten.cat.default", json.dumps([[{"$": at} for at in range(len(buffers))]], separators=(",", ":")))
            reads = tuple(shaped(buffer, (buffer.elements,)) for buffer in buffers)
            tasks.append(Task(label, cat, *place, reads=reads, writes=(flat,), phase=COLLECTIVE))
            flats.append((flat,))
            start = 0
            for at, buffer in enumerate(buffers):
                sent = shaped(part(flat, start, start + buffer.elements), buffer.shape)
                back.append(Task(f"{label}/{at}", COPY, *place, reads=(sent,), mutates=(buffer,), phase=COLLECTIVE))
                start += buffer.elements
        tasks += group.all_reduce(f"send buffers {dtype}", flats) + back
    return tasks
