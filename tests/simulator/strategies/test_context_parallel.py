"""Context parallelism: exact numbers, balanced work, what moves between devices, and one device that stands for all."""

from functools import partial

import pytest

from executors.binding import Binding, Forms
from executors.cpu.backend import CpuBackend
from simulator.engine.memory.over_time import carried_bytes
from simulator.model.division.context import ATTENTION
from simulator.model.division.divide import Division
from simulator.model.job import Job
from simulator.strategies.fsdp import CONTEXT
from tests.support import models, raw_attention
from tests.support.applicable import core_groups
from tests.support.folding import by_flops, check_folded
from tests.support.jobs import job_of, planned
from tests.support.linked_gpus import gpus
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from traces.errors import Code

#: Grouped heads with rotary positions; fused projections with learned positions; a mask with a row for each query.
LLAMA = "lm:form=llama,layers=2,d_model=16,heads=4,kv_heads=2,ffn=24,vocab=32"
GPT = "lm:form=gpt,layers=2,d_model=16,heads=4,vocab=32"
ALIBI = f"{GPT},positions=alibi"


def error(text: str, devices: int, job: Job) -> float:
    """The largest error of some steps of a plan on CPU devices, against plain PyTorch."""
    machine = core_groups(devices)
    return largest_error(job, planned(text, job, machine), CpuBackend(machine, cores=[0] * devices))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("model", [LLAMA, GPT])
@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("fsdp:cp=2", 2), ("fsdp:cp=4", 4), ("fsdp:cp=2,tp=2", 4), ("fsdp:cp=2,tp=2,sp=off,shard=0", 4), ("fsdp:cp=2,hybrid=2", 4),
        ("fsdp:cp=2,shard=1,gradients=fused", 4), ("fsdp:cp=2,tp=2,shard=0,gradients=fused", 4),
    ],
)  # fmt: skip
def test_it_trains_as_plain_pytorch_does(text, devices, model):
    assert error(text, devices, Job(model, 4, 16, precision="fp64", optimizer="adam")) <= 1e-10


@pytest.mark.thorough
@pytest.mark.parametrize("fields", [{"checkpoint": "full"}, {"accumulate": 2, "clip_norm": 0.1}, {"checkpoint": "selective"}])
def test_it_trains_so_with_checkpoints_microbatches_and_clipping(fields):
    assert error("fsdp:cp=2,tp=2", 4, Job(LLAMA, 4, 16, precision="fp64", optimizer="adam", **fields)) <= 1e-10
    assert error("fsdp:cp=2", 4, Job(GPT, 4, 16, precision="fp64", optimizer="adam", **fields)) <= 1e-10


@pytest.mark.sampled(5)
@pytest.mark.parametrize("model", ["encoder", "window", "last", "written_out", "mean"])
def test_models_that_are_no_decoders_are_exact_too(model):
    assert error("fsdp:cp=2", 2, job_of(model, optimizer="adam")) <= 1e-10


def test_a_fused_loss_is_of_a_devices_own_tokens():
    """Its backward gets one number for all tokens, of which each device repeats as many as it has tokens; logits are not gathered."""
    fused = Job(f"{LLAMA},loss=fused", 2, 16, precision="fp64", optimizer="adam")
    assert error("fsdp:cp=2", 2, fused) <= 1e-10
    of_loss = [op for op in fused.graph(division=Division(1, context=2)).ops if op.layer == "loss"]
    assert not [op.name for op in of_loss if "all_gather" in op.body.target]
    assert {op.inputs[2].shape[0] for op in of_loss if "cross_entropy_backward" in op.body.target} == {2 * 16 // 2}


def test_a_mask_of_scores_is_cut_along_its_queries():
    assert error("fsdp:cp=2,tp=2", 4, Job(ALIBI, 4, 16, precision="fp64", optimizer="adam")) <= 1e-10


@pytest.mark.sampled(2)
@pytest.mark.parametrize("padded", [1, 32])
def test_the_kernels_of_gpus_get_merged_logarithms_as_they_lay_them_out(padded, monkeypatch):
    raw_attention.install(monkeypatch, padded)
    monkeypatch.setattr("executors.cpu.backend.Binding", partial(Binding, forms=Forms(cuda=True)))
    assert error("fsdp:cp=2", 2, Job(GPT, 2, 16, precision="fp64")) <= 1e-10


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_all_devices_have_as_much_work(degree):
    """A device's two chunks see as many earlier chunks as those of any other, and the parts together have the FLOPs of the whole."""
    job = Job(LLAMA, 2, 24)
    graphs = [job.graph(division=Division(1, context=degree, context_rank=rank)) for rank in range(degree)]
    work = sum(op.body.flops for op in job.graph().ops) / degree
    assert [sum(op.body.flops for op in graph.ops) for graph in graphs] == pytest.approx([work] * degree)
    length = 24 // (2 * degree)
    parts = [[op for op in graph.ops if op.body.target == ATTENTION and "earlier" in op.name] for graph in graphs]
    assert {sum(op.reads[1].shape[2] // length for op in own) for own in parts} == {2 * (2 * degree - 1)}  # in two layers


def test_keys_and_values_are_gathered_in_each_direction_and_their_gradients_scattered():
    """Two sequences of 16 tokens, whose keys and values have 8 float32 each: by layer and tensor."""
    plan = planned("fsdp:cp=2,fold=on", Job(LLAMA, 2, 16), gpus())
    moved = [(task.body.operation, task.body.payload_bytes(task)) for task in plan.tasks if task.stream == CONTEXT]
    whole = 2 * 16 * 8 * 4
    assert moved == [*[("all-gather", whole)] * 4, ("all-reduce", 8), *[*[("all-gather", whole)] * 2, *[("reduce-scatter", whole)] * 2] * 2]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", ["fsdp:cp=2", "fsdp:cp=2,tp=2", "fsdp:cp=4,reshard=off"])
def test_one_device_stands_for_all(text):
    """A folded plan has the time of the whole plan where times follow from FLOPs and bytes, and its device the memory."""
    check_folded(text, Job(LLAMA, 4, 16, accumulate=2 if text == "fsdp:cp=2" else 1), by_flops)


def test_parameters_are_sharded_over_all_devices_with_the_same_part_of_the_layers():
    whole, divided = (carried_bytes(planned(text, Job(LLAMA, 4, 16), gpus(4)))["g0"] for text in ("fsdp", "fsdp:cp=2"))
    assert whole == divided


def test_a_plan_says_what_is_divided():
    assert planned("fsdp:cp=2", Job(LLAMA, 4, 16), gpus(2)).semantics["divided"] == "tokens of each sequence over 2 devices"
    both = planned("fsdp:cp=2,tp=2", Job(LLAMA, 4, 16), gpus(4)).semantics["divided"]
    assert both.startswith("tokens of each sequence over 2 devices, and heads, hidden channels and vocabulary over 2 devices")


def test_what_it_cannot_do_is_refused():
    with refuses(Code.REQUEST, "tp=2 x cp=2 does not divide 6 devices"):
        planned("fsdp:cp=2,tp=2", Job(LLAMA, 6, 16), gpus(6))
    with refuses(Code.MODEL, "18 tokens .* choose a multiple of 4"):
        planned("fsdp:cp=2", Job(LLAMA, 2, 18), gpus(2))
    with refuses(Code.MODEL, "dropout"):
        planned("fsdp:cp=2", Job(f"{models.__file__}:attention_dropout", 4), gpus(2))
    with refuses(Code.BATCH, "2 replicas"):
        planned("fsdp:cp=2", Job(LLAMA, 3, 16), gpus(4))
