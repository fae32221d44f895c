"""Graphs of decoders with many layers, which are made from those of four layers."""

from dataclasses import fields, replace

import pytest

from simulator.model.capture.capture import capture
from simulator.model.capture.stack import deepened
from simulator.model.graph import TrainingGraph
from simulator.model.job import Job

SIZES = "d_model=16,heads=2,ffn=24,vocab=32"
LLAMA, GPT = f"lm:form=llama,layers=7,{SIZES}", f"lm:form=gpt,layers=7,{SIZES}"
EXPERTS = "experts=2,active=1,expert_ffn=8,shared_ffn=8,dense_layers=1,router=sigmoid"
LATENT = "kv_lora=8,q_lora=8,rope_dim=4,head_dim=4,kv_heads=2"


def in_few(job: Job) -> TrainingGraph:
    return capture(lambda: job.build(2, factory=job.factory.stack.few), 2, repeats=False)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("precision", ["fp32", "amp", "amp-fp16", "bf16"])
@pytest.mark.parametrize(
    "model",
    [
        LLAMA,
        f"{LLAMA},kv_heads=1,qk_norm=on,tied=on,fused=on,loss=fused",
        f"{LLAMA},{EXPERTS},{LATENT}",
        GPT,
        f"{GPT},positions=alibi,norm=low,biases=off",
    ],
)
def test_a_deep_graph_is_the_one_that_would_be_captured(model, precision):
    job = Job(model, 2, image_size=4, precision=precision)
    captured, made = capture(lambda: job.build(2), 2, repeats=False), job.graph()
    assert len(in_few(job).ops) < len(captured.ops)
    for field in fields(captured):
        own, wanted = getattr(made, field.name), getattr(captured, field.name)
        assert own == wanted
        assert list(own) == list(wanted) if isinstance(wanted, dict) else True, "values and parameters come in the same order"


def test_layers_that_differ_make_no_deeper_graph():
    """The third of the four issues another op than the second, has another value, or reads what a layer before the second has made."""
    job = Job(LLAMA, 2, image_size=4)
    few, stack = in_few(job), job.factory.stack
    assert deepened(few, stack) is not None
    at = next(index for index, op in enumerate(few.ops) if op.layer.startswith("blocks.2.") and op.body.target == "aten.mm.default")

    def changed(**changes) -> TrainingGraph:
        return replace(few, ops=(*few.ops[:at], replace(few.ops[at], **changes), *few.ops[at + 1 :]))

    op = few.ops[at]
    early = next(each for each in few.ops if each.layer == "blocks.0").writes[0]
    assert deepened(changed(body=replace(op.body, flops=1)), stack) is None
    assert deepened(changed(reads=(early, *op.reads[1:])), stack) is None
    name = op.writes[0].value
    assert deepened(replace(few, values=few.values | {name: replace(few.values[name], dtype="float64")}), stack) is None


def test_models_of_few_layers_are_captured_whole():
    assert Job(LLAMA.replace("layers=7", "layers=5"), 2).factory.stack is None
    assert Job("lenet5", 2).factory.stack is None
