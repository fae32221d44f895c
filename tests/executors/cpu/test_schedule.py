"""Links at a stated rate between groups of cores."""

import pytest
import torch

from executors.cpu.backend import CpuBackend
from executors.cpu.schedule import EmulatedLinks, transfer_of
from simulator.machine.machine import Link, Machine
from simulator.machine.this_cpu import link_bytes_per_s, this_cpu
from simulator.plan.bodies.copy import Copy
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, INPUT, Operand, Storage, Task, Value
from tests.support.refusals import refuses
from traces.errors import Code

FORTH, BACK = ("cpu:0", "cpu:1"), ("cpu:1", "cpu:0")


def test_transfers_of_one_direction_follow_one_another():
    links = EmulatedLinks()
    links.send((0, 1), FORTH, 2.0, 0, now_s=10.0)
    links.send((0, 2), FORTH, 1.0, 0, now_s=10.5)
    links.send((0, 3), BACK, 1.0, 0, now_s=11.0)
    assert links.next_s == 12.0
    assert list(links.arrived(11.9)) == []
    assert list(links.arrived(12.5)) == [(12.0, (0, 1)), (12.0, (0, 3))]
    assert list(links.arrived(13.0)) == [(13.0, (0, 2))]


def test_the_most_urgent_transfer_is_next_and_does_not_interrupt_the_current_one():
    links = EmulatedLinks()
    links.send((0, 1), FORTH, 1.0, 0, now_s=0.0)
    links.send((0, 2), FORTH, 1.0, 0, now_s=0.1)
    links.send((0, 3), FORTH, 1.0, -1, now_s=0.2)
    assert list(links.arrived(5.0)) == [(1.0, (0, 1)), (2.0, (0, 3)), (3.0, (0, 2))]


def test_an_idle_link_starts_a_transfer_when_it_is_sent():
    links = EmulatedLinks()
    links.send((0, 1), FORTH, 1.0, 0, now_s=0.0)
    assert list(links.arrived(1.5)) == [(1.0, (0, 1))]
    links.send((0, 2), FORTH, 1.0, 0, now_s=4.0)
    assert list(links.arrived(9.0)) == [(5.0, (0, 2))]


@pytest.mark.parametrize(("link", "seconds"), [("copy:0.5", 4000 / 0.5e9), ("copy", None), ("alias", None)])
def test_only_stated_rates_take_time(link, seconds):
    operand = Operand("x", (1000,), (1,), "float32")
    task = Task("move", Copy(*FORTH, add=True, means="kernel"), "cpu:1", reads=(operand,), mutates=(operand,))
    transfer = transfer_of(task, Machine("pair", (), (), links=_links(link)))
    assert transfer == (None if seconds is None else (FORTH, seconds))


def _links(link):
    rate = link_bytes_per_s(link)
    return () if rate is None else (Link(*FORTH, 0.0, rate), Link(*BACK, 0.0, rate))


@pytest.mark.parametrize("link", ["copy:0", "copy:-1", "copy:fast", "wire", "copy:nan", ""])
def test_an_unknown_link_is_refused(link):
    with refuses(Code.REQUEST, "expected alias, copy, or copy:GB/s"):
        link_bytes_per_s(link)


def test_a_task_that_depends_on_a_transfer_starts_when_it_has_arrived():
    machine = this_cpu(cores=2, devices=2, link="copy:0.001")  # a kilobyte takes a millisecond
    size = 4 * 5000

    def value(name, device, kind):
        operand = Operand(name, (5000,), (1,), "float32")
        return Value(name, operand.shape, operand.strides, operand.dtype, device, kind, name, operand if kind == INPUT else None)

    values = [value("x", "cpu:0", INPUT), value("y", "cpu:1", ACTIVATION), value("z", "cpu:0", ACTIVATION)]
    forth, back = Copy(*FORTH, means="kernel"), Copy(*BACK, means="kernel")
    tasks = (
        Task("forth", forth, "cpu:1", reads=(values[0].operand(),), writes=(values[1].operand(),), phase="transfer"),
        Task("back", back, "cpu:0", reads=(values[1].operand(),), writes=(values[2].operand(),), phase="transfer"),
    )
    storages = {v.name: Storage(v.name, size, v.device) for v in values}
    plan = Plan("ping-pong", tasks, {v.name: v for v in values}, storages)
    plan.validate(machine)
    program = CpuBackend(machine).load(plan, {"x": torch.randn(5000)}, keep=("z",))
    times = sorted(program.run(1).times, key=lambda item: item.index)
    assert [item.index for item in times] == [0, 1]
    assert times[0].end_s - times[0].start_s >= size / 1e6
    assert times[1].start_s >= times[0].end_s
    assert torch.equal(program.kept["z"], program._inputs["x"])
