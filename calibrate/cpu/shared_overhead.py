"""The extra overhead of a task while another core of its device is at work.

Both worker threads run Python between their ops and share its lock: a thread that gives up the lock for an op has to wait for it
afterwards. Tasks without an op do not show this cost, and tasks of many milliseconds hardly do, so it is measured on short ops.
"""

import statistics
from itertools import pairwise

import torch

from executors.cpu.backend import CpuBackend
from executors.run import Executable
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, PARAMETER, Operand, Segment, Storage, Task, Value
from traces.documents.profile import Stats

#: Ops per lane, elements of each op (about 60 us on one core), and runs with one lane and with two.
_OPS, _ELEMENTS, _RUNS = 200, 20_000, 9


def shared_overhead_s(backend: CpuBackend, device: str) -> float:
    """Seconds by which the gap between two short ops of a lane grows while a second such lane runs; at least 0.

    This is the difference of two medians over interleaved runs. That the ops themselves take longer is measured by co-runs instead.
    """
    programs = {lanes: _program(backend, device, lanes) for lanes in (1, 2)}
    gaps_s: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(_RUNS):
        for lanes, program in programs.items():
            gaps_s[lanes].append(_gap_s(program))
    return max(0.0, statistics.median(gaps_s[2]) - statistics.median(gaps_s[1]))


def _program(backend: CpuBackend, device: str, lanes: int) -> Executable:
    """A program with `lanes` lanes of short ops that has run once."""
    values = {f"x{lane}": _value(f"x{lane}", device, PARAMETER) for lane in range(lanes)}
    tasks = []
    for number in range(_OPS):  # the lanes alternate, as in the issue order of a step
        for lane in range(lanes):
            name = f"tanh{number}.{lane}"
            values[name] = _value(name, device, ACTIVATION)
            body = OpCall("aten.tanh.default", '[{"$":0}]')
            tasks.append(Task(name, body, device, lane, reads=(values[f"x{lane}"].operand(),), writes=(values[name].operand(),)))
    storages = {name: Storage(name, 4 * _ELEMENTS, device) for name in values}
    tensors = {f"x{lane}": torch.randn(_ELEMENTS) for lane in range(lanes)}
    program = backend.load(Plan("shared-overhead", (Segment(tuple(tasks)),), values, storages), tensors)
    program.run(1)
    return program


def _value(name: str, device: str, kind: str) -> Value:
    operand = Operand(name, (_ELEMENTS,), (1,), "float32")
    return Value(name, operand.shape, operand.strides, operand.dtype, device, kind, name, operand if kind == PARAMETER else None)


def _gap_s(program: Executable) -> float:
    """Winsorized mean seconds from the end of a task to the start of the next on lane 0, without anchors."""
    lane = [item for item in program.run(1).times if program.binding.plan.tasks[item.index].stream == 0]
    return Stats.of([after.start_s - after.anchor_s - before.end_s for before, after in pairwise(lane)]).mean_s
