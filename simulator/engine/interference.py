"""Interference runs as the engine models them: how kernels on two lanes slow each other down."""

from collections.abc import Sequence
from dataclasses import replace

from simulator.engine.costs.cost import Cost
from simulator.engine.simulation import simulate
from simulator.machine.machine import Device, Machine
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.plan import Plan
from simulator.plan.task import Operand, Storage, Task, Value


def modeled_slow_downs(
    first: Sequence[Cost], second: Sequence[Cost], device: Device, machine: Machine, priority: int = 0
) -> tuple[float, float]:
    """How many times longer each of two lanes of kernels takes when both run, by SMs, bandwidth and the interpreter alone.

    The kernels of a lane run one after another on `device` of `machine`, and both lanes start at the same time. Nothing else takes time.
    On a CPU each lane has a core. `priority`: of the first lane; the second has 0.
    """
    sms = max(2, device.sms) if device.kind == "cpu" else device.sms
    bare = replace(device, sms=sms, task_overhead_s=0.0, wake_s=0.0)
    bare_machine = Machine("interference", (bare,), (machine.memory(device.name),))
    value = Value("x", (1,), (1,), dtype="float32", device=device.name, kind="input")
    read = (Operand("x", (1,), (1,), "float32"),)
    body = OpCall("aten.any.default")
    lanes = (first, second)
    tasks = [
        Task(f"{lane}.{i}", body, device.name, lane, own, reads=read)
        for lane, (costs, own) in enumerate(zip(lanes, (priority, 0), strict=True))
        for i in range(len(costs))
    ]
    plan = Plan("interference", tuple(tasks), {"x": value}, {"x": Storage("x", 4, device.name)})
    timeline = simulate(plan, bare_machine, [*first, *second], iterations=1, use_cache=False)
    ends = {lane: max(span.end_s for span in timeline.spans if span.lane == f"stream {lane}") for lane in (0, 1)}
    return ends[0] / sum(cost.cold_s for cost in first), ends[1] / sum(cost.cold_s for cost in second)
