"""The option `update` of every strategy that has it: updates a step late follow their recurrence, and nothing waits for their sums."""

import copy

import pytest
import torch

from executors.cpu.backend import CpuBackend
from executors.tensors import job_tensors
from simulator.engine.costs.cost import Cost
from simulator.engine.simulation import simulate
from simulator.model.job import Job
from simulator.strategies import registry as strategies
from tests.support import mlp
from tests.support.applicable import core_groups
from tests.support.jobs import job_of, planned
from tests.support.linked_gpus import gpus
from tests.support.same_numbers import largest_error

#: Two stages of two replicas.
TWO = "placement=4,replicas=2,update=asynchronous"
LATE = (
    "data-parallel:update=asynchronous", "fsdp:update=asynchronous", "fsdp:shard=1,update=asynchronous,streams=turbodl", f"gpipe:{TWO}",
    f"1f1b:{TWO},shard=1", f"zero-bubble:{TWO}", f"1f1b:{TWO},rematerialize=on,granularity=stage", "interleaved-1f1b:update=asynchronous",
)  # fmt: skip


def recurrence(job: Job, steps: int) -> dict[str, torch.Tensor]:
    """The parameters after some steps of w[t + 1] = w[t] - lr * g[t - 1], in which g[t] is the gradient at w[t], and after the last g."""
    built = job.build()
    module, lr = built.module, dict(job.hyper)["lr"]
    late: list[torch.Tensor] = []
    for step in range(steps + 1):
        own = []
        if step < steps:
            own = list(torch.autograd.grad(built.loss(module(*built.inputs), built.target), [*module.parameters()]))
        with torch.no_grad():
            for parameter, gradient in zip(module.parameters(), late, strict=False):
                parameter -= lr * gradient
        late = own
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", LATE)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_updates_a_step_late_follow_their_recurrence(text, steps):
    job, machine = job_of("chain", 8, optimizer="sgd", lr=0.3), core_groups(4)
    built = job.build()
    program = CpuBackend(machine, cores=[0] * 4).load(planned(text, job, machine), job_tensors(job, copy.deepcopy(built), job.graph()))
    program.run(steps)
    program.sync()
    current = {name: torch.zeros_like(parameter) for name, parameter in built.module.named_parameters()}
    program.copy_current(current)
    expected = recurrence(job, steps)
    assert max(float((current[name] - expected[name]).abs().max()) for name in expected) <= 1e-12


def test_every_strategy_with_the_option_has_all_its_values():
    """Except those of one device, which are it, and TurboDL, whose option of that name is another."""
    having = [each for each in strategies.every() if "update" in each.option_names and each.name != "turbodl"]
    assert {each.name for each in having} >= {"data-parallel", "fsdp", "owt", "deepa", "gpipe", "1f1b", "interleaved-1f1b", "zero-bubble"}
    for each in having:
        assert each.options({"update": "asynchronous"}).lag == 1
        assert each.options({"update": "forward-fusion"}).notes


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gradients", ["kept", "fused", "held"])
@pytest.mark.parametrize(
    ("text", "accumulate"),
    [
        *((text, n) for text in ("data-parallel:bucket=25", "data-parallel:overlap=off", "fsdp:shard=0", "fsdp:shard=1") for n in (1, 2)),
        *((f"{text}replicas=2", 1) for text in ("gpipe:", "1f1b:shard=1,", "zero-bubble:granularity=stage,")),
    ],
)
def test_backward_fusion_of_gradients_that_last_from_step_to_step(text, accumulate, gradients):
    machine = core_groups(4)
    job = job_of("chain", 8, optimizer="adam", accumulate=accumulate)
    plan = planned(f"{text},gradients={gradients},update=backward-fusion", job, machine)
    assert largest_error(job, plan, CpuBackend(machine, cores=[0] * 4)) <= 1e-10


#: A decoder whose layers and tokens devices divide.
DECODER = Job("lm:form=llama,layers=1,d_model=16,heads=4,ffn=24,vocab=32", 4, image_size=8, precision="fp64", optimizer="adamw")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("update", ["backward-fusion", "forward-fusion", "asynchronous"])
@pytest.mark.parametrize("text", ["fsdp:hybrid=2", "fsdp:cp=2,shard=1", "fsdp:cp=2,tp=2,streams=turbodl", "1f1b:stages=2,tp=2"])
def test_shards_of_groups_and_divided_layers_and_tokens_are_updated_alike(text, update):
    machine = core_groups(4)
    plan = planned(f"{text},update={update}", DECODER, machine)
    assert largest_error(DECODER, plan, CpuBackend(machine, cores=[0] * 4), 3) <= 1e-10


def seconds(text: str) -> float:
    """The time of a step of three layers in two stages, if a product takes 1 s, and the sum of a gradient over two replicas 0.5 s."""
    machine = gpus(4, bytes_per_s=8 * 8 * 4 / 0.5)
    plan = planned(text, Job(f"{mlp.__file__}:square", 8), machine)
    timed = [1.0 if task.body.op == "aten.mm.default" else 0.0 for task in plan.tasks]
    return simulate(plan, machine, [Cost(task.name, s, s) for task, s in zip(plan.tasks, timed, strict=True)]).step_s


@pytest.mark.parametrize(("strategy", "computing_s"), [("gpipe", 13.25), ("1f1b", 11.25)])
@pytest.mark.parametrize(
    ("update", "exposed_s"), [("baseline", 2 * 0.5), ("backward-fusion", 0.5), ("forward-fusion", 0.5), ("asynchronous", 0.0)]
)
def test_a_pipeline_waits_for_the_sums_of_its_first_stage(strategy, computing_s, update, exposed_s):
    """Of both layers after its last backward; with fusion, of the last one; of none if they are applied a step late."""
    text = f"{strategy}:placement=2,replicas=2,microbatches=2,update={update}"
    assert seconds(text) == pytest.approx(computing_s + exposed_s)
