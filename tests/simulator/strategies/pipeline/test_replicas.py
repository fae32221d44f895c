"""Replicas of pipelines: which devices they have, the numbers of plain PyTorch, and one pipeline that stands for all."""

from collections import Counter
from dataclasses import replace

import pytest

from executors.cpu.backend import CpuBackend
from executors.tensors import job_tensors
from simulator.engine.costs.cost import Cost
from simulator.engine.costs.model import CostModel
from simulator.engine.memory.over_time import carried_bytes
from simulator.engine.simulation import simulate
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.json import dump, load
from simulator.plan.messages import between_devices
from simulator.plan.plan import Plan
from simulator.plan.task import BUFFER, OPTIMIZER_STATE, PARAMETER
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from simulator.strategies.pipeline import planning
from tests.support import mlp, models
from tests.support.applicable import core_groups
from tests.support.jobs import job_of, planned
from tests.support.linked_gpus import gpus
from tests.support.pipeline_plans import plan_pipeline
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from traces.errors import Code

CHAIN = f"{models.__file__}:chain"


def test_a_stages_replicas_are_neighbors_and_sum_its_gradients_after_its_last_backward():
    """As in Megatron-LM: on two nodes of eight GPUs, gradients stay inside a node and activations go to the same place of the other."""
    machine = load_machine("16xa100")
    plan = planned("1f1b:placement=4,replicas=8,fold=off", Job(CHAIN, 16), machine)
    sums = {task.name: task.body.devices for task in plan.tasks if task.body.kind == "collective"}
    assert sums == {f"reduce {stage}": tuple(f"cuda:{stage * 8 + replica}" for replica in range(8)) for stage in range(2)}
    ends = {task.body.ends for task in plan.tasks if between_devices(task)}
    assert ends == {(f"cuda:{a}", f"cuda:{b}") for r in range(8) for a, b in ((r, 8 + r), (8 + r, r))}
    order = [task.name for task in plan.tasks]
    for stage in range(2):
        own = [task.name for task in plan.tasks if task.device == f"cuda:{8 * stage}" and task.phase == "backward"]
        assert order.index(own[-1]) < order.index(f"reduce {stage}") < order.index(f"update {stage}")


def test_an_interleaved_pipeline_has_several_stages_on_each_of_its_devices():
    plan = planned("interleaved-1f1b:replicas=2,placement=2-4-6", Job(CHAIN, 8), gpus(4))
    sums = {task.name: task.body.devices for task in plan.tasks if task.body.kind == "collective"}
    assert sums == {f"reduce {stage}": (("g0", "g1"), ("g2", "g3"))[stage % 2] for stage in range(4)}


STRATEGIES = (
    "gpipe:replicas=2", "1f1b:replicas=2,microbatches=4", "interleaved-1f1b:replicas=2", "zero-bubble:replicas=2,shape=v",
    "model-parallel:replicas=2", "1f1b:replicas=2,rematerialize=on", "1f1b:replicas=4,stages=1", "1f1b:replicas=2,update=backward-fusion",
    "1f1b:replicas=2,granularity=stage", "1f1b:replicas=2,gradients=kept", "zero-bubble:replicas=2,shape=v,gradients=kept",
    "1f1b:replicas=2,gradients=held", "gpipe:replicas=2,update=forward-fusion", "zero-bubble:replicas=2,update=asynchronous",
    "1f1b:replicas=2,update=forward-fusion,granularity=stage", "1f1b:replicas=2,update=asynchronous,rematerialize=on",
)  # fmt: skip
SHARDED = [f"{text},shard=1" for text in STRATEGIES]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("text", [*STRATEGIES, *SHARDED])
@pytest.mark.parametrize(("model", "fields"), [("residual", {"optimizer": "adam"}), ("chain", {"form": "for"})], ids=["residual", "chain"])
def test_it_trains_as_plain_pytorch_does(text, model, fields):
    machine = core_groups(4)
    job = job_of(model, 8, **fields)
    assert largest_error(job, plan_pipeline(text, job, machine), CpuBackend(machine, cores=[0] * 4)) <= 1e-10


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("link_bytes_per_s", [0.0, 1e9])
def test_weights_that_two_stages_use_are_sent_from_the_one_that_updates_them(shard, link_bytes_per_s):
    machine = core_groups(4, link_bytes_per_s)
    job = job_of("tied", 8)
    gradients = "kept" if link_bytes_per_s else "freed"
    plan = plan_pipeline(f"gpipe:placement=1,replicas=2,shard={shard},gradients={gradients}", job, machine)
    assert largest_error(job, plan, CpuBackend(machine, cores=[0] * 4)) <= 1e-10


@pytest.mark.thorough
def test_three_replicas_hold_uneven_rows_of_a_checkpointed_stage_under_autocast():
    """The shards are cast before they are gathered, and the casts that checkpointing repeats are left out too."""
    model = "lm:form=llama,layers=4,d_model=32,heads=2,kv_heads=2,ffn=64,vocab=100"
    job = Job(model, 6, image_size=8, precision="amp", checkpoint="full")
    plan = planned("1f1b:stages=2,replicas=3,shard=1,microbatches=2", job, load_machine("8xh100"))
    gathers = [task for task in plan.tasks if task.body.kind == "collective" and "/gather" in task.name]
    assert {task.writes[0].dtype for task in gathers} == {"bfloat16", "float32"}
    casts = [task for task in plan.tasks if task.body.op == "aten._to_copy.default" and not task.name.endswith(tuple(plan.devices))]
    assert casts
    assert not {task.reads[0].value.partition("@")[0] for task in casts} & set(job.graph(1, 6).parameters)


def held(plan: Plan, kind: str) -> list[int]:
    """Bytes of a kind of values that each device of the plan carries."""
    return [sum(v.operand().bytes for v in plan.values.values() if (v.device, v.kind) == (device, kind)) for device in plan.devices]


def test_optimizer_state_and_parameters_of_a_stage_are_divided_among_its_replicas():
    job = Job(f"{mlp.__file__}:square", 8, optimizer="momentum")
    whole, shards = (planned(f"gpipe:placement=1,replicas=2{more}", job, gpus(4)) for more in ("", ",shard=1"))
    for kind in (PARAMETER, OPTIMIZER_STATE):
        assert [2 * own for own in held(shards, kind)] == held(whole, kind)


def test_gradients_that_are_kept_lie_in_every_stage_from_step_to_step():
    job = Job(CHAIN, 8)
    freed, kept = (planned(f"1f1b:stages=2,replicas=2,gradients={gradients}", job, gpus(4)) for gradients in ("freed", "kept"))
    more = [b - a for a, b in zip(held(freed, BUFFER), held(kept, BUFFER), strict=True)]
    assert more == held(kept, PARAMETER)
    assert [(task.name, task.device) for task in kept.tasks[:4]] == [
        ("zero gradients 0", "g0"), ("zero gradients 0@replica1", "g1"), ("zero gradients 1", "g2"), ("zero gradients 1@replica1", "g3"),
    ]  # fmt: skip


def timed(plan: Plan, machine: Machine) -> float:
    """The seconds of a step if each op takes ten microseconds, and what moves takes what links allow."""
    return simulate(plan, machine, [Cost(task.name, 1e-5, 1e-5) for task in plan.tasks]).step_s


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shared", ["", "network"])
@pytest.mark.parametrize(
    "text",
    [
        "gpipe:", "1f1b:shard=1,", "interleaved-1f1b:", "zero-bubble:granularity=stage,", "1f1b:update=backward-fusion,",
        "1f1b:gradients=kept,shard=1,", "1f1b:gradients=held,shard=1,", "1f1b:update=backward-fusion,shard=1,",
        "1f1b:update=asynchronous,", "gpipe:update=forward-fusion,shard=1,",
    ],
)  # fmt: skip
def test_one_pipeline_stands_for_all(text, shared):
    """A folded plan has the time of the whole plan and its devices their memory, also if all messages share one link."""
    machine = gpus(8, 1e6, shared)
    one, every = (planned(f"{text}replicas=4,fold={fold}", Job(CHAIN, 16), machine) for fold in ("on", "off"))
    assert one.devices == ("g0", "g4")
    assert one.members == {"g0": ("g0", "g1", "g2", "g3"), "g4": ("g4", "g5", "g6", "g7")}
    assert load(dump(one)) == one
    assert one.semantics["folded"] == "One pipeline on 2 devices stands for 4, which do the same"
    assert timed(one, machine) == pytest.approx(timed(every, machine), rel=1e-9)
    assert [carried_bytes(one)[device] for device in one.devices] == [carried_bytes(every)[device] for device in one.devices]
    if shared:
        assert timed(replace(one, classes=()), machine) < timed(every, machine) * 0.99


#: A decoder whose projections are three, and one with a single one.
LLAMA = "lm:form=llama,layers=2,d_model=16,heads=4,kv_heads=2,ffn=24,vocab=32"
GPT = "lm:form=gpt,layers=2,d_model=16,heads=4,vocab=32"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("model", "text", "devices", "checkpoint"),
    [
        (LLAMA, "1f1b:stages=2,tp=2", 4, "none"),
        (LLAMA, "1f1b:stages=2,tp=2,sp=off,replicas=2,shard=1", 8, "none"),
        (GPT, "gpipe:stages=2,tp=2,replicas=2", 8, "full"),
        (LLAMA, "zero-bubble:stages=2,tp=2", 4, "none"),
        (LLAMA, "interleaved-1f1b:stages=4,tp=2", 4, "none"),
        (LLAMA, "1f1b:stages=2,tp=2,replicas=2,shard=1,gradients=held", 8, "none"),
    ],
)
def test_stages_whose_layers_are_divided_train_as_plain_pytorch_does(model, text, devices, checkpoint):
    job, machine = Job(model, 8, 8, precision="fp64", optimizer="adamw", checkpoint=checkpoint), core_groups(devices)
    assert largest_error(job, planned(text, job, machine), CpuBackend(machine, cores=[0] * devices)) <= 1e-10


def test_devices_that_divide_layers_are_neighbors_and_replicas_come_next():
    machine = load_machine("16xa100")
    plan = planned("1f1b:stages=2,replicas=4,tp=2,fold=off", Job(LLAMA, 16, 8), machine)
    groups = {task.body.devices for task in plan.tasks if task.body.kind == "collective"}
    pairs = {(f"cuda:{n}", f"cuda:{n + 1}") for n in range(0, 16, 2)}
    replicas = {tuple(f"cuda:{stage * 8 + rank + 2 * r}" for r in range(4)) for stage in range(2) for rank in range(2)}
    assert groups == pairs | replicas


@pytest.mark.parametrize("text", ["1f1b:stages=2,tp=2,replicas=2", "gpipe:stages=2,tp=2,sp=off,shard=1,replicas=2"])
def test_one_pipeline_stands_for_all_whose_layers_are_divided(text):
    machine = gpus(8, 1e6)
    one, every = (planned(f"{text},fold={fold}", Job(LLAMA, 8, 8), machine) for fold in ("on", "off"))
    assert one.devices == ("g0", "g4")
    assert timed(one, machine) == pytest.approx(timed(every, machine), rel=1e-9)
    assert [carried_bytes(one)[device] for device in one.devices] == [carried_bytes(every)[device] for device in one.devices]


def test_a_long_folded_plan_has_a_task_for_an_actions_collectives_of_a_kind(monkeypatch):
    machine, job = gpus(4, 1e6), Job(LLAMA, 8, 8)
    long = planned("1f1b:stages=2,tp=2,fold=on", job, machine)
    monkeypatch.setattr(planning, "MOST_OPS", 10)
    short = planned("1f1b:stages=2,tp=2,fold=on", job, machine)

    def moved(plan: Plan) -> Counter:
        """How many collectives of each kind and size a device runs."""
        counts: Counter = Counter()
        for task in plan.tasks:
            if task.body.kind == "collective":
                counts[task.device, task.body.operation, task.body.payload_bytes(task)] += task.body.times
        return counts

    assert moved(short) == moved(long)
    assert sum(task.body.work(task).flops for task in short.tasks) == sum(task.body.work(task).flops for task in long.tasks)
    assert len(short.tasks) < len(long.tasks) / 5
    assert [carried_bytes(short)[device] for device in short.devices] == [carried_bytes(long)[device] for device in long.devices]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("checkpoint", ["none", "selective", "full"])
def test_a_long_folded_plan_takes_about_as_long_and_as_much_memory_as_one_of_single_ops(checkpoint, monkeypatch):
    machine, job = load_machine("16xh100"), Job("gpt2:small", 16, 256, precision="amp", optimizer="adamw", checkpoint=checkpoint)
    long, short = [], []
    for most, into in ((10**9, long), (10, short)):
        monkeypatch.setattr(planning, "MOST_OPS", most)
        plan = planned("1f1b:stages=4,tp=2,replicas=2,shard=1,fold=on,microbatches=4", job, machine)
        own = forecast(plan, Target.of(CostModel(machine), "graph"))
        into += [own.timeline.step_s, *own.peak_bytes.values()]
    assert short == pytest.approx(long, rel=0.1)


def test_ops_that_run_beside_collectives_run_beside_the_task_that_stands_for_them(monkeypatch):
    """In backward, a product by weights runs while the gradient of the layer's input is summed: its list has no operands to wait for."""
    machine, job = gpus(4, 1e6), Job(LLAMA, 8, 8, precision="amp")
    monkeypatch.setattr(planning, "MOST_OPS", 10)
    plan = planned("1f1b:stages=2,tp=2,fold=on", job, machine)
    beside = [task for task in plan.tasks if "/beside " in task.name]
    collectives = {task.name: task for task in plan.tasks if task.body.kind == "collective"}
    assert beside
    for task in beside:
        collective = collectives[task.name.replace("/beside ", "/")]
        assert collective.after == task.after
        assert (task.reads, task.writes, task.mutates) == ((), (), ())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "text",
    ["1f1b:stages=2,tp=2", "gpipe:stages=2,tp=2,shard=1,replicas=2", "zero-bubble:stages=2,replicas=2", "interleaved-1f1b:stages=4,tp=2"],
)
def test_microbatches_that_are_copies_of_the_second_are_planned_as_if_each_were_made_by_itself(text, monkeypatch):
    machine, job = gpus(8 if "shard" in text else 4, 1e6), Job(LLAMA, 16, 8, optimizer="adamw")
    monkeypatch.setattr(planning, "MOST_OPS", 10)
    with_copies = planned(f"{text},fold=on,microbatches=4", job, machine)
    monkeypatch.setattr(planning, "may_copy", lambda schedule: False)
    each = planned(f"{text},fold=on,microbatches=4", job, machine)
    assert [task.name for task in with_copies.tasks] == [task.name for task in each.tasks]
    assert with_copies.body_keys == each.body_keys
    assert (with_copies.values.keys(), with_copies.storages) == (each.values.keys(), each.storages)
    assert (with_copies.losses, with_copies.gradients, with_copies.semantics) == (each.losses, each.gradients, each.semantics)
    assert timed(with_copies, machine) == timed(each, machine)


def test_a_folded_plan_does_not_run():
    machine = core_groups(4)
    job = Job(CHAIN, 8)
    plan = planned("gpipe:replicas=2,fold=on", job, machine)
    with refuses(Code.PLAN, "plan it with fold=off"):
        CpuBackend(machine, cores=[0] * 4).load(plan, job_tensors(job, job.build(), job.graph()))


def test_replicas_add_the_sum_of_gradients_to_the_time_of_their_pipeline():
    """Each replica takes the time of a pipeline of its share of the batch; the first stage, which ends last, then sums its gradients."""
    machine = gpus(4, 1e6)
    alone = timed(planned("gpipe:placement=4,microbatches=2", Job(CHAIN, 4, optimizer="sgd"), machine), machine)
    plan = planned("gpipe:placement=4,microbatches=2,replicas=2", Job(CHAIN, 8, optimizer="sgd"), machine)
    summed = next(task.body.payload_bytes(task) for task in plan.tasks if task.name == "reduce 0")
    assert timed(plan, machine) == pytest.approx(alone + summed / 1e6)  # each of two sends half of the bytes twice


def test_a_large_machine_is_folded_by_itself():
    plan = planned("1f1b:stages=2,replicas=128,microbatches=8", Job(CHAIN, 1024), load_machine("256xh100"))
    assert plan.devices == ("cuda:0", "cuda:128")
    assert {len(task.body.devices) for task in plan.tasks if task.body.kind == "collective"} == {128}
    assert {len(plan.counterparts(*task.body.ends)) for task in plan.tasks if between_devices(task)} == {128}


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("gpipe:replicas=0", Code.REQUEST, "replicas is 0; expected at least 1"),
        ("gpipe:replicas=3", Code.DEVICES, "4 devices do not divide into 3 replicas; give stages"),
        ("gpipe:tp=3", Code.DEVICES, "4 devices do not divide into stages of replicas=1 x tp=3 devices; give stages"),
        ("gpipe:replicas=3,stages=2", Code.DEVICES, "gpipe needs 6 devices, there are 4"),
        ("gpipe:replicas=3,stages=1", Code.BATCH, "--batch 8 does not divide among 3 replicas"),
        ("gpipe:replicas=2,microbatches=3", Code.BATCH, "--batch 8, of which each replica has 4, does not divide into 3 microbatches"),
        ("gpipe:shard=1", Code.REQUEST, "shard=1 goes with replicas=2 or more, and replicas is 1: it shards over"),
        ("gpipe:gradients=kept,update=forward-fusion", Code.REQUEST, "gradients=kept goes with update=baseline or backward-fusion, and"),
        ("gpipe:tp=0", Code.REQUEST, "tp is 0; expected at least 1"),
        ("1f1b:stages=2,tp=2,granularity=stage,fold=off", Code.REQUEST, "granularity=stage with tp=2 goes with fold=on only"),
        ("gpipe:stages=2,tp=4", Code.DEVICES, "gpipe needs 8 devices, there are 4"),
        ("pipedream:replicas=2", Code.NAME, "unknown option of strategy pipedream 'replicas'"),
    ],
)
def test_unusable_options_are_one_line(text, code, said):
    with refuses(code, said):
        planned(text, Job(CHAIN, 8), gpus(4))
