"""TurboDL: the sub-tasks of layers on concurrent streams, critical path first (Jin et al., "TurboDL", section 2 and algorithm 1)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.model.layers.graph import DX, LayerGraph
from simulator.model.layers.grouped import split_groups
from simulator.plan.bodies.host import Host
from simulator.plan.dependencies import Dependencies
from simulator.plan.fusion import insert
from simulator.plan.order import by_rank
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.strategies.builder import PlanBuilder

NAME = "turbodl"
ABOUT = "each layer's dX, dW and dB on separate streams, the critical path first"
#: The plan depends on predicted times: paths are ranked by them.
USES_COSTS = True
METHODS = ("streams=on,async=off,priorities=off", "streams=on,async=on,priorities=off", "streams=on,async=on,priorities=on")
#: With and without backward-fusion; and the choices that the paper leaves open, for the whole method.
CANDIDATES = tuple(f"{text}{fuse}" for text in (*METHODS, "fallback=sync", "alpha=1") for fuse in ("", ",fuse=backward"))
#: Sub-task types with a stream per layer path: forward and dX, dW and the update, dB.
_TYPES = {"": 0, DX: 0, "dW": 1, "dB": 2}

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

    update: Literal["event", "callback"] = "event"
    """What starts an update: an event on its stream, or a host function called by the stream."""

    fuse: Literal["backward", "off"] = "off"
    """backward: update as soon as gradients are complete (backward-fusion); off: update after dW, in the order of the next forward."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """Baseline's tasks on (layer paths x {dX, dW, dB}) streams, reused from block to block, with a further set for each extra group.

    The first layer's dW and update run on the urgent path's stream, because the next iteration's forward waits for them at once
    (dependency distance 1). Raises SchedcastError if `fuse=backward` is combined with clipping by the global norm.
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
        if task.micro_batch == 0 and task.name in build.served:
            seconds[build.served[task.name][0]] = cost.cold_s
    layers = LayerGraph(build.graph, seconds)
    lanes = _Lanes(options, layers, machine.devices[0].priority_levels, [group_of.get(op.name, 0) for op in build.graph.ops])
    if by_urgency:
        tasks = by_rank(tasks, Dependencies(draft), lambda task: _urgency(task, build, layers))
    placed = [lanes.place(task, *build.served[task.name]) if task.name in build.served else lanes.urgent(task) for task in tasks]
    if by_urgency and options.fallback == "sync":
        placed = _with_path_order(placed, build, layers, lanes)
    complete = _with_updates(placed, build, lanes, options, by_events)
    if options.streams and not by_events:
        complete = _with_barriers(complete)
    return build.plan(NAME, complete, options)


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
        layer = self._layers.of(op)
        path, kind = layer.path if self._options.async_ else 0, _TYPES[role]
        if kind and layer.distance(role) == 1:
            path = kind = 0
        return self._on(task, path, kind, self._group_of[op])

    def _on(self, task: Task, path: int, kind: int, group: int) -> Task:
        if not self._options.streams:
            return task
        priority = self.level(path, kind) - self._least if self._options.priorities else 0
        return replace(task, stream=3 * (path + self._paths * group) + kind, priority=priority)


def _urgency(task: Task, build: PlanBuilder, layers: LayerGraph) -> tuple[int, bool, int, int]:
    """Rank in the issue order: block by block, and within a block path by path."""
    if task.name not in build.served:
        return (task.micro_batch, True, len(layers.blocks), 0)
    op, role = build.served[task.name]
    layer = layers.of(op)
    return (task.micro_batch, bool(role), -layer.block if role else layer.block, layer.path)


def _with_path_order(tasks: list[Task], build: PlanBuilder, layers: LayerGraph, lanes: _Lanes) -> list[Task]:
    """Make the first dX of each path wait for that of the next more urgent path if both have the same priority level.

    This is the paper's second method for devices with few priority levels.
    """
    first_dx: dict[tuple[int, int, int], str] = {}  # (micro-batch, block, path) -> task
    result = []
    for task in tasks:
        op, role = build.served.get(task.name, (0, ""))
        if role == DX:
            layer = layers.of(op)
            path = (task.micro_batch, layer.block, layer.path)
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


def _with_barriers(tasks: Sequence[Task]) -> list[Task]:
    """Add a barrier between layers: tasks of one layer run concurrently, and tasks of the next layer wait for all of them."""
    previous: dict[int, str] = {}  # stream -> its last task of the previous layer
    current: dict[int, str] = {}  # stream -> its last task of this layer
    result: list[Task] = []
    for position, task in enumerate(tasks):
        if position and _layer_key(task) != _layer_key(tasks[position - 1]):
            previous, current = current, {}
        if task.stream not in current:
            task = replace(task, after=(*task.after, *_on_other_streams(previous, task.stream)))
        current[task.stream] = task.name
        result.append(task)
    return result


def _layer_key(task: Task) -> tuple[str, str, int]:
    return (task.phase, task.layer, task.micro_batch)


def _on_other_streams(tasks: dict[int, str], stream: int) -> Iterable[str]:
    return (name for other, name in tasks.items() if other != stream)
