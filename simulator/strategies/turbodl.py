"""TurboDL: the sub-tasks of layers on concurrent streams, critical path first (Jin et al., "TurboDL", section 2 and algorithm 1)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from simulator.bodies.host import Host
from simulator.build import PlanBuilder, insert
from simulator.layers.graph import DX, LayerGraph
from simulator.layers.grouped import split_groups
from simulator.plan.dependencies import Dependencies
from simulator.plan.order import by_rank
from simulator.plan.plan import Plan
from simulator.plan.task import Task

NAME = "turbodl"
ABOUT = "each layer's dX, dW and dB on streams of their own, the critical path first"
#: The plan depends on predicted times: paths are ranked by them.
USES_COSTS = True
METHODS = ("streams=on,async=off,priorities=off", "streams=on,async=on,priorities=off", "streams=on,async=on,priorities=on")
#: Sub-task types with a stream per layer path: forward and dX, dW and the update, dB.
_TYPES = {"": 0, DX: 0, "dW": 1, "dB": 2}

Levels = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Options:
    """The paper's three methods, each by itself, and what it leaves open."""

    streams: bool = True
    """A stream for each of dX, dW and dB; off: one stream, and the other methods change nothing."""

    async_: bool = True
    """Layers follow each other by events, and the next forward waits layer by layer; off: a barrier between layers, updates at the end."""

    priorities: bool = True
    """Urgent layer paths first, dX before dW and dB; off: all streams alike."""

    groups: bool = True
    """Streams for each group of a convolution of 2 to 4 groups, whose parts an extra copy puts together; off: one op, as PyTorch has it."""

    alpha: Levels | Literal["paths"] = "paths"
    """How many levels a path's dW is less urgent than its dX; paths: as many as there are paths, so that every dX goes first."""

    beta: Levels | Literal["alpha"] = "alpha"
    """The same for dB; alpha: as dW."""

    fallback: Literal["order", "sync"] = "order"
    """Where the device has too few priority levels, a lesser path is issued later (order), or also waits for the urgent one (sync)."""

    update: Literal["event", "callback"] = "event"
    """What starts an update: an event on its stream, or a function that the stream calls on the host."""

    fuse: Literal["backward", "off"] = "off"
    """Updates as soon as gradients are complete (backward-fusion), or behind the dW, in the order of the next forward."""


def plan(job, machine, costs, options: Options) -> Plan:
    """Baseline's tasks on (layer paths x {dX, dW, dB}) streams, which are reused from block to block, and as many for each further group.

    The first layer's dW and update, on which the next iteration's forward waits at once (dependency distance 1), run on the urgent
    path's stream. With `fuse=backward` global-norm clipping is refused.
    """
    from simulator.costs.model import CostModel  # here, so that listing and checking strategies does not load numpy

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
        tasks = by_rank(tasks, Dependencies(draft), lambda task: _urgent_first(task, build, layers))
    placed = [lanes.put(task, *build.served[task.name]) if task.name in build.served else lanes.urgent(task) for task in tasks]
    if by_urgency and options.fallback == "sync":
        placed = _synchronised(placed, build, layers, lanes)
    done = _with_updates(placed, build, lanes, options, by_events)
    if options.streams and not by_events:
        done = _with_barriers(done)
    return build.plan(NAME, done, options)


class _Lanes:
    """Stream and priority by layer path, sub-task type and group."""

    def __init__(self, options: Options, layers: LayerGraph, levels: int, group_of: Sequence[int]):
        """`group_of`: by op."""
        self._options, self._layers, self._group_of = options, layers, group_of
        self._paths = paths = layers.most_paths if options.async_ else 1
        alpha = paths if options.alpha == "paths" else options.alpha
        self._behind = (0, alpha, alpha if options.beta == "alpha" else options.beta)
        self._levels = levels
        self._least = max(self.level(path, kind) for path in range(paths) for kind in range(3))

    def level(self, path: int, kind: int = 0) -> int:
        """Of a path's dX, dW or dB; 0 is most urgent. The device's last level is kept for what can wait, where it has more than one."""
        last = self._levels - 1
        return min(path, max(last - 1, 0)) if kind == 0 else min(path + self._behind[kind], last)

    def urgent(self, task: Task) -> Task:
        """The task on the urgent path's stream."""
        return self._on(task, 0, 0, 0)

    def put(self, task: Task, op: int, role: str) -> Task:
        """The task on its stream; `op` is the one it serves, in its role."""
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


def _urgent_first(task: Task, build: PlanBuilder, layers: LayerGraph) -> tuple[int, bool, int, int]:
    """Rank in the issue order: block by block, and within a block path by path."""
    if task.name not in build.served:
        return (task.micro_batch, True, len(layers.blocks), 0)
    op, role = build.served[task.name]
    layer = layers.of(op)
    return (task.micro_batch, bool(role), -layer.block if role else layer.block, layer.path)


def _synchronised(tasks: list[Task], build: PlanBuilder, layers: LayerGraph, lanes: _Lanes) -> list[Task]:
    """The paper's second method for devices with few levels: a path's first dX waits for that of the next more urgent path, where the
    two have one level."""
    first: dict[tuple[int, int, int], str] = {}
    result = []
    for task in tasks:
        op, role = build.served.get(task.name, (0, ""))
        if role == DX:
            layer = layers.of(op)
            here = (task.micro_batch, layer.block, layer.path)
            urgent = first.get((*here[:2], layer.path - 1))
            if here not in first and urgent is not None and lanes.level(layer.path) == lanes.level(layer.path - 1):
                task = replace(task, after=(*task.after, urgent))
            first.setdefault(here, task.name)
        result.append(task)
    return result


def _with_updates(tasks: list[Task], build: PlanBuilder, lanes: _Lanes, options: Options, by_events: bool) -> list[Task]:
    def update(layer: str) -> list[Task]:
        owned = build.layers[layer]
        op = build.gradient_ops[owned[0]]
        made = [lanes.put(build.update(owned, f"{layer}/update", layer), op, "dW")]
        if options.update == "callback":
            gradients = tuple(build.gradient(parameter) for parameter in owned)
            body = Host(0.0, "callback")
            made.insert(0, replace(made[0], name=f"{layer}/callback", body=body, reads=gradients, mutates=()))
        return made

    if options.fuse == "backward":
        return insert(tasks, [(last + 1, task) for layer, last in build.ready(tasks).items() for task in update(layer)])
    if by_events:
        return tasks + [task for layer in build.first_use(tasks) for task in update(layer)]
    return tasks + [lanes.urgent(task) for task in build.updates()]


def _with_barriers(tasks: Sequence[Task]) -> list[Task]:
    """Tasks of one layer run side by side; those of the next wait for all of them."""
    before: dict[int, str] = {}  # stream -> the last task of the layer before
    now: dict[int, str] = {}
    result: list[Task] = []
    for position, task in enumerate(tasks):
        if position and _place(task) != _place(tasks[position - 1]):
            before, now = now, {}
        if task.stream not in now:
            task = replace(task, after=(*task.after, *_others(before, task.stream)))
        now[task.stream] = task.name
        result.append(task)
    return result


def _place(task: Task) -> tuple[str, str, int]:
    return (task.phase, task.layer, task.micro_batch)


def _others(tasks: dict[int, str], stream: int) -> Iterable[str]:
    return (name for other, name in tasks.items() if other != stream)
