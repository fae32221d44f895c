"""The allocator's bytes by device: predicted by the rule of `simulator.engine.memory`, and measured while tasks run one at a time."""

import pytest
import torch

from executors.cpu import allocator
from executors.cpu.backend import CpuBackend, CpuExecutable
from executors.cpu.memory_watch import OTHER, MemoryWatch
from executors.tensors import job_tensors
from simulator.engine.costs.model import CostModel
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.bodies.copy import Copy
from simulator.plan.task import ACTIVATION, INPUT, PARAMETER, TRANSFER, Task
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from tests.support.small_plans import mm, plan_of, value

pytestmark = [
    pytest.mark.skipif(allocator.allocated_bytes() is None, reason="this C library's allocator has no count of its bytes"),
    pytest.mark.skipif(this_cpu().devices[0].sms < 2, reason="needs two cores"),
]
#: 1 MB of float32.
SIDE = 512
MB = SIDE * SIDE * 4


@pytest.fixture(scope="module")
def machine():
    return this_cpu(devices=2)


@pytest.fixture(scope="module")
def backend(machine):
    return CpuBackend(machine)


def across_two():
    """A plan with x and y on cpu:0, and with z, v and the parameter w on cpu:1."""
    x, y = value("x", (SIDE, SIDE), INPUT, "cpu:0"), value("y", (SIDE, SIDE), ACTIVATION, "cpu:0")
    w, z = value("w", (SIDE, SIDE), PARAMETER, "cpu:1"), value("z", (SIDE, SIDE), ACTIVATION, "cpu:1")
    v = value("v", (SIDE, SIDE), ACTIVATION, "cpu:1")
    send = Task("send", Copy("cpu:0", "cpu:1"), "cpu:0", reads=(y.operand(),), writes=(z.operand(),), phase=TRANSFER)
    return plan_of([mm("f", x, x, y), send, mm("g", z, w, v)], [x, y, w, z, v])


def test_bytes_are_attributed_to_the_device_that_holds_them(backend):
    tensors = {name: torch.randn(SIDE, SIDE) for name in ("x", "w")}
    peak = backend.peak_bytes(across_two(), tensors)
    assert list(peak) == ["cpu:0", "cpu:1"]
    assert peak["cpu:0"] == pytest.approx(2 * MB, rel=0.02), "x and y, without the result of the copy"
    assert peak["cpu:1"] == pytest.approx(3 * MB, rel=0.02), "w, z and v"


def test_all_bytes_of_the_allocator_are_attributed_to_a_place(backend):
    plan = across_two()
    program = CpuExecutable(backend, plan, {name: torch.randn(SIDE, SIDE) for name in ("x", "w")}, 0, ())
    program.watch = watch = MemoryWatch(plan, program.binding)
    counts = []
    original = watch.after_task

    def after_task(index):
        original(index)
        counts.append((allocator.allocated_bytes(), sum(watch.held_bytes.values()), watch.held_bytes[OTHER]))

    watch.after_task = after_task
    program.run(3)
    offsets = [allocated - held for allocated, held, _ in counts[3:]]
    assert max(offsets) == min(offsets), "the sum over places changes exactly as the allocator's count does"
    assert max(abs(other) for _, _, other in counts[3:]) < 0.1 * MB


@pytest.mark.sampled(4)
@pytest.mark.parametrize("update", ["baseline", "forward-fusion", "backward-fusion", "asynchronous"])
@pytest.mark.parametrize("overlap", ["on", "off"])
def test_predicted_bytes_are_measured_on_every_device(machine, backend, update, overlap):
    job = Job("lenet5", 64)
    tensors = job_tensors(job, job.build(), job.graph())
    strategy, options = strategies.parse(f"data-parallel:update={update},overlap={overlap}", {})
    model = CostModel(machine, None)
    predicted = forecast(strategy.plan(job, machine, model, options), Target(machine, model))
    measured = backend.peak_bytes(predicted.plan, tensors, job.seed)
    assert list(measured) == ["cpu:0", "cpu:1"]
    for device, peak in measured.items():
        assert predicted.peak_bytes[device] == pytest.approx(peak, rel=0.1)
    assert predicted.measured_as(measured) == predicted.peak_bytes


def test_what_backward_fusion_frees_of_the_gradients_of_shards_is_measured(machine, backend):
    job, model = Job("lenet5", 64, optimizer="adam"), CostModel(machine, None)
    tensors = job_tensors(job, job.build(), job.graph())
    peaks = []
    for text in ("fsdp", "fsdp:update=backward-fusion"):
        strategy, options = strategies.parse(text)
        predicted = forecast(strategy.plan(job, machine, model, options), Target(machine, model))
        peaks.append((predicted.peak_bytes, backend.peak_bytes(predicted.plan, tensors, job.seed)))
    for device in machine.devices:
        predicted_bytes, measured_bytes = (before[device.name] - after[device.name] for before, after in zip(*peaks, strict=True))
        assert 0 < measured_bytes == pytest.approx(predicted_bytes, rel=0.1)
