"""Builders of tiny recordings: a host thread launches kernels onto streams.

replay = recording(host("l1", 1.0), kernel("a", 3.0, after="l1"), host("l2", 1.0), kernel("b", 2.0, after="l2"))
"""

from simulator.bodies.host import Host
from simulator.bodies.recorded import Recorded
from simulator.machine import Device, Machine, Memory
from simulator.plan import Plan, Segment, Task
from simulator.replay import Replay, Step, simulate_replay


def host(name: str, seconds: float, *, thread: int = 0, after: str = "", label: str = "cudaLaunchKernel") -> Task:
    """A recorded call, or a gap, on a host thread."""
    return Task(name, Host(seconds, label), "host", thread, after=tuple(after.split()))


def kernel(
    name: str,
    seconds: float,
    *,
    after: str = "",
    stream: int = 7,
    called: str = "",
    category: str = "kernel",
    phase: str = "forward",
    layer: str = "",
    grid: int = 0,
    device: str = "cuda:0",
) -> Task:
    """Work on a stream. `called` is the name the profiler recorded, `name` itself unless told."""
    body = Recorded(called or name, category, seconds, 0.0, grid)
    return Task(name, body, device, stream, after=tuple(after.split()), phase=phase, layer=layer)


def launched(name: str, seconds: float, *, launch_s: float = 1.0, after: str = "", thread: int = 0, **more) -> list[Task]:
    """A launch called `l.NAME` and the kernel that it launches."""
    return [host(f"l.{name}", launch_s, thread=thread), kernel(name, seconds, after=f"l.{name} {after}", **more)]


def recording(*tasks: Task | list[Task], steps: tuple[Step, ...] = ()) -> Replay:
    """A replay of these tasks, in issue order."""
    flat = [task for item in tasks for task in (item if isinstance(item, list) else [item])]
    lanes = dict.fromkeys(task.lane for task in flat)
    devices, memories = [], []
    for name in dict.fromkeys(device for device, _ in lanes):
        streams = sum(device == name for device, _ in lanes)
        devices.append(Device(name, "cpu" if name == "host" else "gpu", streams, {"fp32": 1e12}, f"memory of {name}"))
        memories.append(Memory(f"memory of {name}", 10**9, 1e12, 0))
    machine = Machine("recorded", tuple(devices), tuple(memories))
    return Replay(Plan("replay", (Segment(tuple(flat)),), {}, {}), machine, steps, ())


def rows(replay: Replay) -> list[tuple[str, float, float]]:
    """(task, start, end) of everything, in order of (start, issue)."""
    replay.plan.validate(replay.machine)
    return [(span.task, span.start_s, span.end_s) for span in simulate_replay(replay).spans]
