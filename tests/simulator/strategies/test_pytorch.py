"""Plain PyTorch as a plan: what the user's own loop issues, op by op, and on which device."""

import json
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from calibrate.numerics import reference
from executors.kernels.update import torch_optimizer
from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Device, Machine, Memory, split
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.bodies.update import STATE, Update, forms
from simulator.plan.plan import Plan
from simulator.predict.forecast import forecast, plan_of
from simulator.predict.target import Target, references
from simulator.strategies import registry
from tests.support import models
from tests.support.jobs import MLP
from tests.support.refusals import refuses
from traces.documents.profile import Dispatch, Identity, KeyCost, LoopCosts, Profile, Stats
from traces.errors import Code


class Issued(TorchDispatchMode):
    """The aten ops on tensors with dimensions that this thread issues, without views, which move nothing."""

    def __init__(self):
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [item for item in tree_leaves((args, kwargs or {})) if isinstance(item, torch.Tensor)]
        if tensors and not func.is_view and func is not torch.ops.aten.detach.default:
            self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def plain_plan(job: Job, machine: Machine) -> Plan:
    return plan_of(job, "pytorch", Target.of(CostModel(machine)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", ["lenet5", "resnet18", "transformer_base"])
def test_the_plan_has_the_ops_that_the_loop_issues(model):
    """Gradients by input and weight that autograd computes in one op are one task."""
    job = Job(model, 2, 32 if model == "resnet18" else 8 if model == "transformer_base" else None, form="fused", optimizer="sgd")
    loop = reference(job, job.build(), same_masks=True)
    loop.step()
    with Issued() as issued:
        loop.step()
    planned = [task.body.target for task in plain_plan(job, load_machine("h100")).tasks if not isinstance(task.body, Update)]
    counted = {"aten.convolution_backward.default", "aten.convolution.default", "aten.mm.default", "aten.bmm.default", "aten.addmm.default"}
    assert [op for op in planned if op in counted] == [op for op in issued.ops if op in counted]


def test_a_recurrent_layer_is_refused_and_named():
    """Its loop takes other kernels than ours: a forecast from our costs was 77 % too short."""
    with refuses(Code.MODEL, r"recurrent layers \(recurrent\).*schedcast validate times it"):
        plain_plan(Job("rnn_bitstream", 2, 8), load_machine("h100"))


@pytest.mark.parametrize("precision", ["default", "amp", "bf16"])
def test_attention_with_dropout_is_one_op_on_a_gpu_as_without(precision):
    """There PyTorch has a fused kernel that draws its own mask, and schedules run it too; on a CPU both run products and a softmax."""
    job = Job(f"{models.__file__}:attention_dropping", 2, precision=precision)
    gpu, cpu = plain_plan(job, load_machine("h100")), plain_plan(job, this_cpu())
    baseline = plan_of(job, "baseline", Target(load_machine("h100"), CostModel(load_machine("h100"))))
    fused = [task.body for task in gpu.tasks if isinstance(task.body, OpCall) and "dot_product" in task.body.target]
    assert [json.loads(body.args)[place] for body, place in zip(fused, (3, 6), strict=True)] == [0.2, 0.2]
    assert [task.body for task in baseline.tasks if isinstance(task.body, OpCall) and "dot_product" in task.body.target] == fused
    softmax, dropout = "aten._safe_softmax.default", "aten.native_dropout.default"
    for plan, there in ((gpu, False), (baseline, False), (cpu, True)):
        assert all((target in {getattr(task.body, "target", "") for task in plan.tasks}) is there for target in (softmax, dropout))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("settings", "dropout"),
    [
        ({"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 16, "vocab_size": 50}, "attn_pdrop"),
        (
            {"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
            | {"vocab_size": 50, "max_position_embeddings": 16},
            "attention_probs_dropout_prob",
        ),
    ],
    ids=["gpt2", "bert"],
)
def test_a_transformer_with_its_usual_dropout_issues_the_ops_of_one_without_it_in_attention(settings, dropout, tmp_path):
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    issued = []
    for name, own in (("usual", {}), ("none", {dropout: 0.0})):
        path = tmp_path / name / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps(settings | own))
        tasks = plain_plan(Job(f"hf:{path}", 2, image_size=8, precision="amp"), load_machine("h100")).tasks
        issued.append([(task.phase, getattr(task.body, "target", "update"), [o.shape for o in task.inputs]) for task in tasks])
    assert issued[0] == issued[1]
    assert any("dot_product" in target for _, target, _ in issued[0])


def test_a_cpu_works_on_one_op_with_all_its_cores():
    machine = this_cpu()
    (device,) = machine.for_pytorch.devices
    assert (device.threads, device.sms) == (sum(d.sms for d in machine.devices), 1)
    assert device.peak_flops == machine.devices[0].peak_flops
    plan = plain_plan(Job(MLP, 4), machine)
    assert plan.devices == (device.name,)
    assert all(key.endswith(f"@{device.threads}-threads") for key in plan.keys(machine))


def test_a_plan_of_all_cores_runs_on_them_whatever_it_is_called():
    machine = this_cpu(devices=2)
    plan = plain_plan(Job(MLP, 4), machine)
    own, plain = (forecast(each, Target.of(CostModel(machine))) for each in (replace(plan, strategy="mine"), plan))
    assert own.machine == plain.machine
    assert own.timeline.step_s == plain.timeline.step_s


def test_a_split_gpu_is_whole_for_plain_pytorch_which_is_always_eager():
    machine = split(load_machine("h100"), 2)
    job = Job(MLP, 4)
    predicted = forecast(plain_plan(job, machine), Target.of(CostModel(machine), "graph"))
    assert predicted.machine.devices[0].sms == 132
    assert predicted.timeline.mode == "eager"


def profile_of(plan: Plan, machine: Machine, loop: LoopCosts | None) -> Profile:
    """Every op takes 1 us on the GPU and 5 us of the host."""
    second = Stats.from_samples([1e-6])
    costs = {key: KeyCost(second, second, op_class="elementwise", issue_s=5e-6) for key in plan.keys(machine)}
    return Profile(identity=Identity(kind="gpu", gpu="H100", sms=132), costs=costs, dispatch=Dispatch(dispatch_s=7e-6), loop=loop)


def test_the_host_takes_what_autograd_takes_and_not_what_the_executor_does():
    """Per op 5 us of its own and 2 us more in forward, 1 us less in backward, and 1 us per view: the executor's 7 us do not count."""
    job = Job(MLP, 4)
    plan = plain_plan(job, load_machine("h100"))
    loop = LoopCosts(forward_s=2e-6, backward_s=-1e-6, view_s=1e-6, update_s=10e-6, parameter_s=3e-6)
    profile = profile_of(plan, load_machine("h100"), loop)
    from simulator.machine.measured_gpu import with_measured

    machine = with_measured(load_machine("h100"), profile)
    predicted = forecast(plan, Target.of(CostModel(machine, profile)))
    forward, backward = (sum(task.phase == phase for task in plan.tasks) for phase in ("forward", "backward"))
    views, parameters = sum(task.view_calls for task in plan.tasks), len(plan.gradients)
    host_us = 7 * forward + 4 * backward + views + 5 + 10 + 3 * parameters
    assert predicted.timeline.step_s == pytest.approx(host_us * 1e-6)


def test_only_the_calls_of_the_optimizer_take_what_a_call_takes():
    """One call for all parameters in the for-loop form, whose tasks are by parameter; with hooks one for each parameter, or each layer."""
    machine, job = load_machine("h100"), Job(MLP, 4, form="for")
    loop, calls = LoopCosts(update_s=1.0), {}
    for fusion in ("none", "forward", "backward"):
        plan = plan_of(job, f"pytorch-hooks:fusion={fusion}", Target.of(CostModel(machine)))
        predicted = forecast(plan, Target.of(CostModel(machine, profile_of(plan, machine, loop))))
        calls[fusion] = round(predicted.timeline.step_s)
    graph = job.graph()
    assert calls == {"none": 1, "forward": len({graph.layers[name] for name in graph.parameters}), "backward": len(graph.parameters)}


def test_hooks_update_within_the_passes():
    machine, job = load_machine("h100"), Job(MLP, 4, form="for")
    plans = {fusion: plan_of(job, f"pytorch-hooks:fusion={fusion}", Target.of(CostModel(machine))) for fusion in ("forward", "backward")}
    forward, backward = ([task.name for task in plans[fusion].tasks] for fusion in plans)
    phases = [task.phase for task in plans["forward"].tasks]
    assert phases.index("update") == 0, "the first layer's, from the step before, before its forward"
    assert phases[-1] == "backward"
    assert plans["backward"].tasks[-1].body.is_update
    first = next(task for task in plans["backward"].tasks if task.body.is_update)
    assert first.layer == plans["backward"].tasks[backward.index(first.name) - 1].layer, "right after the gradient of the last layer"
    assert len(forward) < len(backward), "by layer, and by parameter"
    with refuses(Code.MODEL, "pytorch-hooks:fusion=forward"):
        plan_of(Job(MLP, 4, form="for", clip_norm=1.0), "pytorch-hooks:fusion=backward", Target.of(CostModel(machine)))


def test_a_host_that_waits_after_each_phase_issues_updates_late():
    """Backward keeps the GPU busy while the host would issue the updates; if it waits, nothing hides them, unless hooks issue them."""
    machine = load_machine("titan-xp")
    job = Job("mobilenet_v2", 32, optimizer="adam", form="for")
    step_s = {}
    for text in ("none", "none,sync=phase", "forward,sync=phase", "backward,sync=phase"):
        plan = plan_of(job, f"pytorch-hooks:release=1.6,fusion={text}", Target.of(CostModel(machine)))
        step_s[text] = forecast(plan, Target.of(CostModel(machine))).timeline.step_s
        waits = [task.name for task in plan.tasks if task.body.blocks_host]
        assert waits == {
            "none": [],
            "none,sync=phase": ["forward/synchronize/0", "backward/synchronize/1", "update/synchronize/2"],
        }.get(text, ["forward/synchronize/0", "backward/synchronize/1"])
    plain, synchronized, forward, backward = step_s.values()
    assert synchronized > 1.1 * plain
    assert max(forward, backward) < 1.02 * plain


def test_release_1_6_launches_more():
    """Adam multiplies and adds where it interpolates now, and `zero_grad` sets each gradient to zero."""
    machine = load_machine("titan-xp")
    launches = {}
    for optimizer in ("sgd", "adam"):
        for release in ("2", "1.6"):
            plan = plan_of(Job(MLP, 4, optimizer=optimizer, form="for"), f"pytorch-hooks:release={release}", Target.of(CostModel(machine)))
            launches[optimizer, release] = {task.body.launches for task in plan.tasks if task.body.is_update}
    assert launches == {("sgd", "2"): {1}, ("sgd", "1.6"): {2}, ("adam", "2"): {8}, ("adam", "1.6"): {10}}
    with refuses(Code.REQUEST, "release=1.6 has no fused form; use --optimizer adam:for"):
        plan_of(Job(MLP, 4, optimizer="adam", form="fused"), "pytorch-hooks:release=1.6", Target.of(CostModel(machine)))


def test_in_one_graph_per_step_the_host_launches_once():
    """Every op takes its 1 us and a gap between two nodes; what the host takes per op, 5 us and the loop's, does not count."""
    job, machine = Job(MLP, 4), load_machine("h100")
    plan = plan_of(job, "pytorch-graph", Target.of(CostModel(machine)))
    eager = plain_plan(job, machine)
    assert [task.name for task in plan.tasks] == [task.name for task in eager.tasks], "the ops are the user's own"
    profile = profile_of(plan, machine, LoopCosts(forward_s=1e-3, backward_s=1e-3))
    graph = forecast(plan, Target.of(CostModel(machine, profile), "eager"))
    assert graph.timeline.mode == "graph"
    assert graph.timeline.step_s == pytest.approx(len(plan.tasks) * (1e-6 + machine.hosts[0].node_gap_s))
    assert forecast(eager, Target.of(CostModel(machine, profile))).timeline.step_s > 10 * graph.timeline.step_s


def test_a_graph_needs_a_gpu():
    machine = this_cpu()
    with refuses(Code.DEVICES):
        plan_of(Job(MLP, 4), "pytorch-graph", Target.of(CostModel(machine)))
    assert references(machine) == ("pytorch",)
    assert references(load_machine("h100")) == ("pytorch", "pytorch-graph")


def test_without_a_profile_every_op_takes_the_assumed_time_of_the_loop():
    """6 us per launch, and 20 us more for each op of forward and backward; updates have no modules."""
    machine = load_machine("h100")
    plan = plain_plan(Job(MLP, 4), machine)
    launches = sum(task.body.launches for task in plan.tasks)
    ops = sum(task.phase != "update" for task in plan.tasks)
    predicted = forecast(plan, Target.of(CostModel(machine)))
    assert predicted.timeline.step_s == pytest.approx(6e-6 * launches + 20e-6 * ops)
    low, high = predicted.interval_s
    assert high / low > 2, "the time of modules and autograd is less certain than any other"


def test_on_a_cpu_what_the_loop_adds_belongs_to_the_task():
    memory = Memory("memory", 1 << 40, 1e9, 1 << 20)
    device = Device("cpu:0", "cpu", 1, {"fp32": 1e9}, "memory", task_overhead_s=1.0)
    together = Device("cpu", "cpu", 1, {"fp32": 2e9}, "memory", threads=2)
    machine = Machine("cpu", (device,), (memory,), plain=Machine("cpu", (together,), (memory,)))
    job = Job(MLP, 4)
    plan = plain_plan(job, machine)
    step_s = {
        added_s: forecast(
            plan, Target.of(CostModel(machine, profile_of(plan, machine, LoopCosts(forward_s=added_s, backward_s=added_s))))
        ).timeline.step_s
        for added_s in (0.0, 1.0)
    }
    assert step_s[1.0] - step_s[0.0] == pytest.approx(sum(task.phase in ("forward", "backward") for task in plan.tasks))


def test_costs_on_several_threads_are_at_most_those_of_one():
    machine = this_cpu()
    plan = plan_of(job := Job(MLP, 4), "baseline", Target.of(CostModel(machine)))
    one = Stats.from_samples([1.0])
    costs = {key: KeyCost(one, one, op_class="elementwise", flops=1.0, bytes=1.0) for key in plan.keys(machine)}
    model = CostModel(machine, Profile(identity=Identity(kind="cpu"), costs=costs))
    threads = machine.for_pytorch.devices[0].threads
    assert all(1 / threads <= cost.warm_s <= 1.0 for cost in model.for_pytorch.resolve(plain_plan(job, machine)))


@pytest.mark.parametrize(("optimizer", "form"), [(o, f) for o in STATE for f in forms(o) if f != "fused"])
def test_launches_of_the_loops_update_are_those_of_the_optimizer(optimizer, form):
    """Step counts are on the host, where nothing is launched."""
    parameters = [torch.ones(3, requires_grad=True) for _ in range(2)]
    loop = torch_optimizer(optimizer, form, parameters, (("weight_decay", 0.1),))
    for parameter in parameters:
        parameter.grad = torch.ones(3)
    loop.step()

    class Launched(Issued):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if any(isinstance(item, torch.Tensor) and item.dim() for item in tree_leaves((args, kwargs or {}))):
                return super().__torch_dispatch__(func, types, args, kwargs)
            return func(*args, **(kwargs or {}))

    with Launched() as launched:
        loop.step()
    assert len(launched.ops) == Update(optimizer, form, ("a", "b"), (("weight_decay", 0.1),), capturable=False).launches


def test_no_executor_runs_it():
    assert "pytorch" not in registry.names()
    assert "pytorch" in [strategy.name for strategy in registry.every()]
    with refuses(Code.REQUEST, "your own loop, which no executor runs; run baseline"):
        registry.require_executed(registry.get("pytorch"))
