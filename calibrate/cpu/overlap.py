"""What a task costs more because another core of its device is at work too.

Both threads run Python between their ops and share its lock: who gives it up for an op has to wait for it afterwards. Tasks without an op
do not show that, and tasks of many milliseconds hardly feel it, so it is measured on short ones.
"""

import statistics
from itertools import pairwise

import torch

from executors.cpu.backend import CpuBackend
from executors.run import Executable
from simulator.bodies.opcall import OpCall
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, PARAMETER, Operand, Segment, Storage, Task, Value
from traces.profile import Stats

#: Ops per lane, elements of each (some 60 us on one core), and runs of either kind.
_OPS, _ELEMENTS, _RUNS = 200, 20_000, 9


def shared_overhead_s(backend: CpuBackend, device: str) -> float:
    """Seconds between two tasks: of a lane of short ops beside another such lane, less those of the lane alone.

    Medians of interleaved runs. That ops themselves take longer beside others is what co-runs say.
    """
    programs = {lanes: _program(backend, device, lanes) for lanes in (1, 2)}
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(_RUNS):
        for lanes, program in programs.items():
            found[lanes].append(_gap_s(program))
    return max(0.0, statistics.median(found[2]) - statistics.median(found[1]))


def _program(backend: CpuBackend, device: str, lanes: int) -> Executable:
    values = {f"x{lane}": _value(f"x{lane}", device, PARAMETER) for lane in range(lanes)}
    tasks = []
    for number in range(_OPS):  # in turns, as lanes of a step are issued; lane 0 has the even places
        for lane in range(lanes):
            name = f"tanh{number}.{lane}"
            values[name] = _value(name, device, ACTIVATION)
            body = OpCall("aten.tanh.default", '[{"$":0}]')
            tasks.append(Task(name, body, device, lane, reads=(values[f"x{lane}"].operand(),), writes=(values[name].operand(),)))
    storages = {name: Storage(name, 4 * _ELEMENTS, device) for name in values}
    tensors = {f"x{lane}": torch.randn(_ELEMENTS) for lane in range(lanes)}
    program = backend.load(Plan("side-by-side", (Segment(tuple(tasks)),), values, storages), tensors)
    program.run(1)
    return program


def _value(name: str, device: str, kind: str) -> Value:
    operand = Operand(name, (_ELEMENTS,), (1,), "float32")
    return Value(name, operand.shape, operand.strides, operand.dtype, device, kind, name, operand if kind == PARAMETER else None)


def _gap_s(program: Executable) -> float:
    """Of lane 0: from the end of a task to the start of the next, without anchors; winsorised mean, since a lane has many."""
    lane = [item for item in program.run(1).times if program.binding.plan.tasks[item.index].stream == 0]
    return Stats.of([after.start_s - after.anchor_s - before.end_s for before, after in pairwise(lane)]).mean_s
