"""Builders of tiny recordings in which host threads launch kernels onto streams.

replay = recording(host("l1", 1.0), kernel("a", 3.0, after="l1"), host("l2", 1.0), kernel("b", 2.0, after="l2"))
"""

import random
from pathlib import Path

from simulator.machine.machine import Device, Machine, Memory
from simulator.plan.bodies.host import Host, Recorded
from simulator.plan.task import Task
from simulator.replay.build import build_replay
from simulator.replay.diagnosis import diagnose_steps, mean_of
from simulator.replay.ranks import read_ranks
from simulator.replay.replay import RecordedStep, Replay, Rows, simulate_replay
from traces.documents.replay_result import StepPart
from traces.documents.timeline import Timeline


def host(name: str, seconds: float, *, thread: int = 0, after: str = "", label: str = "cudaLaunchKernel") -> Task:
    """A recorded call on a host thread, or a gap between calls."""
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
    """Work on a stream. `called` is the name that the profiler recorded; default: `name`."""
    body = Recorded(called or name, category, seconds, 0.0, grid)
    return Task(name, body, device, stream, after=tuple(after.split()), phase=phase, layer=layer)


def launched(name: str, seconds: float, *, launch_s: float = 1.0, after: str = "", thread: int = 0, **settings) -> list[Task]:
    """A launch named `l.NAME` and the kernel that it launches."""
    return [host(f"l.{name}", launch_s, thread=thread), kernel(name, seconds, after=f"l.{name} {after}", **settings)]


def recording(*tasks: Task | list[Task], steps: tuple[RecordedStep, ...] = ()) -> Replay:
    """A replay of the tasks, in issue order."""
    flat = [task for item in tasks for task in (item if isinstance(item, list) else [item])]
    lanes = dict.fromkeys(task.lane for task in flat)
    devices, memories = [], []
    for name in dict.fromkeys(device for device, _ in lanes):
        streams = sum(device == name for device, _ in lanes)
        devices.append(Device(name, "cpu" if name == "host" else "gpu", streams, {"fp32": 1e12}, f"memory of {name}"))
        memories.append(Memory(f"memory of {name}", 10**9, 1e12, 0))
    machine = Machine("recorded", tuple(devices), tuple(memories))
    return Replay(Rows(flat), machine, steps, ())


def rows(replay: Replay) -> list[tuple[str, float, float]]:
    """(task, start, end) of every span, in order of (start, issue)."""
    replay.plan.validate(replay.machine)
    return [(span.task, span.start_s, span.end_s) for span in simulate_replay(replay).spans]


def random_recording(seed: int) -> Replay:
    """A random recording: a few steps of kernels of all categories on three streams, launched by two threads, with waits.

    Some calls launch several kernels, and the launches of some kernels are missing.
    """
    draw = random.Random(seed)
    tasks: list[Task] = []
    kernels: list[str] = []
    steps: list[RecordedStep] = []
    for number in range(draw.randint(1, 3)):
        first = len(kernels)
        for _ in range(draw.randint(1, 14)):
            name, thread = f"k{len(kernels)}", draw.randint(0, 1)
            category = draw.choice(("kernel", "kernel", "kernel", "collective", "memcpy"))
            called = draw.choice(("gemm", "elementwise_kernel<a>", "elementwise_kernel<b>", "multi_tensor_apply", "wgrad"))
            settings = {
                "called": draw.choice(("ncclAllReduce", "ncclSendRecv")) if category == "collective" else called,
                "stream": 20 if category == "collective" else draw.choice((7, 7, 8)),
                "phase": draw.choice(("forward", "backward", "update")) if seed % 2 else "forward",
                "grid": draw.choice((0, 20, 500)),
            }
            waits = " ".join(draw.sample(kernels[-6:], min(len(kernels), draw.randint(0, 2))))
            if draw.random() < 0.3:
                tasks.append(host(f"gap before {name}", draw.random(), thread=thread, label="gap"))
            launcher = next((task.name for task in reversed(tasks) if task.name.startswith("l.")), None)
            if launcher and draw.random() < 0.15:  # one call launches several kernels
                tasks.append(kernel(name, draw.random(), after=f"{launcher} {waits}", category=category, **settings))
            elif draw.random() < 0.1:  # the launch was not recorded
                tasks.append(kernel(name, draw.random(), after=waits, category=category, **settings))
            else:
                launch = {"launch_s": draw.random(), "thread": thread, "after": waits}
                tasks += launched(name, draw.random(), category=category, **launch, **settings)
            kernels.append(name)
            if draw.random() < 0.15:
                tasks.append(host(f"sync behind {name}", 0.1, thread=draw.randint(0, 1), after=draw.choice(kernels[-5:])))
        steps.append(RecordedStep(f"step {number}", kernels[first], kernels[-1], 1.0))
    return recording(*tasks, steps=tuple(steps))


def load_replay(*paths: Path | str) -> Replay:
    """The replay of one trace per rank."""
    return build_replay(read_ranks(paths)[0])


def diagnose(replay: Replay, timeline: Timeline) -> tuple[StepPart, ...]:
    """Every part of the mean step. `timeline`: the recording of `replay`, or its simulation."""
    return mean_of(diagnose_steps(replay, timeline))
