"""DistributedDataParallel and FSDP2 as plans: what PyTorch's own parallel loops issue, and what their hooks take of the host."""

import pytest
import torch
from torch import distributed

from simulator.engine.costs import hooks
from simulator.engine.costs.model import CostModel
from simulator.engine.memory.over_time import carried_bytes
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.plan.task import BUFFER, COLLECTIVE
from simulator.predict.forecast import answer, plan_of
from simulator.predict.target import Target, references
from simulator.strategies import registry
from simulator.strategies.pytorch_ddp import BUCKET_BYTES, FIRST_BUCKET_BYTES
from tests.support import mlp
from tests.support.jobs import MLP
from tests.support.refusals import refuses
from traces.documents.profile import Identity, LoopCosts, Profile
from traces.errors import Code

#: Three layers of one weight each.
UNBIASED = f"{mlp.__file__}:unbiased"
MACHINE = load_machine("2xh100")
LOOPS = ("pytorch-ddp", "pytorch-fsdp")


def planned(text: str, job: Job, machine=MACHINE) -> Plan:
    return plan_of(job, text, Target.of(CostModel(machine)))


def names(plan: Plan, kind: str) -> list[str]:
    return [task.name for task in plan.tasks if task.body.kind == kind]


def test_ddp_copies_each_gradient_into_a_bucket_sums_it_and_copies_it_back_after_backward():
    plan = planned("pytorch-ddp", Job(UNBIASED, 4))
    order = [task.name for task in plan.tasks if task.phase == COLLECTIVE and task.body.kind != "hook"]
    weights = ["4.weight", "2.weight", "0.weight"]
    assert order == [*(f"{name}@cuda:0/fill" for name in weights), "bucket 0", *(f"{name}@cuda:0/take" for name in weights)]
    every = [task.name for task in plan.tasks]
    assert every.index("4.weight@cuda:0/fill") < every.index("2/mm.dW"), "as soon as backward has the gradient"
    assert [task.body.runs for task in plan.tasks if task.body.kind == "hook"] == ["ddp step", *["ddp parameter"] * 3, "ddp bucket"]


def test_buckets_hold_what_pytorch_puts_into_them():
    """The first one is closed at 1 MiB, the others at 25 MiB, and memory holds them beside the gradients."""
    job = Job("vgg11", 4, 32)
    plan = planned("pytorch-ddp", job)
    filled = [task.reads[0] for task in plan.tasks if task.name.endswith("/fill")]
    tensors = [torch.empty(operand.shape, device="meta") for operand in filled]
    theirs, _ = distributed._compute_bucket_assignment_by_size(tensors, [FIRST_BUCKET_BYTES, BUCKET_BYTES])
    sums = [task for task in plan.tasks if task.body.kind == "collective"]
    assert [task.mutates[0].elements for task in sums] == [sum(tensors[at].numel() for at in bucket) for bucket in theirs]
    buckets = sum(value.operand().bytes for value in plan.values.values() if value.name.startswith("bucket"))
    assert buckets == sum(operand.bytes for operand in filled)
    ours = planned("data-parallel:fold=on", job)
    assert sum(carried_bytes(plan).values()) - sum(carried_bytes(ours).values()) == buckets


def test_ddp_sends_the_buffers_of_batch_norm_before_each_forward():
    plan = planned("pytorch-ddp", Job("resnet18", 4, 32))
    buffers = [value for value in plan.values.values() if value.kind == BUFFER and value.source is not None]
    sent = [task for task in plan.tasks if task.body.kind == "collective" and task.name.startswith("send buffers")]
    assert sum(task.mutates[0].elements for task in sent) == sum(value.operand().elements for value in buffers) > 0


def test_with_microbatches_ddp_sums_once():
    """As with `no_sync` for all but the last."""
    assert names(planned("pytorch-ddp", Job(UNBIASED, 8, accumulate=2)), "collective") == ["bucket 0"]


def test_fsdp2_gathers_each_block_twice_and_scatters_its_gradients_once():
    """In forward when the host reaches it, in backward one ahead. The second microbatch does all of it again."""
    plan = planned("pytorch-fsdp", Job(UNBIASED, 4))
    assert names(plan, "collective") == [
        "0/gather 0", "2/gather 0", "4/gather 0", "4/gather 0 again", "2/gather 0 again", "4/reduce", "0/gather 0 again", "2/reduce",
        "0/reduce",
    ]  # fmt: skip
    run = [task.body.runs.removeprefix("fsdp ") for task in plan.tasks if task.body.kind == "hook"]
    assert run == [
        "forward", *["pre-forward", "post-forward"] * 3, *["pre-backward", "post-backward"] * 3, "end", "dtensor update foreach",
    ]  # fmt: skip
    assert len(names(planned("pytorch-fsdp", Job(UNBIASED, 8, accumulate=2)), "collective")) == 18


def test_what_lies_outside_of_blocks_belongs_to_the_model_which_stays_gathered():
    job = Job("lm:form=llama,layers=2,d_model=16,heads=4,ffn=24,vocab=32", 4, image_size=6, optimizer="adamw")
    gathers = [name for name in names(planned("pytorch-fsdp", job), "collective") if "gather" in name]
    assert [name.split("/")[0] for name in gathers] == ["root", "blocks.0", "blocks.1", "blocks.1", "blocks.0"]


def test_hooks_take_as_much_longer_on_a_host_as_an_op_of_the_loop_does():
    plan, host = planned("pytorch-fsdp", Job(UNBIASED, 4)), load_machine("2xv100").hosts[0]
    task = next(task for task in plan.tasks if task.name.endswith("fsdp pre-forward@cuda:0"))
    call_s, parameter_s = hooks.record()["fsdp pre-forward"]
    own = CostModel(load_machine("2xv100")).cost(task)
    assert own.issue_s == pytest.approx((call_s + parameter_s) * host.loop_s / hooks.LOOP_S)
    assert (own.cold_s, own.launches) == (0.0, 0), "the GPU runs nothing"


def test_the_host_waits_for_nothing_while_it_runs_hooks_and_issues_nothing_else():
    """Ops of a few numbers wait for the host: a step is what it takes to issue all tasks, hooks among them."""
    predicted = answer(Job(UNBIASED, 4), "pytorch-fsdp", Target.of(CostModel(MACHINE)))
    costs = zip(predicted.plan.tasks, predicted.costs, strict=True)
    of_hooks = sum(cost.issue_s for task, cost in costs if task.body.kind == "hook")
    plain = answer(Job(UNBIASED, 2), "pytorch", Target.of(CostModel(MACHINE)))
    assert predicted.timeline.step_s > of_hooks + plain.timeline.step_s / 2


def test_every_answer_for_several_devices_has_them_and_none_for_one():
    assert references(MACHINE) == ("pytorch", "pytorch-graph", *LOOPS)
    assert references(this_cpu(devices=2, library="gloo")) == ("pytorch", *LOOPS)
    assert not set(LOOPS) & {*references(load_machine("h100")), *references(load_machine("h100", partitions=2))}
    assert not set(LOOPS) & set(registry.names()), "no executor runs them"
    with refuses(Code.REQUEST, "your own loop, which no executor runs; run data-parallel"):
        registry.require_executed(registry.get("pytorch-ddp"))
    with refuses(Code.DEVICES, "runs a process on each of several devices"):
        planned("pytorch-ddp", Job(MLP, 4), load_machine("h100"))


def test_processes_on_a_cpu_each_run_their_hooks():
    """Of two processes joined by gloo both are in the plan, and hooks take time of their cores."""
    machine = this_cpu(devices=2, library="gloo")
    predicted = answer(Job(UNBIASED, 4), "pytorch-ddp", Target.of(CostModel(machine)))
    own = [task for task in predicted.plan.tasks if task.body.kind == "hook"]
    assert {task.device for task in own} == {"cpu:0", "cpu:1"}
    costs = zip(predicted.plan.tasks, predicted.costs, strict=True)
    assert all(cost.cold_s > 0 for task, cost in costs if task.body.kind == "hook" and task.body.runs != "ddp step")


@pytest.mark.parametrize("text", LOOPS)
def test_a_process_of_a_cpu_has_the_loop_of_its_own_threads(text):
    """That of plain PyTorch has more of them, which may take longer to start and to wait for."""
    machine, slow, fast = this_cpu(devices=2, library="gloo"), LoopCosts(forward_s=1e-2), LoopCosts(forward_s=1e-6)

    def step_s(**loops: LoopCosts) -> float:
        model = CostModel(machine, Profile(identity=Identity(kind="cpu"), **loops))
        return answer(Job(UNBIASED, 4), text, Target(machine, model)).timeline.step_s

    assert step_s(loop=slow, rank_loop=fast) == step_s(loop=fast) < step_s(loop=slow)


def test_on_a_cpu_the_thread_that_computes_waits_for_each_collective_of_fsdp2():
    """A CPU has no streams, while DDP's sums run on the library's threads."""
    machine, job = this_cpu(devices=2, library="gloo"), Job(UNBIASED, 4)
    sums = {text: {task.stream for task in planned(text, job, machine).tasks if task.body.kind == "collective"} for text in LOOPS}
    assert sums == {"pytorch-ddp": {1}, "pytorch-fsdp": {0}}
