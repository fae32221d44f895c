"""A new kind of task is one body: plan checks, the cost model and the engine read everything they need from its members."""

from dataclasses import dataclass
from typing import Literal

import pytest

from simulator.engine.costs.model import CostModel
from simulator.engine.memory.release import owners
from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST, Link
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.check import PlanError
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, INPUT, TRANSFER, Body, Operand, Resource, Storage, Task, Value, Work
from tests.support.tiny import gpu, rows

BYTES_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class Quantize(Body):
    """Write the read with `bits` bits per element, in one kernel."""

    bits: int
    kind: Literal["quantize"] = "quantize"

    def key(self, task: Task) -> str:
        """Bits and elements."""
        return f"quantize.{self.bits}|{task.reads[0].elements}"

    def work(self, task: Task) -> Work:
        """One FLOP per element; the bytes of all operands."""
        moved = sum(operand.bytes for operand in (*task.reads, *task.writes))
        return Work("elementwise", float(task.reads[0].elements), float(moved))

    def blocks(self, task: Task) -> int:
        """One block per 8 elements."""
        return task.reads[0].elements // 8


@dataclass(frozen=True, slots=True)
class Offload(Body):
    """Move the reads to the host in `parts` messages, each with a header of 100 bytes."""

    device: str
    parts: int
    kind: Literal["offload"] = "offload"

    resource = Resource.LINK
    crosses_devices = True

    @property
    def ends(self) -> tuple[str, str]:
        """From the device to the host."""
        return self.device, HOST

    def moved_bytes(self, task: Task) -> int:
        """The reads and the headers."""
        return sum(operand.bytes for operand in task.reads) + 100 * self.parts

    def key(self, task: Task) -> str:
        """Device, bytes and parts."""
        return f"offload|{self.device}|{self.moved_bytes(task)}|{self.parts}"

    def work(self, task: Task) -> Work:
        """The bytes that the device reads."""
        return Work("copy", 0.0, float(self.moved_bytes(task)))

    def faults(self, task, values):
        """More than one read."""
        if len(task.reads) != 1:
            yield f"offloads {len(task.reads)} operands; expected 1"


def plan(reads: int = 1) -> Plan:
    """x is quantized to y, y is offloaded to the host; an op of another stream runs at the same time."""
    whole = Operand("x", (400,), (1,), "float32")
    packed = Operand("y", (400,), (1,), "uint8")
    there = Operand("z", (400,), (1,), "uint8")
    other = Operand("q", (400,), (1,), "float32")
    values = {
        "x": Value("x", (400,), (1,), "float32", "d", INPUT, "x"),
        "y": Value("y", (400,), (1,), "uint8", "d", ACTIVATION, "y"),
        "z": Value("z", (400,), (1,), "uint8", HOST, ACTIVATION, "z"),
        "q": Value("q", (400,), (1,), "float32", "d", ACTIVATION, "q"),
    }
    storages = {name: Storage(name, value.operand().bytes, value.device) for name, value in values.items()}
    tasks = (
        Task("quantize", Quantize(8), "d", reads=(whole,), writes=(packed,)),
        Task("other", OpCall("aten.relu.default"), "d", 1, reads=(whole,), writes=(other,)),
        Task("offload", Offload("d", 2), "d", 2, reads=(packed,) * reads, writes=(there,), phase=TRANSFER),
    )
    return Plan("new", tasks, values, storages)


MACHINE = gpu(links=(Link("d", HOST, 0.001, BYTES_PER_S),))


def test_the_plan_is_checked_by_the_body():
    plan().validate(MACHINE)
    with pytest.raises(PlanError, match="task 'offload' offloads 2 operands; expected 1"):
        plan(reads=2).validate(MACHINE)


def test_the_cost_model_measures_the_kernel_and_leaves_the_transfer_to_the_links():
    model = CostModel(MACHINE)
    quantize, _, offload = model.resolve(plan())
    assert quantize.grid == 50
    assert quantize.cold_s > 0
    assert offload.cold_s == 0
    assert [key.partition("|")[0] for key in model.missing(plan())] == ["quantize.8", "aten.relu.default"]


def test_the_engine_runs_it_on_sms_and_on_the_link():
    costs = CostModel(MACHINE).resolve(plan())
    timeline = simulate(plan(), MACHINE, costs, iterations=1)
    spans = {name: (start, end) for name, start, end in rows(timeline)}
    assert spans["offload"][0] == spans["quantize"][1]
    assert spans["offload"][1] - spans["offload"][0] == pytest.approx(0.001 + 600 / BYTES_PER_S)
    assert timeline.exposed_transfer_s == pytest.approx(spans["offload"][1] - max(spans["quantize"][1], spans["other"][1]))
    assert owners(plan()) == {}
