"""TurboDL: the sub-tasks of layers on concurrent streams, critical path first (Jin et al., "TurboDL", section 2 and algorithm 1).

Grouped convolutions are split into one op per group, so that groups can run concurrently, and an op that concatenates their results. The
tasks of a period are reordered within their dependencies.
"""

import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.graph import Op, TrainingGraph
from simulator.model.job import Job
from simulator.model.layers import DX, Layer, LayerGraph
from simulator.plan.bodies.host import Host, Synchronize
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.dependencies import Dependencies
from simulator.plan.fusion import insert
from simulator.plan.ops import row
from simulator.plan.plan import Plan
from simulator.plan.task import DTYPE_BYTES, FORWARD, SCRATCH, Operand, Task, Value, ViewStep
from simulator.plan.tensors import contiguous
from simulator.strategies.builder import PlanBuilder


def by_rank(tasks: Sequence[Task], dependencies: Dependencies, rank: Callable[[Task], Any]) -> list[Task]:
    """The tasks in a new issue order: always the task of the lowest rank among those whose dependencies within the period have been issued.

    Tasks of equal rank keep their order. `dependencies`: those of a plan of these tasks in their present order.

    >>> tasks = [Task(name, Host(1.0), "cuda:0", after=after) for name, after in (("2.dW", ()), ("2.dX", ()), ("1.dX", ("2.dX",)))]
    >>> dependencies = Dependencies(Plan("tiny", tuple(tasks), {}, {}))
    >>> [task.name for task in by_rank(tasks, dependencies, lambda task: task.name.endswith("dW"))]  # what nothing waits for comes last
    ['2.dX', '1.dX', '2.dW']
    """
    successors: list[list[int]] = [[] for _ in tasks]
    missing = [0] * len(tasks)
    for index, edges in enumerate(dependencies.edges(0)):
        for edge in edges:
            successors[edge.index].append(index)
            missing[index] += 1
    ready = [(rank(tasks[index]), index) for index, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, index = heapq.heappop(ready)
        ordered.append(tasks[index])
        for successor in successors[index]:
            missing[successor] -= 1
            if not missing[successor]:
                heapq.heappush(ready, (rank(tasks[successor]), successor))
    return ordered


#: Convolutions with more groups are not split: their groups are too small to run separately.
MOST_GROUPS = 4
_FORWARD, _BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
#: Positions of the arguments bias sizes (backward), transposed, and groups.
_BIAS_SIZES, _TRANSPOSED, _GROUPS = 3, {_FORWARD: 6, _BACKWARD: 7}, {_FORWARD: 8, _BACKWARD: 9}


def split_groups(graph: TrainingGraph) -> tuple[TrainingGraph, dict[str, int]]:
    """The graph with convolutions of 2 to MOST_GROUPS groups split, and the group of each op of a split convolution, by op name.

    Convolutions of values in channels-last layout are not split, because a slice of channels would not be contiguous. Depthwise ones are
    not either: they have special kernels, and oneDNN's backward for a single channel writes out of bounds if the filter is longer
    than the image (65 x 1 on 32 x 32, PyTorch 2.13).
    """
    values, sizes, group_of = dict(graph.values), dict(graph.storage_bytes), {}
    ops: list[Op] = []
    for op in graph.ops:
        args = json.loads(op.body.args) if op.body.target in _GROUPS else None
        if args is None or not 2 <= args[_GROUPS[op.body.target]] <= MOST_GROUPS or not _splittable(op, args):
            ops.append(op)
            continue
        groups = args[_GROUPS[op.body.target]]
        group_ops = [_group_op(op, args, group, groups) for group in range(groups)]
        for group, group_op in enumerate(group_ops):
            group_of[group_op.name] = group
            for operand in group_op.writes:
                values[operand.value] = Value(operand.value, operand.shape, operand.strides, dtype=operand.dtype, device="", kind=SCRATCH)
                sizes[operand.value] = operand.elements * DTYPE_BYTES[operand.dtype]
        ops += group_ops
        ops += _concatenations(op, group_ops)
    return replace(graph, ops=tuple(ops), values=values, storage_bytes=sizes), group_of


def _splittable(op: Op, args: list) -> bool:
    contiguous_results = all(operand.strides == contiguous(operand.shape) for operand in op.writes)
    weight = op.reads[2 if op.body.target == _BACKWARD else 1]
    return contiguous_results and weight.shape[1] > 1 and not args[_TRANSPOSED[op.body.target]]


def _group_op(op: Op, args: list, group: int, groups: int) -> Op:
    """The convolution of one group: its channels of the activations, its rows of weight and bias."""
    args = list(args)
    args[_GROUPS[op.body.target]] = 1
    by_rows: tuple[int, ...] = (1, 2)  # activation, weight, bias
    if op.body.target == _BACKWARD:
        args[_BIAS_SIZES] = [size // groups for size in args[_BIAS_SIZES]]
        by_rows = (2,)  # gradient, activation, weight
    reads = tuple(_slice(operand, 0 if i in by_rows else 1, group, groups) for i, operand in enumerate(op.reads))
    writes = tuple(_group_result(op, place, operand, group, groups) for place, operand in enumerate(op.writes))
    body = replace(op.body, args=json.dumps(args, separators=(",", ":")), flops=op.body.flops / groups)
    return replace(op, name=f"{op.name}/group{group}", body=body, reads=reads, writes=writes)


def _slice(operand: Operand, dim: int, group: int, groups: int) -> Operand:
    extent = operand.shape[dim] // groups
    shape = (*operand.shape[:dim], extent, *operand.shape[dim + 1 :])
    view = ViewStep("aten.slice.Tensor", json.dumps([dim, group * extent, (group + 1) * extent]))
    return replace(operand, shape=shape, views=(*operand.views, view))


def _group_result(op: Op, place: int, operand: Operand, group: int, groups: int) -> Operand:
    """The slice of a result that one group computes, as a new contiguous value."""
    dim = _channel_dim(op, place)
    shape = (*operand.shape[:dim], operand.shape[dim] // groups, *operand.shape[dim + 1 :])
    return Operand(f"{operand.value}/group{group}", shape, contiguous(shape), operand.dtype)


def _channel_dim(op: Op, place: int) -> int:
    """Dimension of a result's channels: 1 for the forward result and the gradient by activation, 0 for gradients of weight and bias."""
    return 1 if op.body.target == _FORWARD or op.body.outputs[place] == 0 else 0


def _concatenations(op: Op, group_ops: list[Op]) -> Iterator[Op]:
    """One op per result that concatenates the results of the groups."""
    for place, operand in enumerate(op.writes):
        pieces = tuple(group_op.writes[place] for group_op in group_ops)
        args = json.dumps([[{"$": i} for i in range(len(pieces))], _channel_dim(op, place)], separators=(",", ":"))
        name = f"{op.name}/join" + (f":{op.body.outputs[place]}" if place else "")
        yield replace(op, name=name, body=OpCall("aten.cat.default", args), reads=pieces, writes=(operand,))


NAME = "turbodl"
ABOUT = "each layer's dX, dW and dB on separate streams, the critical path first"
#: The plan depends on predicted times: paths are ranked by them.
USES_COSTS = True
METHODS = ("streams=on,async=off,priorities=off", "streams=on,async=on,priorities=off", "streams=on,async=on,priorities=on")
#: With and without backward-fusion; and the choices that the paper leaves open, for the whole method.
CANDIDATES = tuple(f"{text}{fuse}" for text in (*METHODS, "fallback=sync", "alpha=1") for fuse in ("", ",fuse=backward"))
#: Sub-task types with a stream per layer path: forward and dX, dW and the update, dB.
_TYPES = {"": 0, DX: 0, "dW": 1, "dB": 2}
#: The same for the streams of one convolution in Caffe.
_CAFFE_TYPES = {"": 0, "dB": 0, "dW": 1, DX: 2}

Levels = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Options:
    """The paper's three methods, which can be switched separately, and the choices that the paper leaves open."""

    streams: bool = True
    """A stream for each of dX, dW and dB; off: one stream, and the other methods have no effect."""

    async_: bool = True
    """Order layers by events, so that the next forward waits layer by layer; off: a barrier between layers, updates at the end."""

    priorities: bool = True
    """Run urgent layer paths first, and dX before dW and dB; off: all streams have the same priority."""

    groups: bool = True
    """Run each group of a convolution with 2 to 4 groups on its own stream and concatenate the results; off: one op, as in PyTorch."""

    alpha: Levels | Literal["paths"] = "paths"
    """How many priority levels a path's dW ranks below its dX; paths: the number of paths, so that every dX goes first."""

    beta: Levels | Literal["alpha"] = "alpha"
    """How many priority levels a path's dB ranks below its dX; alpha: the same as dW."""

    fallback: Literal["order", "sync"] = "order"
    """If the device has too few priority levels: issue a less urgent path later (order), or also make it wait for the urgent one (sync)."""

    layers: Literal["shared", "caffe"] = "shared"
    """With async=off.

    shared: all layers use the same streams; caffe: as Caffe with cuDNN does, each convolution has its own streams, all other tasks run on
    the default stream, and the host reads the loss before it issues backward.
    """

    update: Literal["event", "callback"] = "event"
    """What starts an update: an event on its stream, or a host function called by the stream."""

    fuse: Literal["backward", "off"] = "off"
    """backward: update as soon as gradients are complete (backward-fusion); off: update after dW, in the order of the next forward."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Baseline's tasks on (layer paths x {dX, dW, dB}) streams, reused from block to block, with a further set for each extra group.

    The first layer's dW and update run on the urgent path's stream, because the next iteration's forward waits for them immediately
    (dependency distance 1). With `layers=caffe` streams are as in Caffe 1.0 (src/caffe/layers/cudnn_conv_layer.cu): a convolution creates
    them for dX, dW and dB of each group, forward takes those of dB, and an empty kernel on the default stream is the barrier after it, in
    forward and in backward. Here events are the barrier, which take the host about as long as the launch of that kernel.

    Raises SchedcastError if `fuse=backward` is combined with clipping by the global norm.
    """
    from simulator.engine.costs.model import CostModel  # here, so that listing and checking strategies does not load numpy

    by_events, by_urgency = options.streams and options.async_, options.streams and options.async_ and options.priorities
    graph, group_of = split_groups(job.graph()) if options.streams and options.groups else (job.graph(), {})
    build = PlanBuilder(job, machine.devices[0].name, graph)
    if options.fuse == "backward":
        build.refuse_clipping(f"{NAME}:fuse=backward", f"{NAME}:fuse=off")
    tasks = build.step()
    draft = build.plan(NAME, tasks, options)
    seconds = [0.0] * len(build.graph.ops)
    for task, cost in zip(tasks, (costs or CostModel(machine)).resolve(draft), strict=True):
        if task.microbatch == 0 and task.name in build.served:
            seconds[build.served[task.name][0]] = cost.cold_s
    layers = LayerGraph(build.graph, seconds)
    lanes = _Lanes(options, layers, machine.devices[0].priority_levels, [group_of.get(op.name, 0) for op in build.graph.ops])
    if by_urgency:
        tasks = by_rank(tasks, Dependencies(draft), lambda task: _urgency(task, build, layers))
    placed = [lanes.place(task, *build.served[task.name]) if task.name in build.served else lanes.urgent(task) for task in tasks]
    if by_urgency and options.fallback == "sync":
        placed = _with_path_order(placed, build, layers, lanes)
    complete = _with_updates(placed, build, lanes, options, by_events)
    if options.layers == "caffe":
        complete = _with_read_loss(complete, build)
    if options.streams and not by_events:
        complete = _with_barriers(complete)
    return build.plan(NAME, complete, options)


def in_replicas(builders: Sequence[PlanBuilder], tasks: Sequence[Task], levels: int, units: Mapping[str, Sequence[str]]) -> list[Task]:
    """The tasks of replicas, whose stream 0 computes, on TurboDL's streams: the paper's extension to several devices (section 3.3).

    The order stays, and the urgent path keeps its stream; the others get new ones. Events order them, so that no number changes:

        stream 0    F1 F2 dX2 dX1 dW1 U1           the urgent path, and what the next forward waits for at once
        new ones          dW2 U2, dB2              beside it, with a lower priority

    `units`: by layer of an update, its parameters. Layer paths are ranked by the FLOPs of their dX, so that replicas on any machines have
    the same plan.
    """
    first_stream = 1 + max(task.stream for task in tasks)
    placed: dict[str, Task] = {}
    for build in builders:
        layers = LayerGraph(build.graph, [op.body.work(op).flops for op in build.graph.ops])
        lanes = _Lanes(Options(), layers, levels, [0] * len(build.graph.ops))
        for task in tasks:
            if task.device != build.device or task.stream:
                continue
            if task.name in build.served:
                own = lanes.place(task, *build.served[task.name])
            elif task.body.is_update and task.layer in units:
                own = lanes.place(task, build.graph.gradient_ops[units[task.layer][0]], "dW")
            else:
                own = lanes.urgent(task)
            placed[task.name] = replace(own, stream=first_stream + own.stream - 1) if own.stream else own
    return [placed.get(task.name, task) for task in tasks]


class _Lanes:
    """Stream and priority by layer path, sub-task type and group."""

    def __init__(self, options: Options, layers: LayerGraph, levels: int, group_of: Sequence[int]):
        """`levels`: priority levels of the device. `group_of`: the convolution group of each op of the graph."""
        self._options, self._layers, self._group_of = options, layers, group_of
        self._paths = paths = layers.most_paths if options.async_ else 1
        alpha = paths if options.alpha == "paths" else options.alpha
        self._behind = (0, alpha, alpha if options.beta == "alpha" else options.beta)
        self._levels = levels
        self._least = max(self.level(path, kind) for path in range(paths) for kind in range(3))
        self._first_stream: dict[Layer, int] = {}  # with layers=caffe, of the layers with their own streams

    def level(self, path: int, kind: int = 0) -> int:
        """Priority level of a path's dX (`kind` 0), dW (1) or dB (2); 0 is most urgent.

        If the device has more than one level, its last level is reserved for dW and dB.
        """
        last = self._levels - 1
        return min(path, max(last - 1, 0)) if kind == 0 else min(path + self._behind[kind], last)

    def urgent(self, task: Task) -> Task:
        """The task on the urgent path's stream."""
        return self._on(task, 0, 0, 0)

    def place(self, task: Task, op: int, role: str) -> Task:
        """The task on the stream of op `op` of the graph, which it serves in `role` (dX, dW, dB, or "" for forward)."""
        layer = self._layers.layer_of(op)
        if self._options.layers == "caffe":
            return self._on_own_stream(task, layer, op, role)
        path, kind = layer.path if self._options.async_ else 0, _TYPES[role]
        if kind and layer.distance(role) == 1:
            path = kind = 0
        return self._on(task, path, kind, self._group_of[op])

    def _on_own_stream(self, task: Task, layer: Layer, op: int, role: str) -> Task:
        """The task on a stream of its convolution; on the default one if it is no convolution of `layer`."""
        if row(task.body.op).weight is None:
            return task
        first = self._first_stream.setdefault(layer, 1 + 3 * (max(self._group_of) + 1) * len(self._first_stream))
        return replace(task, stream=first + 3 * self._group_of[op] + _CAFFE_TYPES[role])

    def _on(self, task: Task, path: int, kind: int, group: int) -> Task:
        if not self._options.streams:
            return task
        caffe = self._options.layers == "caffe"  # whose streams all have the default priority
        priority = self.level(path, kind) - self._least if self._options.priorities and not caffe else 0
        return replace(task, stream=3 * (path + self._paths * group) + kind, priority=priority)


def _urgency(task: Task, build: PlanBuilder, layers: LayerGraph) -> tuple[int, bool, int, int]:
    """Rank in the issue order: block by block, and within a block path by path."""
    if task.name not in build.served:
        return (task.microbatch, True, len(layers.blocks), 0)
    op, role = build.served[task.name]
    layer = layers.layer_of(op)
    return (task.microbatch, bool(role), -layer.block if role else layer.block, layer.path)


def _with_path_order(tasks: list[Task], build: PlanBuilder, layers: LayerGraph, lanes: _Lanes) -> list[Task]:
    """Make the first dX of each path wait for that of the next more urgent path if both have the same priority level.

    This is the paper's second method for devices with few priority levels.
    """
    first_dx: dict[tuple[int, int, int], str] = {}  # (microbatch, block, path) -> task
    result = []
    for task in tasks:
        op, role = build.served.get(task.name, (0, ""))
        if role == DX:
            layer = layers.layer_of(op)
            path = (task.microbatch, layer.block, layer.path)
            urgent = first_dx.get((*path[:2], layer.path - 1))
            if path not in first_dx and urgent is not None and lanes.level(layer.path) == lanes.level(layer.path - 1):
                task = replace(task, after=(*task.after, urgent))
            first_dx.setdefault(path, task.name)
        result.append(task)
    return result


def _with_updates(tasks: list[Task], build: PlanBuilder, lanes: _Lanes, options: Options, by_events: bool) -> list[Task]:
    def update(layer: str) -> list[Task]:
        owned = build.layers[layer]
        op = build.graph.gradient_ops[owned[0]]
        updates = [lanes.place(build.update(owned, f"{layer}/update", layer), op, "dW")]
        if options.update == "callback":
            gradients = tuple(build.gradient(parameter) for parameter in owned)
            body = Host(0.0, "callback")
            updates.insert(0, replace(updates[0], name=f"{layer}/callback", body=body, reads=gradients, mutates=()))
        return updates

    if options.fuse == "backward":
        return insert(tasks, [(last + 1, task) for layer, last in build.ready(tasks).items() for task in update(layer)])
    if by_events:
        return tasks + [task for layer in build.first_use(tasks) for task in update(layer)]
    return tasks + [lanes.urgent(task) for task in build.updates()]


def _with_read_loss(tasks: list[Task], build: PlanBuilder) -> list[Task]:
    """Let the host wait for each microbatch's loss before it issues what follows, as cublasSdot does in Caffe's Layer::Forward."""
    last = {task.microbatch: position for position, task in enumerate(tasks) if task.phase == FORWARD}
    reads = [
        (position + 1, Task(f"read_loss@{m}" if m else "read_loss", Synchronize(), build.device, phase=FORWARD, layer="loss", microbatch=m))
        for m, position in last.items()
    ]
    return insert(tasks, reads)


def _with_barriers(tasks: Sequence[Task]) -> list[Task]:
    """Add a barrier between layers: tasks of one layer run concurrently, and tasks of the next layer wait for all of them."""
    previous: dict[int, str] = {}  # stream -> its last task of the previous layer
    current: dict[int, str] = {}  # stream -> its last task of this layer
    result: list[Task] = []
    for position, task in enumerate(tasks):
        if position and _layer_key(task) != _layer_key(tasks[position - 1]):
            previous, current = current, {}
        if task.stream not in current:
            others = (name for stream, name in previous.items() if stream != task.stream)
            task = replace(task, after=(*task.after, *others))
        current[task.stream] = task.name
        result.append(task)
    return result


def _layer_key(task: Task) -> tuple[str, str, int]:
    return (task.phase, task.layer, task.microbatch)
