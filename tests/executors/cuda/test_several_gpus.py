"""Plans over several GPUs of one process: numbers, where streams are opened, what waits for what, one clock, memory by GPU.

The simulated GPUs fail a test that uses another GPU's memory without a copy, whose streams race, or whose tensors are freed too early.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from calibrate.numerics import References, compare, steps_to_compare
from executors.cpu.backend import CpuBackend
from executors.cuda.issue import Issuer
from executors.cuda.program import EagerProgram, Site
from executors.run import execute
from executors.tensors import job_tensors
from simulator.engine.memory.release import Releases
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from tests.fake_gpu import FakeGpuError, FakeGpus, Times
from tests.support.jobs import MLP, job_of, planned
from tests.support.places import SUPPORT
from tests.support.refusals import refuses
from tests.support.several_gpus import backend_on, several_gpus
from traces.errors import Code

US = 1e-6

#: LeNet-5's layers divided by images, channels, height and width.
DIVIDED = f"deepa:config={SUPPORT}/lenet5_mix.json"
#: What divides a step among devices, on so many of them; "chain" has layers enough for pipelines of four stages.
STRATEGIES = [
    (2, "data-parallel"), (2, "data-parallel:bucket=0,overlap=off"), (4, "data-parallel:algorithm=tree"),
    (4, "data-parallel:server=distributed,fetch=off"), (2, "data-parallel:update=forward-fusion,bucket=0"),
    (2, "data-parallel:update=backward-fusion,bucket=0,priorities=on"), (2, "data-parallel:update=asynchronous"),
    (2, "model-parallel"), (2, "gpipe"), (4, "1f1b"), (2, "interleaved-1f1b"), (2, "zero-bubble"), (4, "zero-bubble:shape=v"),
    (2, "pipedream"), (2, "pipedream-2bw"), (4, "stale-pipeline"), (2, "hybrid-pipeline"), (2, "stale-pipeline:sends=staged"),
    (4, "1f1b:stages=2,replicas=2"), (4, "1f1b:stages=2,replicas=2,shard=1"),
    (2, "owt"), (4, "owt:server=distributed"), (2, DIVIDED), (2, "fsdp"), (4, "fsdp:shard=1"), (4, "fsdp:shard=2,hybrid=2"),
]  # fmt: skip


def job_for(text: str, **fields) -> Job:
    """A job that the strategy can divide, in double precision."""
    if text == DIVIDED:
        return Job("lenet5", 8, precision="fp64", **fields)
    pipeline = "pipe" in text or "1f1b" in text or "zero-bubble" in text
    return job_of("chain", 8, **fields) if pipeline else Job(MLP, 8, precision="fp64", **fields)


#: The first of four stages works further behind than a graph is long, and the host does not wait within a graph.
NO_GRAPH = ("stale-pipeline", "stale-pipeline:sends=staged")
each_strategy = pytest.mark.parametrize(("count", "text"), STRATEGIES, ids=lambda value: Path(str(value)).stem)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mode", ["eager", "graph"])
@each_strategy
def test_numbers_equal_plain_pytorch(count, text, mode):
    """In graphs: three eager steps, two graphs of four steps, which contain the work of all GPUs, and the drain."""
    if mode == "graph" and text in NO_GRAPH:
        return
    machine, job = several_gpus(count), job_for(text, optimizer="adam")
    built, plan = job.build(), planned(text, job, machine)
    plan.validate(machine)
    with FakeGpus(count) as gpus:
        backend = backend_on(gpus, machine, mode)
        assert backend.mode == mode
        steps = steps_to_compare(backend)
        numerics = compare(job, built, plan, backend, References(job, built, steps, backend).of(plan), steps)
    assert numerics.equal("fp64"), numerics


def test_numbers_equal_the_cpu_backends_bit_for_bit():
    """Sums over devices have one order, wherever they run: in a ring each chunk's, in a tree that of its levels."""
    job = Job(MLP, 8, precision="fp64", optimizer="sgd")
    tensors = job_tensors(job, job.build(), job.graph())
    for text in ("data-parallel:bucket=0", "data-parallel:algorithm=tree", "data-parallel:server=distributed", "fsdp", "owt"):
        on_cpu, on_gpus = this_cpu(cores=2, devices=2, link="copy:1"), several_gpus(2)
        expected = execute(planned(text, job, on_cpu), tensors, CpuBackend(on_cpu), 6)
        with FakeGpus(2) as gpus:
            done = execute(planned(text, job, on_gpus), tensors, backend_on(gpus, on_gpus), 6)
        assert done.losses == expected.losses
        actual = {name.replace("cuda", "cpu"): tensor for name, tensor in done.tensors.items()}
        assert actual.keys() == expected.tensors.keys()
        assert all(torch.equal(actual[name], tensor) for name, tensor in expected.tensors.items()), text


def loaded(gpus, text: str, count: int = 2, job: Job | None = None) -> EagerProgram:
    """The program of a strategy on these GPUs."""
    job, machine = job or job_for(text), several_gpus(count)
    return backend_on(gpus, machine).load(planned(text, job, machine), job_tensors(job, job.build(), job.graph()), job.seed)


def test_a_lanes_stream_is_on_the_gpu_that_receives_what_it_sends():
    """So memory comes from a pool that only this lane uses. The copy itself runs on a stream of the sender that is the lane's alone."""
    with FakeGpus(2) as gpus:
        program = loaded(gpus, "1f1b")
        program.run(2)
        arrived = {
            gpus[0].memories.find(instance.slots[program.binding.slot[operand.value]]).owner
            for instance in program._instances.values()
            for task in program.plan.tasks
            if task.body.ends == ("cuda:0", "cuda:1")
            for operand in task.writes
            if instance.slots[program.binding.slot[operand.value]] is not None
        }
        program.sync()
    number = {lane: stream.gpu.number for lane, stream in program._streams.items()}
    assert number == {("cuda:0", 0): 0, ("cuda:0", 2): 1, ("cuda:1", 0): 1, ("cuda:1", 1): 0}
    assert arrived <= {program._streams["cuda:0", 2].index}
    sends = {task.name: task.lane for task in program.plan.tasks if task.body.is_copy and "host" not in task.body.ends}
    assert program._companions.keys() == sends.keys()
    for name, lane in sends.items():
        assert program._companions[name].gpu.number == 1 - number[lane]
    on = {stream.index for stream in program._companions.values()}
    assert {run.op for run in gpus[0].timeline if run.stream in on} == {"aten._to_copy"}


def test_a_wait_that_is_left_out_between_two_gpus_is_noticed(monkeypatch):
    monkeypatch.setattr(Issuer, "_wait", lambda *_: None)
    with pytest.raises(AssertionError, match=r"read after write: .*aten._to_copy"), FakeGpus(2) as gpus:
        loaded(gpus, "model-parallel").run(3)


def test_a_send_on_a_stream_that_computes_too_is_noticed(monkeypatch):
    """Without companions, copies run on whichever stream is the sender's current one, and their results belong to one of the receiver."""
    monkeypatch.setattr(Site, "companions", lambda *_: {})
    monkeypatch.setattr(Site, "_arrival", lambda *_: None)
    with pytest.raises(AssertionError, match="races on the simulated GPU"), FakeGpus(2) as gpus:
        loaded(gpus, "1f1b").run(6)


def test_memory_that_is_freed_at_its_last_reader_is_noticed(monkeypatch):
    """The lane that received it may not have waited for the reader yet, and would overwrite it with the next value that arrives."""

    def at_last_readers(plan, dependencies):
        last = {plan.storage_of(o): index for index, task in enumerate(plan.tasks) for o in task.inputs}
        kept = plan.carried | {plan.storage_of(plan.values[name].operand()) for name in plan.losses}
        steady = [tuple((name, 0) for name, at in last.items() if at == index and name not in kept) for index in range(len(plan.tasks))]
        return Releases({}, tuple(steady), 0, frozenset())

    monkeypatch.setattr("executors.cuda.issue.releases", at_last_readers)
    with pytest.raises(AssertionError, match=r"reuse: .*, released on stream"), FakeGpus(2) as gpus:
        loaded(gpus, "model-parallel").run(3)


def test_what_is_added_arrives_first():
    """A kernel that adds what is on another GPU cannot run. `over_links` has replaced every one in plans."""
    machine = several_gpus(2)
    plan = planned("data-parallel", Job(MLP, 8), machine)
    added = next(task for task in plan.tasks if task.body.is_copy and task.body.add)
    arrival = next(task for task in plan.tasks if task.name == f"{added.name}#")
    assert (added.body.ends, arrival.body.ends) == (("cuda:0", "cuda:0"), ("cuda:1", "cuda:0"))
    one = replace(added, body=replace(arrival.body, add=True), reads=arrival.reads, name="add what is elsewhere")
    tasks = tuple(one if task is added else task for task in plan.tasks if task is not arrival)
    broken = replace(plan, tasks=tasks)
    job = Job(MLP, 8)
    with FakeGpus(2) as gpus, pytest.raises(Exception, match=r"add what is elsewhere.*memory of GPUs \[0, 1\], and runs on one") as failed:
        backend_on(gpus, machine).load(broken, job_tensors(job, job.build(), job.graph())).run(1)
    assert isinstance(failed.value.__cause__, FakeGpuError)


def test_the_times_of_all_gpus_are_on_one_clock():
    """A task of the second stage starts when what it waits for has arrived: times of two GPUs would differ by what lies between origins."""
    times = Times(kernel_s=lambda op, size: 50 * US, op_s=1 * US, record_s=3 * US, wait_s=0.5 * US, peer_latency_s=20 * US)
    with FakeGpus(2, times) as gpus:
        program = loaded(gpus, "model-parallel")
        measured = {item.index: item for item in program.trace() if item.period == program.plan.largest_lag}
    names = [task.name for task in program.plan.tasks]
    sent = names.index(next(name for name in names if name.startswith("send")))
    before, after = (measured[at] for at in (sent - 1, sent + 1))
    send = measured[sent]
    assert all(item.end_s > item.start_s for item in measured.values())
    assert send.start_s == pytest.approx(before.end_s, abs=0.1 * US)
    assert (send.end_s - send.start_s, after.start_s - send.end_s) == pytest.approx((20 * US, 0.0), abs=0.1 * US)


def test_one_graph_has_the_work_of_all_gpus():
    """The host launches a graph of four steps. Copies between GPUs are nodes of it."""
    machine, job = several_gpus(2), Job(MLP, 8)
    plan = planned("data-parallel", job, machine)
    with FakeGpus(2, Times(replay_s=7 * US, op_s=0.0, record_s=0.0, wait_s=0.0, view_s=0.0)) as gpus:
        program = backend_on(gpus, machine, "graph").load(plan, job_tensors(job, job.build(), job.graph()))
        program.run(3 + 4)
        issued = gpus[0].now_s()
        program.driver.use(program._main_stream)
        program._graph.replay()
        assert gpus[0].now_s() == pytest.approx(issued + 7 * US)
        program._synchronize()
        nodes = [node for node in program._graph.nodes if node.work is not None]
    assert {node.stream.gpu.number for node in nodes} == {0, 1}
    sent = sum(len(task.reads) for task in plan.tasks if task.body.is_copy and "host" not in task.body.ends and task.body.means == "link")
    assert sum(node.work.route is not None for node in nodes) == 4 * sent > 0


@pytest.mark.parametrize("text", ["data-parallel", "gpipe", "data-parallel:update=forward-fusion"])
def test_graphs_over_several_gpus_are_fed_new_data(text):
    """Over prologue, graphs, remainders and drains: the losses of the same plan run eagerly."""
    machine, job, losses = several_gpus(2), job_for(text), []
    plan, tensors = planned(text, job, machine), job_tensors(job, job.build(), job.graph())
    own = {name: tensors[name].clone() for name in ("input:0", "target:0")}
    feeds = [{"input:0": torch.randn_like(own["input:0"]), "target:0": own["target:0"].roll(turn)} for turn in range(18)]
    for mode in ("eager", "graph"):
        with FakeGpus(2) as gpus:
            program = backend_on(gpus, machine, mode).load(plan, tensors, job.seed)
            program.run(4, feeds[:4])
            program.run(14, feeds[4:])
            program.run(9)
            program.sync()
            losses.append([float(sum(map(float, own)) / len(own)) for _, own in sorted(program.losses.items())])
    assert losses[1] == pytest.approx(losses[0], rel=1e-10)
    assert len(losses[0]) == 27


def test_task_times_of_a_graph_over_several_gpus_are_on_one_clock():
    """The starts of both GPUs' work in a graph are the origins: no task of the second stage ends before what it waits for."""
    with FakeGpus(2, Times(kernel_s=lambda op, size: 50 * US, peer_latency_s=20 * US)) as gpus:
        machine, job = several_gpus(2), job_for("model-parallel")
        plan = planned("model-parallel", job, machine)
        program = backend_on(gpus, machine, "graph").load(plan, job_tensors(job, job.build(), job.graph()))
        measured = program.trace()
    ends = {(item.period, item.index): item.end_s for item in measured}
    for (period, index), end_s in ends.items():
        for edge in program._compiled.dependencies.edges(period)[index]:
            assert ends.get((period - edge.delta, edge.index), 0.0) <= end_s
    send = next(item for item in measured if plan.tasks[item.index].body.is_copy)
    assert send.end_s - send.start_s == pytest.approx(20 * US, abs=8 * US)


def test_a_driver_that_captures_one_gpu_only_runs_plans_eagerly(caplog):
    with FakeGpus(2, joint_captures=False) as gpus:
        assert backend_on(gpus, several_gpus(2), "graph").mode == "eager"
    assert "mode graph runs eagerly: one CUDA graph cannot contain the work of 2 GPUs (operation not permitted" in caplog.text


def test_random_numbers_of_several_gpus_are_no_graphs():
    """The order in which the host issues draws is that of one generator, and every GPU has its own."""
    job = job_of("square_dropout", 8)
    machine = several_gpus(2)
    plan, tensors = planned("data-parallel", job, machine), job_tensors(job, job.build(), job.graph())
    with FakeGpus(2) as gpus, refuses(Code.REQUEST, "draws random numbers on 2 GPUs, which one CUDA graph cannot; use --mode eager"):
        backend_on(gpus, machine, "graph").load(plan, tensors)


def test_peaks_are_by_gpu():
    machine, job = several_gpus(2), Job(MLP, 8)
    plan = planned("model-parallel", job, machine)
    with FakeGpus(2) as gpus:
        peaks = backend_on(gpus, machine).peak_bytes(plan, job_tensors(job, job.build(), job.graph()))
    assert list(peaks) == ["cuda:0", "cuda:1"]
    assert peaks["cuda:0"] != peaks["cuda:1"]


def test_memory_does_not_grow_however_far_the_host_runs_ahead():
    with FakeGpus(2) as gpus:
        program = loaded(gpus, "data-parallel:bucket=0")
        program.run(8)
        peaks = []
        for steps in (8, 40):
            program.losses.clear()
            for gpu in gpus:
                gpu.peak_bytes(reset=True)
            program.run(steps)
            peaks.append([gpu.peak_bytes() - steps * 8 for gpu in gpus])
    assert peaks[0] == peaks[1]


def test_the_first_gpu_is_current_after_a_run():
    """Code that names no device expects that, plain PyTorch for example."""
    with FakeGpus(2) as gpus:
        loaded(gpus, "gpipe").run(2)
        assert gpus[0].memories.find(torch.ones(1)).gpu == 0


def test_too_few_gpus_are_refused():
    with FakeGpus(2) as gpus, refuses(Code.DEVICES, "has 4 GPUs, and this process has 2"):
        backend_on(gpus, several_gpus(4))
