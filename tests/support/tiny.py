"""Builders of tiny plans and machines. A value is given by its name, a task by the values it reads and writes and by its time.

plan, costs = build(task("f", 1.0, reads="x", writes="y"), task("b", 2.0, reads="y", writes="g"))
timeline = simulate(plan, cpu(), costs, iterations=1)
"""

from dataclasses import dataclass

from simulator.engine.costs.cost import Cost
from simulator.machine.machine import Device, HostLane, Link, Machine, Memory
from simulator.plan.bodies.copy import Copy
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, INPUT, PARAMETER, TRANSFER, Operand, Storage, Task, Value, ViewStep
from traces.documents.timeline import Timeline

#: Elements of every value; bytes are 4 times as many.
LENGTH = 100


@dataclass(frozen=True)
class Timed:
    """A task and its cost."""

    task: Task
    cost: Cost


def task(
    name: str,
    seconds: float = 1.0,
    *,
    reads: str = "",
    writes: str = "",
    mutates: str = "",
    after: str = "",
    on: str = "d",
    stream: int = 0,
    priority: int = 0,
    lag: int = 0,
    phase: str = "forward",
    body=None,
    **cost,
) -> Timed:
    """A task. `reads`, `writes`, `mutates` and `after` are names separated by blanks; `name[2:5]` is a slice of a value."""
    operands = [tuple(operand(text) for text in names.split()) for names in (reads, writes, mutates)]
    made = Task(
        name, body or OpCall("aten.relu.default"), on, stream, priority, *operands, tuple(after.split()), phase=phase, layer=name, lag=lag
    )
    return Timed(made, Cost(**{"key": name, "warm_s": seconds, "cold_s": seconds, **cost}))


def copy(name: str, source: str, target: str, reads: str, writes: str, *, on: str = "", stream: int = 9, **more) -> Timed:
    """A transfer of one value, by default on a separate stream of `source`."""
    return task(name, 0.0, reads=reads, writes=writes, on=on or source, stream=stream, phase=TRANSFER, body=Copy(source, target), **more)


def operand(text: str, length: int = LENGTH) -> Operand:
    """`x`, or `x[2:5]` for a slice."""
    name, _, cut = text.rstrip("]").partition("[")
    if not cut:
        return Operand(name, (length,), (1,), "float32")
    start, stop = map(int, cut.split(":"))
    return Operand(name, (stop - start,), (1,), "float32", (ViewStep("aten.slice.Tensor", f"[0,{start},{stop}]"),))


def build(*timed: Timed, kinds: dict[str, str] | None = None, lengths: dict[str, int] | None = None) -> tuple[Plan, list[Cost]]:
    """The plan and its costs. Values whose name begins with w are parameters, with x inputs; all others are activations.

    A value is on the device of the task that writes it, or else of the first task that uses it.
    """
    lengths = lengths or {}
    tasks = [_sized(item.task, lengths) for item in timed]
    place: dict[str, str] = {}
    for t in tasks:
        target = t.body.target if t.body.kind == "copy" else t.device
        place.update(dict.fromkeys((o.value for o in t.writes), target))
    for t in tasks:
        for o in t.inputs:
            place.setdefault(o.value, t.body.source if t.body.kind == "copy" else t.device)
    usual = {"w": PARAMETER, "x": INPUT}
    values = {}
    for name, device in place.items():
        kind = (kinds or {}).get(name, usual.get(name[0], ACTIVATION))
        values[name] = Value(name, (lengths.get(name, LENGTH),), (1,), "float32", device, kind, name)
    storages = {name: Storage(name, value.operand().bytes, value.device) for name, value in values.items()}
    return Plan("tiny", tuple(tasks), values, storages), [item.cost for item in timed]


def _sized(t: Task, lengths: dict[str, int]) -> Task:
    from dataclasses import replace

    def sized(operands):
        return tuple(o if o.views or o.value not in lengths else operand(o.value, lengths[o.value]) for o in operands)

    return replace(t, reads=sized(t.reads), writes=sized(t.writes), mutates=sized(t.mutates))


def chain(*seconds: float, **more) -> tuple[Plan, list[Cost]]:
    """Tasks t0, t1, ..., each of which reads what the previous one wrote."""
    return build(*(task(f"t{i}", s, reads=f"v{i - 1}" if i else "x", writes=f"v{i}", **more) for i, s in enumerate(seconds)))


def cpu(*devices: str, cores: int = 1, overhead_s: float = 0.0, links: tuple[Link, ...] = (), cache_bytes: int = 0) -> Machine:
    """Groups of cores on one memory, without host lanes."""
    made = tuple(Device(name, "cpu", cores, {"fp32": 1e9}, "ram", task_overhead_s=overhead_s) for name in devices or ("d",))
    return Machine("tiny-cpu", made, (Memory("ram", 10**9, 1e9, cache_bytes),), (), links)


def gpu(*devices: str, sms: int = 10, host: HostLane | None = None, links: tuple[Link, ...] = (), memory: str = "", **more) -> Machine:
    """GPUs with separate memories (or one `memory` for all). Without `host`, launches cost nothing."""
    names = devices or ("d",)
    made = tuple(Device(name, "gpu", sms, {"fp32": 1e12}, memory or f"hbm.{name}", priority_levels=3) for name in names)
    memories = tuple(Memory(name, 10**9, 1e9, **{"cache_bytes": 0, **more}) for name in dict.fromkeys(d.memory for d in made))
    return Machine("tiny-gpu", made, memories, (host,) if host else (), links)


def host(*devices: str, dispatch_s: float = 0.0, **more) -> HostLane:
    """A host lane; costs that are not given are 0."""
    free = {"record_s": 0.0, "wait_s": 0.0, "graph_launch_s": 0.0, "node_gap_s": 0.0, "cross_gap_s": 0.0, "callback_s": 0.0}
    return HostLane("host", devices or ("d",), dispatch_s, **{**free, **more})


def rows(timeline: Timeline) -> list[tuple[str, float, float]]:
    """(task, start, end) of every span, in order of start time."""
    return [(span.task, span.start_s, span.end_s) for span in timeline.spans]


def starts(timeline: Timeline) -> dict[str, list[float]]:
    """Start times by task, in order of periods."""
    times: dict[str, list[float]] = {}
    for span in timeline.spans:
        times.setdefault(span.task, []).append(span.start_s)
    return times
