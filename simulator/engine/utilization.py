"""MFU: the share of the peak FLOP/s of a step's GPUs, by their data sheets, that its matrix products and convolutions use.

The seconds that their FLOPs take at the peak of their precision, over those of the step. FLOPs are those that the step computes: forward,
backward and what checkpointing computes again, two per multiplication and addition; causal masks, and algorithms with fewer of them, save
nothing. So the definition is the same for recorded and for predicted steps.
"""

import math

from simulator.engine.costs.efficiencies import DENSE, precision_of
from simulator.engine.costs.site import figure
from simulator.machine.machine import Device, Machine
from simulator.plan.bodies.op_class import WITH_PRODUCTS
from simulator.plan.plan import Plan
from simulator.plan.task import Task

#: How the profiler's names of eight-bit types begin. Tensor cores that know them are twice as fast with them as with sixteen bits.
_FP8 = "c10::Float8"


def seconds_at_peak(device: Device, flops: float, precision: str) -> float:
    """Seconds of FLOPs at the peak of a precision that the device's data sheet states; 0 if the device does not know the precision."""
    if precision.startswith(_FP8):
        return flops / (2 * device.peak_flops["bf16"] if "bf16" in device.peak_flops else math.inf)
    return flops / figure(device.peak_flops, precision)


def mfu(at_peak_s: float, step_s: float, devices: int = 1) -> float | None:
    """The MFU of a step that takes `step_s` seconds on `devices` devices, whose FLOPs take `at_peak_s` on one; None if it has none."""
    return at_peak_s / (step_s * devices) if at_peak_s > 0 and step_s > 0 else None


def planned_mfu(plan: Plan, machine: Machine, step_s: float, float32: str) -> float | None:
    """The MFU of a plan whose step takes `step_s` seconds; None on a CPU, whose peak is in no data sheet.

    `float32`: the precision that dense kernels use on float32 operands, as in `efficiencies.float32_precision`.
    """
    devices = {name: (machine.rated or machine).device(name) for name in plan.devices}
    if any(device.kind != "gpu" for device in devices.values()):
        return None
    counts = [part.iterations or 1 for part in plan.sequence]
    known: dict[tuple[str, str], float] = {}  # tasks of one key do the same work
    seconds = 0.0
    for count, part in zip(counts, plan.sequence, strict=True):
        for task, key, runs in zip(part.tasks, part.body_keys, part.runs, strict=True):
            if (task.device, key) not in known:
                known[task.device, key] = _at_peak_s(task, devices[task.device], float32)
            seconds += count * runs * known[task.device, key]
    return mfu(seconds / sum(counts), step_s, len(devices))


def _at_peak_s(task: Task, device: Device, float32: str) -> float:
    seconds = 0.0
    for part in task.body.inner_ops or (task,):
        work = part.body.work(part)
        if work.op_class in DENSE | WITH_PRODUCTS:
            seconds += seconds_at_peak(device, work.flops, precision_of(part, work.op_class, float32))
    return seconds
