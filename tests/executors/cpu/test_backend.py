"""The CPU executor on hand-made plans: streams, priorities, hazards, lifetimes and failures."""

import threading
import weakref
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from executors.cpu.backend import CpuBackend
from executors.cpu.schedule import Schedule
from executors.kernels.registry import handlers
from executors.program import WARM_UP, TaskFailedError
from executors.run import execute
from executors.tensors import job_tensors
from simulator.machine.machine import Device, Machine, Memory
from simulator.model.job import Job
from simulator.plan.bodies.host import Host
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.dependencies import Dependencies
from simulator.plan.task import ACTIVATION, INPUT, PARAMETER, UPDATE, Task
from tests.support import mlp
from tests.support.jobs import planned
from tests.support.small_plans import mm, plan_of, sgd, value

CPU = "cpu:0"
UNARY = '[{"$":0}]'


def tensor(name: str, kind: str = ACTIVATION, shape: tuple[int, ...] = (3, 3)):
    plain = value(name, shape, kind, CPU)
    return replace(plain, source=plain.operand()) if kind == PARAMETER else plain


def host(name: str, **more) -> Task:
    """A task without operands. Tests replace its kernel by the fixture `kernel`."""
    return Task(name, Host(0.0), CPU, **more)


def relu(name: str, source, target, **more) -> Task:
    return Task(name, OpCall("aten.relu.default", UNARY), CPU, reads=(source.operand(),), writes=(target.operand(),), **more)


@pytest.fixture
def kernel(monkeypatch):
    """A function that replaces the kernel of host tasks by `function(task, binding, instance)`."""

    def replace_kernel(function) -> None:
        monkeypatch.setitem(handlers(), "host", lambda task, binding: lambda instance: function(task, binding, instance))

    return replace_kernel


@pytest.fixture(scope="module")
def one_core():
    """A backend with a single worker."""
    memory = Memory("ram", 8 << 30, 2e10, 32 << 20)
    return CpuBackend(Machine("one-core", (Device(CPU, "cpu", 1, {"fp32": 1e11}, "ram"),), (memory,)))


def test_two_streams_run_at_the_same_time(backend, kernel):
    barrier = threading.Barrier(2)
    kernel(lambda task, binding, instance: barrier.wait(timeout=60))  # each task waits until the other one runs
    plan = plan_of([host("a", stream=0), host("b", stream=1)], [])
    times = backend.load(plan, {}).run(3).times
    assert len(times) == 6
    for period in range(3):
        a, b = sorted((item for item in times if item.period == period), key=lambda item: item.index)
        assert a.core != b.core
        assert a.start_s < b.end_s
        assert b.start_s < a.end_s


@pytest.mark.parametrize(
    ("urgent", "order"), [(0, ["first", "b", "a", "last"]), (5, ["first", "a", "b", "last"]), (9, ["first", "a", "b", "last"])]
)
def test_the_most_urgent_ready_head_is_taken_first(one_core, kernel, urgent, order):
    ran = []
    kernel(lambda task, binding, instance: ran.append(task.name))
    a, b = host("a", stream=0, priority=5, after=("first",)), host("b", stream=1, priority=urgent, after=("first",))
    plan = plan_of([host("first"), a, b, host("last", stream=1, after=("a", "b"))], [])
    program = one_core.load(plan, {})
    for _ in range(2):  # one period at a time, since the first task of a period could start before the last one of the period before
        program.run(1)
    assert ran == order * 2


def test_streams_keep_their_order_and_hazards_across_periods(backend):
    """w is read, updated on another stream, and read again. Twenty periods give the numbers of the sequential program."""
    x, w, g = tensor("x", INPUT), tensor("w", PARAMETER), tensor("g", INPUT)
    before, after = tensor("before"), tensor("after")
    plan = plan_of([mm("old", x, w, before), sgd("update", w, g, stream=1), mm("new", x, w, after, stream=0)], [x, w, g, before, after])
    tensors = {name: torch.rand(3, 3) for name in "xwg"}
    program = backend.load(plan, tensors, keep=("before", "after"))
    times = program.run(20).times
    expected = tensors["w"].clone()
    for _ in range(20):
        old, expected = expected, expected - 0.1 * tensors["g"]
    torch.testing.assert_close(program.kept["before"], tensors["x"] @ old)
    torch.testing.assert_close(program.kept["after"], tensors["x"] @ expected)
    torch.testing.assert_close(program.binding.carried["w"], expected)
    in_order = sorted(times, key=lambda item: (item.period, item.index))
    assert all(early.end_s <= late.start_s for early, late in pairwise(in_order))


def test_values_live_from_their_writer_to_their_last_reader(backend, kernel):
    alive, references = [], {}

    def probe(task, binding, instance) -> None:
        names = {name for name, slot in binding.slot.items() if instance.slots[slot] is not None}
        alive.append((task.name, names))
        references.update({name: weakref.ref(instance.slots[binding.slot[name]]) for name in names - {"x"}})

    kernel(probe)
    x, h, y, z = tensor("x", INPUT), tensor("h"), tensor("y"), tensor("z")
    tasks = [host("0"), relu("a", x, h), host("1"), relu("b", h, y), host("2"), relu("c", y, z), host("3")]
    program = backend.load(plan_of(tasks, [x, h, y, z]), {"x": torch.rand(3, 3)})
    program.run(1)
    assert alive == [("0", {"x"}), ("1", {"h"}), ("2", {"y"}), ("3", set())]
    assert sorted(references) == ["h", "y"]
    assert all(reference() is None for reference in references.values())
    kept = backend.load(plan_of(tasks, [x, h, y, z]), {"x": torch.rand(3, 3)}, keep=("h",))
    kept.run(2)
    assert list(kept.kept) == ["h"]
    assert references["h"]() is kept.kept["h"]
    assert references["y"]() is None


def job_and_plan(strategy: str, machine, factory: str = "make", **fields):
    """(job, plan, tensors) of a model with a batch of 4 samples."""
    job = Job(f"{mlp.__file__}:{factory}", 4, **fields)
    return job, planned(strategy, job, machine), job_tensors(job, job.build(), job.graph())


def test_every_iteration_reports_its_own_loss(two_cores, backend):
    job, plan, tensors = job_and_plan("baseline", two_cores)
    program = backend.load(plan, tensors, job.seed)
    inputs = [{"input:0": torch.full((4, 4), float(i)), "target:0": tensors["target:0"]} for i in range(4)]
    program.run(4, inputs)
    assert sorted(program.losses) == [0, 1, 2, 3]
    repeated = backend.load(plan, tensors, job.seed)
    for i in range(4):
        repeated.run(1, [inputs[i]])
    assert [float(repeated.losses[i][0]) for i in range(4)] == [float(program.losses[i][0]) for i in range(4)]


def test_sync_drains_and_the_next_step_starts_a_new_prologue(two_cores, backend):
    job, plan, tensors = job_and_plan("forward-fusion", two_cores)
    updates = [index for index, task in enumerate(plan.tasks) if task.phase == UPDATE]
    program = backend.load(plan, tensors, job.seed)

    def ran(times, period: int) -> list[int]:
        return [item.index for item in times if item.period == period]

    others = [index for index in range(len(plan.tasks)) if index not in updates]
    times = program.run(2).times
    assert ran(times, 0) == others
    assert ran(times, 1) == list(range(len(plan.tasks)))
    assert [item.index for item in program.sync().times] == updates
    assert program.sync().times == ()
    assert program.iterations == 2
    assert ran(program.run(1).times, 0) == others
    program.sync()
    base_job, base_plan, base_tensors = job_and_plan("baseline", two_cores)
    base = backend.load(base_plan, base_tensors, base_job.seed)
    base.run(3)
    assert [len(program.losses), len(base.losses)] == [3, 3]
    for name in plan.gradients:
        torch.testing.assert_close(program.binding.carried[name], base.binding.carried[name])


def test_dropout_masks_do_not_depend_on_the_strategy(two_cores, backend):
    losses = []
    for strategy in ("baseline", "forward-fusion", "backward-fusion", "backward-fusion:update_stream=on", "turbodl"):
        job, plan, tensors = job_and_plan(strategy, two_cores, "dropout", precision="fp64")
        losses.append(execute(plan, tensors, backend, 5, seed=job.seed).losses)
    assert len(set(losses[0])) == 5
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], abs=1e-12)
    assert execute(plan, tensors, backend, 5, seed=1).losses != losses[0]


@pytest.mark.parametrize("stream", [0, 1])
def test_a_task_that_raises_is_named_and_the_backend_goes_on(backend, stream):
    x, w, y, z = tensor("x", INPUT), tensor("w", PARAMETER), tensor("y"), tensor("z")
    plan = plan_of([relu("first", x, z), mm("product", x, w, y, stream=stream, layer="head")], [x, w, y, z])
    bad = backend.load(plan, {"x": torch.rand(3, 5), "w": torch.rand(3, 3)})
    with pytest.raises(TaskFailedError, match="task product in layer 'head' failed: RuntimeError: mat1 and mat2"):
        bad.run(3)
    good = backend.load(plan, {"x": torch.rand(3, 3), "w": torch.rand(3, 3)}, keep=("y",))
    assert len(good.run(3).times) == 6
    assert good.kept["y"].shape == (3, 3)


def test_running_out_of_memory_is_not_reported_as_a_failed_task(backend, kernel):
    def starve(task, binding, instance) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 byte")

    kernel(starve)
    with pytest.raises(RuntimeError, match="not enough memory") as caught:
        backend.load(plan_of([host("a")], []), {}).run(1)
    assert not isinstance(caught.value, TaskFailedError)


def test_execute(two_cores, backend):
    job, plan, tensors = job_and_plan("backward-fusion", two_cores)
    before = {name: item.clone() for name, item in tensors.items()}
    gradient = plan.gradients["0.weight"].value
    done = execute(plan, tensors, backend, steps=8, keep=(gradient,), seed=job.seed)
    assert len(done.losses) == 8
    assert done.losses[-1] < done.losses[0]
    assert len(done.step_s) == 8 - WARM_UP
    assert done.timeline.kind == "measured"
    assert done.timeline.step_s == sorted(done.step_s)[len(done.step_s) // 2]
    assert len(done.timeline.spans) == 8 * len(plan.tasks)
    assert min(span.start_s for span in done.timeline.spans) == 0.0
    assert {span.task for span in done.timeline.window()} == {task.name for task in plan.tasks}
    assert list(done.kept) == [gradient]
    assert set(plan.gradients) <= set(done.tensors)
    assert all(peak > 0 for peak in done.peak_bytes.values())
    assert all(torch.equal(tensors[name], item) for name, item in before.items())  # copies were trained
    assert not torch.equal(done.tensors["0.weight"], before["0.weight"])
    assert len(execute(plan, tensors, backend, steps=2).step_s) == 1


def test_a_worker_that_is_running_when_another_fails_ends_after_its_entry():
    """It neither waits forever nor continues with its lane."""
    plan = plan_of([host("a"), host("b", stream=1), host("c")], [])
    schedule = Schedule(plan.tasks, Dependencies(plan), [(0, 0), (0, 1), (0, 2)], None)
    running = [schedule.first(CPU) for _ in range(2)]
    schedule.stop()
    ended = []
    for entry in running:
        worker = threading.Thread(target=lambda entry=entry: ended.append(schedule.advance(entry, CPU, lambda _: None)), daemon=True)
        worker.start()
        worker.join(10)
    assert ended == [None, None]
