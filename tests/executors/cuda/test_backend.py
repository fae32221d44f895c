"""The CUDA executor on a simulated GPU: the numbers of plain PyTorch, no races, and step times that follow from the kernels' times.

The simulated GPU fails a test whose streams race, or whose tensors are freed before their memory may be reused.
"""

import gc
import logging
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from calibrate.cuda.host import plain_machine
from calibrate.cuda.testbed import GpuTestbed
from calibrate.numerics import Expected, compare
from executors.cuda.backend import CudaBackend
from executors.cuda.partitions import runnable_mode
from executors.cuda.program import RUN_AHEAD, Feeds
from executors.program import TaskFailedError
from executors.run import execute
from executors.tensors import job_tensors
from executors.trainer import Trainer
from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.bodies.host import Host, Synchronize
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, INPUT, Task
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from tests.fake_gpu import FACTS, FakeGpu
from tests.support import models
from tests.support.jobs import MLP, job_of, planned
from tests.support.places import USER_MODELS
from tests.support.refusals import refuses
from tests.support.small_plans import copied, forward_fused, mm, plan_of, value
from traces.errors import Code, SchedcastError

MODELS = {path.stem: f"{path}:make" for path in USER_MODELS}
MODELS |= {"mlp": MLP, "lenet5": "lenet5"}
STRATEGIES = ["baseline", "forward-fusion", "backward-fusion", "backward-fusion:update_stream=on", "turbodl"]
CAFFE = "turbodl:async=off,layers=caffe"


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine("h200")


def job_and_plan(model: str, strategy: str, machine: Machine, **fields):
    job = Job(MODELS[model], 4, **{"precision": "fp64", **fields})
    return job, planned(strategy, job, machine)


#: Every model with the strategies that use several streams and iterations, in graph mode. Two models with all strategies, in both modes.
CASES = {(model, strategy, "graph") for model in MODELS for strategy in STRATEGIES[1::2]}
CASES |= {(model, strategy, mode) for model in ("mlp", "language_model") for strategy in STRATEGIES for mode in ("eager", "graph")}
CASES |= {("mlp", "turbodl:update=callback", mode) for mode in ("eager", "graph")} | {("lenet5", CAFFE, "eager")}
#: What `make test` runs: every model once in graph mode, every strategy in both modes.
USUAL = {(model, STRATEGIES[1::2][number % 2], "graph") for number, model in enumerate(sorted(MODELS))}
USUAL |= {
    (model, strategy, "graph" if (first + number) % 2 else "eager")
    for first, model in enumerate(("mlp", "language_model"))
    for number, strategy in enumerate(STRATEGIES)
} | {("mlp", "turbodl:update=callback", "graph"), ("lenet5", CAFFE, "eager")}
MARKED = [pytest.param(*case, marks=() if case in USUAL else pytest.mark.thorough, id="-".join(case)) for case in sorted(CASES)]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("model", "strategy", "mode"), MARKED)
def test_numbers_equal_plain_pytorch(model, strategy, mode, machine):
    """11 steps: in graph mode three eager steps, two graphs of four steps each, and the drain."""
    job, plan = job_and_plan(model, strategy, machine, optimizer="adam")
    built = job.build()
    gpu = FakeGpu()
    backend = CudaBackend(machine, gpu, mode)
    with gpu:
        expected = Expected.of(job, built, 11, backend)
        numerics = compare(job, built, plan, backend, expected, 11)
    assert numerics.equal("fp64"), numerics


def halves(gpu: FakeGpu) -> Machine:
    """The GPU as two devices with one memory."""
    whole = load_machine("h200")
    devices = tuple(replace(whole.devices[0], name=f"cuda:{i}", sms=64, memory="m") for i in range(2))
    host = replace(whole.hosts[0], devices=("cuda:0", "cuda:1"))
    return Machine("halves", devices, (replace(whole.memories[0], name="m"),), (host,))


def random_tensors(plan) -> dict[str, torch.Tensor]:
    return {name: torch.randn(v.shape) for name, v in plan.values.items() if v.kind in ("parameter", "input")}


@pytest.mark.parametrize(("mode", "steps"), [("eager", 2), ("graph", 3 + 8)])
def test_targets_of_a_batch_in_parts_are_counted_in_every_step(mode, steps, machine):
    job = job_of("skipped_weighted", 16, accumulate=2, loss_mean="batch")
    built, gpu = job.build(), FakeGpu()
    backend = CudaBackend(machine, gpu, mode)
    with gpu:
        expected = Expected.of(replace(job, accumulate=1), built, steps, backend)
        numerics = compare(job, built, planned("backward-fusion", job, machine), backend, expected, steps)
    assert numerics.equal("fp64"), numerics


@pytest.mark.parametrize(("mode", "steps"), [("eager", 3), ("graph", 3 + 8)])
def test_partitions_are_devices_that_share_no_sm(mode, steps):
    """A layer's output is copied to the second half of the GPU and used there."""
    plan = copied()
    plan = replace(plan, values={name: replace(v, source=v.operand()) for name, v in plan.values.items()})
    tensors = random_tensors(plan)
    with FakeGpu() as gpu:
        program = CudaBackend(halves(gpu), gpu, mode).load(plan, tensors, keep=("z",))
        program.run(steps)
        streams = program._streams
    torch.testing.assert_close(program.kept["z"], tensors["x"] @ tensors["w1"] @ tensors["w2'"])
    sms = {lane[0]: set(stream.partition.handle) for lane, stream in streams.items()}
    assert sms["cuda:0"] & sms["cuda:1"] == set()
    assert {len(ids) for ids in sms.values()} == {64}


def test_partitions_that_share_sms_are_refused():
    class Overlapping(FakeGpu):
        def partitions(self, count: int):
            return tuple(replace(partition, handle=range(64)) for partition in super().partitions(count))

    with Overlapping() as gpu, refuses(Code.REQUEST, r"partitions 0 and 1 both ran on SM \d+ eagerly"):
        CudaBackend(halves(gpu), gpu)


def test_a_probe_that_cannot_be_compiled_is_a_warning(caplog):
    with FakeGpu(compiler=False) as gpu, caplog.at_level(logging.WARNING):
        CudaBackend(halves(gpu), gpu)
    assert "could not be checked to be disjoint" in caplog.text


def test_a_probe_that_cannot_be_launched_is_a_warning(caplog):
    class Refusing(FakeGpu):
        def sm_ids(self, stream, replayed=False):
            raise SchedcastError("the kernel that finds a stream's SMs cannot be launched: CUDA error: invalid resource handle")

    with Refusing() as gpu, caplog.at_level(logging.WARNING):
        CudaBackend(halves(gpu), gpu)
    assert "could not be checked to be disjoint: the kernel that finds a stream's SMs cannot be launched" in caplog.text


def test_partitions_whose_events_are_refused_are_an_error_of_one_line():
    class Contexts(FakeGpu):
        def _record(self, stream, event):
            raise RuntimeError("CUDA error: invalid resource handle\nCUDA kernel errors might be reported later")

    with Contexts() as gpu, refuses(Code.REQUEST, r"each other's events \(CUDA error: invalid resource handle\); update"):
        CudaBackend(halves(gpu), gpu)


def test_partitions_that_one_graph_cannot_contain_run_eagerly(caplog):
    """The driver is asked once. Plans run without graphs, and their numbers are right."""
    plan = copied()
    plan = replace(plan, values={name: replace(v, source=v.operand()) for name, v in plan.values.items()})
    tensors = random_tensors(plan)
    with FakeGpu(joint_captures=False) as gpu, caplog.at_level(logging.WARNING):
        backends = [CudaBackend(halves(gpu), gpu, "graph") for _ in range(2)]
        program = backends[1].load(plan, tensors, keep=("z",))
        chunk = program.run(5)
        whole = CudaBackend(load_machine("h200"), gpu, "graph")
    assert [(backend.mode, backend.unit, backend.forms.draws) for backend in backends] == [("eager", 1, "keyed")] * 2
    torch.testing.assert_close(program.kept["z"], tensors["x"] @ tensors["w1"] @ tensors["w2'"])
    assert len(chunk.ends_s) == 5
    assert (whole.mode, whole.unit) == ("graph", 4), "one device needs no capture over several partitions"
    assert caplog.messages == [
        "mode graph runs eagerly: one CUDA graph cannot contain the work of 2 partitions (operation not permitted when stream is capturing:"
        " the stream belongs to another context)"
    ]


def test_partitions_that_overlap_in_one_graph_run_eagerly():
    class Overlapping(FakeGpu):
        def sm_ids_in_one_graph(self, streams):
            return [frozenset(range(64))] * 2

    with Overlapping() as gpu:
        assert runnable_mode(gpu, "graph", 2) == (
            "eager",
            "mode graph runs eagerly: one CUDA graph cannot contain the work of 2 partitions"
            " (partitions 0 and 1 both ran on SM 0 in one graph)",
        )
        assert runnable_mode(gpu, "graph", 1) == ("graph", "")


def test_documents_say_why_the_mode_is_not_the_one_asked_for():
    with FakeGpu(joint_captures=False) as gpu:
        refused, eager = GpuTestbed(gpu, "graph", partitions=2), GpuTestbed(gpu, "eager", partitions=2)
    assert refused.mode == "eager"
    assert "one CUDA graph cannot contain the work of 2 partitions" in refused.about()["mode_reason"]
    assert "mode_reason" not in eager.about()


def test_a_gpu_that_cannot_be_split_is_refused():
    with FakeGpu(partitionable=False) as gpu, refuses(Code.REQUEST):
        CudaBackend(halves(gpu), gpu)


def test_streams_have_the_priority_of_their_tasks(machine):
    plan = forward_fused()
    tasks = [replace(task, stream=int(task.phase == "update"), priority=-2 * (task.phase == "update")) for task in plan.tasks]
    plan = replace(plan, tasks=tuple(tasks))
    with FakeGpu() as gpu:
        streams = CudaBackend(machine, gpu).load(plan, random_tensors(plan))._streams
        assert {lane[1]: stream.priority for lane, stream in streams.items()} == {0: 0, 1: -2}
        mixed = replace(plan, tasks=(*tasks[:-1], replace(tasks[-1], priority=-1)))
        with refuses(Code.PLAN):
            CudaBackend(machine, gpu).load(mixed, random_tensors(plan))


def test_steps_in_any_chunks_give_the_same_numbers(machine):
    """21 steps, divided differently into prologue, graphs, eager remainders and drains."""
    job, plan = job_and_plan("mlp", "forward-fusion", machine)
    tensors = job_tensors(job, job.build(), job.graph())
    losses = []
    for chunks in ([21], [5, 9, 7], [3, 4, 4, 4, 4, 2], [1] * 21):
        with FakeGpu() as gpu:
            program = CudaBackend(machine, gpu, "graph").load(plan, tensors, job.seed)
            for steps in chunks:
                program.run(steps)
            program.sync()
        assert sorted(program.losses) == list(range(21))
        losses.append([float(program.losses[i][0]) for i in range(21)])
    assert losses == [losses[0]] * 4
    with FakeGpu() as gpu:
        program = CudaBackend(machine, gpu, "graph").load(plan, tensors, job.seed)
        program.run(12)
        program.sync()
        program.run(9)
        program.sync()
    assert [float(program.losses[i][0]) for i in range(21)] == losses[0]


def test_a_graph_hides_the_host_and_eager_steps_wait_for_it(machine):
    """Eager mode has 15 launches of 8 us each. A graph has kernels of 2 us, gaps of 1 us, and one launch for four iterations."""
    job, plan = job_and_plan("mlp", "baseline", machine, optimizer="sgd", form="fused")
    tensors = job_tensors(job, job.build(), job.graph())
    step_s = {}
    for mode, steps in (("eager", 12), ("graph", 3 + 16)):
        with FakeGpu() as gpu:
            chunk = CudaBackend(machine, gpu, mode).load(plan, tensors, job.seed).run(steps)
        step_s[mode] = chunk.steps_s[-1]
    launches = len(plan.tasks)
    assert step_s["eager"] > launches * 8e-6
    assert launches * 3e-6 <= step_s["graph"] < launches * 3e-6 + 8e-6


def plan_with_host_call() -> Plan:
    """A product, a call of the host for 1 ms and another product on one stream; a fourth task, a product, on a second stream."""
    x, y, z, q = (value(name, (8, 8), INPUT if name == "x" else ACTIVATION) for name in "xyzq")
    call = Task("call", Host(1e-3), "cuda:0", reads=(y.operand(),))
    return plan_of([mm("a", x, x, y), call, mm("b", y, y, z), replace(mm("other", x, x, q), stream=1)], [x, y, z, q])


def test_a_host_task_blocks_its_stream_but_not_the_issuing_thread(machine):
    with FakeGpu() as gpu:
        program = CudaBackend(machine, gpu).load(plan_with_host_call(), {"x": torch.ones(8, 8)}, keep=("z", "q"))
        program.run(1)
        kept = program.kept
    assert (float(kept["z"][0, 0]), float(kept["q"][0, 0])) == (512.0, 8.0)
    ran = [(item.op, item.end_s - item.start_s) for item in gpu.timeline if item.op in ("aten.mm", "host call")]
    assert [op for op, _ in ran] == ["aten.mm", "host call", "aten.mm", "aten.mm"]
    assert ran[1][1] == pytest.approx(gpu.times.callback_s + 1e-3)
    a, call, b, other = (item for item in gpu.timeline if item.op in ("aten.mm", "host call"))
    assert (a.stream, b.stream) == (call.stream, call.stream) != (other.stream,) * 2
    assert a.end_s <= call.start_s
    assert call.end_s <= b.start_s
    assert other.end_s < call.end_s


def test_the_host_waits_for_a_task_before_it_issues_more(machine):
    x, y, z = (value(name, (512, 512), INPUT if name == "x" else ACTIVATION) for name in "xyz")
    plan = plan_of([mm("a", x, x, y), Task("wait", Synchronize(), "cuda:0"), replace(mm("b", x, x, z), stream=1)], [x, y, z])
    with FakeGpu() as gpu:
        CudaBackend(machine, gpu).load(plan, {"x": torch.ones(512, 512)}).run(1)
    a, b = (item for item in gpu.timeline if item.op == "aten.mm")
    assert b.start_s > a.end_s, "although b runs on a stream of its own and needs nothing of a"
    with FakeGpu() as gpu, refuses(Code.PLAN, "which a CUDA graph cannot"):
        CudaBackend(machine, gpu, "graph").load(plan, {"x": torch.ones(512, 512)})


def test_a_graph_calls_the_host_in_every_replay(machine):
    with FakeGpu() as gpu:
        program = CudaBackend(machine, gpu, "graph").load(plan_with_host_call(), {"x": torch.ones(8, 8)}, keep=("z",))
        chunk = program.run(3 + 3 * 4)
        assert float(program.kept["z"][0, 0]) == 512.0
    calls = [item.end_s - item.start_s for item in gpu.timeline if item.op == "host call"]
    assert calls == pytest.approx([gpu.times.callback_s + 1e-3] * 15)
    assert chunk.steps_s[-1] == pytest.approx(gpu.times.callback_s + 1e-3, rel=0.02)


def test_peak_bytes_are_the_allocators(machine):
    x, out, w = value("x", (256, 256), INPUT), value("y", (256, 256), ACTIVATION), value("z", (256, 256), ACTIVATION)
    plan = plan_of([mm("a", x, x, out), mm("b", out, out, w)], [x, out, w])
    with FakeGpu() as gpu:
        peak = CudaBackend(machine, gpu).peak_bytes(plan, {"x": torch.randn(256, 256)})
    assert peak == {"cuda:0": 2 * 256 * 256 * 4}, "the input existed before; y and z are alive at the same time"


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_peak_bytes_include_the_workspaces_of_the_plans_own_lanes(mode, machine):
    """Two lanes run products. Streams of other programs have left workspaces behind, which do not count."""
    x, y, z = value("x", (8, 8), INPUT), value("y", (8, 8), ACTIVATION), value("z", (8, 8), ACTIVATION)
    plan = plan_of([mm("a", x, x, y), replace(mm("b", x, x, z), stream=1)], [x, y, z])
    peaks = []
    for workspace in (0, 1 << 20):
        with FakeGpu(workspace_bytes=workspace) as gpu:
            backend = CudaBackend(machine, gpu, mode)
            assert gpu.workspace_bytes() == workspace
            backend.load(plan, {"x": torch.randn(8, 8)}).run(3)
            peaks.append(backend.peak_bytes(plan, {"x": torch.randn(8, 8)})["cuda:0"])
    assert peaks[1] - peaks[0] == 2 << 20


def test_a_graph_holds_nothing_of_the_eager_steps_before_it_but_what_it_reads(machine):
    """Lanes of TurboDL are ordered after each other's last reads a step later: what waits for that would stay as long as the graph."""
    job, peaks = Job("lenet5", 256), {}
    for mode in ("eager", "graph"):
        with FakeGpu(facts=replace(FACTS, memory_bytes=1 << 30)) as gpu:
            own = plain_machine(gpu)
            plan = planned("turbodl", job, own, CostModel(own))
            (peaks[mode],) = CudaBackend(own, gpu, mode).peak_bytes(plan, job_tensors(job, job.build(), job.graph()), job.seed).values()
    assert peaks["graph"] == pytest.approx(peaks["eager"], rel=0.01)


def test_a_graph_holds_a_copy_of_the_gradients_that_cross_its_border():
    """Forward-fusion updates a step later: a graph reads the gradients of the step before it from tensors of their own."""
    job, measured, predicted = Job("lenet5", 64), {}, {}
    for mode in ("eager", "graph"):
        with FakeGpu(facts=replace(FACTS, memory_bytes=1 << 30)) as gpu:
            own = plain_machine(gpu)
            plan = planned("forward-fusion", job, own, CostModel(own))
            (measured[mode],) = CudaBackend(own, gpu, mode).peak_bytes(plan, job_tensors(job, job.build(), job.graph()), job.seed).values()
            (predicted[mode],) = forecast(plan, Target.of(CostModel(own), mode)).peak_bytes.values()
    gradients = sum(parameter.nbytes for parameter in job.build().module.parameters())
    assert measured["graph"] - measured["eager"] == pytest.approx(gradients, rel=0.01)
    assert predicted["graph"] - predicted["eager"] == pytest.approx(gradients, rel=0.01)


@pytest.mark.parametrize("strategy", ["baseline", "turbodl:async=off", "turbodl:async=on"])
def test_the_predicted_peak_holds_what_a_stream_does_not_have_again_yet(strategy):
    """Streams of TurboDL are ordered after each other's last reads late. The input is there before the steps whose peak is measured."""
    job = Job("lenet5", 256)
    with FakeGpu(facts=replace(FACTS, memory_bytes=1 << 30)) as gpu:
        own = plain_machine(gpu)
        plan, tensors = planned(strategy, job, own, CostModel(own)), job_tensors(job, job.build(), job.graph())
        (measured,) = CudaBackend(own, gpu).peak_bytes(plan, tensors, job.seed).values()
        (predicted,) = forecast(plan, Target.of(CostModel(own))).peak_bytes.values()
    inputs = sum(plan.storages[value.storage].bytes for value in plan.values.values() if value.kind == INPUT)
    assert predicted == pytest.approx(measured + inputs, rel=0.02)


def test_workspaces_that_a_graph_uses_are_not_freed(machine):
    x, y = value("x", (8, 8), INPUT), value("y", (8, 8), ACTIVATION)
    with FakeGpu(workspace_bytes=1 << 20) as gpu:
        program = CudaBackend(machine, gpu, "graph").load(plan_of([mm("a", x, x, y)], [x, y]), {"x": torch.randn(8, 8)})
        program.run(3 + 4)
        assert gpu.free_workspaces() == 0
        del program
        gc.collect()
        assert gpu.free_workspaces() == 1 << 20


def test_a_task_that_fails_is_named(machine):
    x, y = value("x", (3, 3), INPUT), value("y", (3, 3), ACTIVATION)
    plan = plan_of([mm("product", x, x, y, layer="encoder.0")], [x, y])
    with FakeGpu() as gpu, pytest.raises(TaskFailedError, match=r"task product in layer 'encoder\.0' failed"):
        CudaBackend(machine, gpu).load(plan, {"x": torch.randn(3, 4)}).run(1)


def test_a_task_that_no_graph_can_contain_is_named_with_the_mode_that_runs_it(machine):
    """CTC's kernels copy lengths from the host: PyTorch refuses that in a capture."""
    job = Job(f"{models.__file__}:letters", 4)
    plan, tensors = planned("baseline", job, machine), job_tensors(job, job.build(), job.graph())
    with FakeGpu() as gpu:
        CudaBackend(machine, gpu).load(plan, tensors).run(3)
        with pytest.raises(
            TaskFailedError, match=r"task loss/_ctc_loss in layer 'loss' failed: .*; a CUDA graph may .*, so use --mode eager$"
        ):
            CudaBackend(machine, gpu, "graph").load(plan, tensors).run(3 + 4)


@pytest.mark.thorough
def test_execute_reports_steps_tasks_losses_and_memory(machine):
    job, plan = job_and_plan("lenet5", "backward-fusion", machine)
    with FakeGpu() as gpu:
        done = execute(plan, job_tensors(job, job.build(), job.graph()), CudaBackend(machine, gpu, "graph"), 3 + 12, seed=job.seed)
    assert len(done.losses) == 15
    assert len(done.step_s) == 2, "one per graph after the first"
    assert done.timeline.mode == "graph"
    assert {span.task for span in done.timeline.spans} == {task.name for task in plan.tasks}
    assert done.peak_bytes["cuda:0"] > 0


def test_tensors_that_no_lane_order_frees_are_freed_many_periods_later(machine):
    """The second lane reads a value that the first lane writes, and the first never waits for the second."""
    x, y, z = value("x", (8, 8), INPUT), value("y", (8, 8), ACTIVATION), value("z", (8, 8), ACTIVATION)
    plan = plan_of([mm("a", x, x, y), replace(mm("b", y, y, z), stream=1)], [x, y, z])
    with FakeGpu() as gpu:
        program = CudaBackend(machine, gpu).load(plan, {"x": torch.randn(8, 8)})
        assert program._compiled.releases.never_released == {"y"}
        program.run(60)
        assert len(program._instances) <= RUN_AHEAD + 2


def test_new_inputs_are_kept_until_no_lane_reads_them(machine, monkeypatch):
    """They are copied on one stream and read on others. Freed earlier, their memory could be handed out while it is still read."""

    def copied_to_the_gpu(feeds, tensors):
        return {name: tensor.clone() for name, tensor in place(feeds, tensors).items()}

    place = Feeds.place
    monkeypatch.setattr(Feeds, "place", copied_to_the_gpu)
    x, y, z = value("x", (8, 8), INPUT), value("y", (8, 8), ACTIVATION), value("z", (8, 8), ACTIVATION)
    plan = plan_of([mm("a", x, x, y), replace(mm("b", x, x, z), stream=1)], [x, y, z])
    with FakeGpu() as gpu:
        program = CudaBackend(machine, gpu).load(plan, {"x": torch.randn(8, 8)})
        program.run(20, [{"x": torch.randn(8, 8)} for _ in range(20)])
        program.run(20, [{"x": torch.randn(8, 8)} for _ in range(20)])
        assert not program._placed, "the last run's are gone"
        program.sync()


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_module_is_trained_on_new_data(mode, machine):
    job, plan = job_and_plan("mlp", "forward-fusion", machine)
    built, plain = job.build(), job.build()
    batches = [(torch.randn_like(built.inputs[0]), built.target.roll(turn)) for turn in range(9)]
    with FakeGpu() as gpu:
        trainer = Trainer(plan, job, built, CudaBackend(machine, gpu, mode))
        losses = [trainer.step(*batch) for batch in batches]
        trainer.sync()
    optimizer = torch.optim.SGD(plain.module.parameters(), **{name: value for name, value in job.hyper if name != "form"})
    expected = []
    for inputs, target in batches:
        optimizer.zero_grad()
        loss = plain.loss(plain.module(inputs), target)
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    assert losses == pytest.approx(expected, rel=1e-10)
    torch.testing.assert_close(dict(built.module.named_parameters()), dict(plain.module.named_parameters()))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_graphs_are_fed_new_data(strategy, machine):
    """With feeds, without feeds and with feeds again, over prologue, graphs, remainders and drains: the same losses as in eager mode."""
    job, plan = job_and_plan("mlp", strategy, machine)
    tensors = job_tensors(job, job.build(), job.graph())
    own = {name: tensors[name].clone() for name in ("input:0", "target:0")}
    feeds = [{"input:0": torch.randn_like(own["input:0"]), "target:0": own["target:0"].roll(turn)} for turn in range(30)]
    with FakeGpu() as gpu:
        program = CudaBackend(machine, gpu, "graph").load(plan, tensors, job.seed)
        program.run(4, feeds[:4])
        chunk = program.run(14, feeds[4:18])
        program.run(9)
        program.sync()
        program.run(12, feeds[18:])
        program.sync()
        losses = [float(sum(map(float, of_iteration))) for _, of_iteration in sorted(program.losses.items())]
    with FakeGpu() as gpu:
        eager = CudaBackend(machine, gpu, "eager").load(plan, tensors, job.seed)
        eager.run(39, [*feeds[:18], *[own] * 9, *feeds[18:]])
        eager.sync()
        expected = [float(sum(map(float, of_iteration))) for _, of_iteration in sorted(eager.losses.items())]
    assert losses == pytest.approx(expected, rel=1e-10)
    assert len(chunk.ends_s) == 14
    assert all(after > before for before, after in pairwise((0.0, *chunk.ends_s)))
    assert len(chunk.steps_s) == 2, "one per graph after the first"
    assert all(torch.equal(tensors[name], tensor) for name, tensor in own.items())
