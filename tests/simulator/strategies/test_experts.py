"""Models with experts under strategies for several devices: exact numbers, and what plans assume."""

import pytest

from executors.cpu.backend import CpuBackend
from simulator.model.job import Job
from tests.support.applicable import core_groups
from tests.support.jobs import planned
from tests.support.linked_gpus import gpus
from tests.support.same_numbers import largest_error

#: A dense layer, then one of four experts of which each token passes two, and a shared one.
MODEL = "lm:form=llama,layers=2,d_model=16,heads=4,kv_heads=2,ffn=24,vocab=32,experts=4,active=2,expert_ffn=8,shared_ffn=8,dense_layers=1"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("fsdp", {}),
        ("fsdp:shard=1", {"accumulate": 2, "clip_norm": 0.1}),
        ("fsdp:tp=2", {"checkpoint": "selective"}),
        ("fsdp:cp=2", {}),
        ("data-parallel", {"checkpoint": "full"}),
        ("1f1b:stages=2,microbatches=2", {"checkpoint": "full"}),
    ],
)
def test_it_trains_as_plain_pytorch_does(text, fields):
    machine, job = core_groups(2), Job(MODEL, 4, 8, precision="fp64", optimizer="adam", **fields)
    assert largest_error(job, planned(text, job, machine), CpuBackend(machine, cores=[0] * 2)) <= 1e-10


@pytest.mark.parametrize("text", ["fsdp", "data-parallel", "1f1b:stages=2,microbatches=2"])
def test_a_plan_says_that_experts_are_assumed_to_be_balanced(text):
    assert planned(text, Job(MODEL, 4, 8), gpus(2)).semantics["experts"] == "predicted with as many tokens for each"
    assert "experts" not in planned(text, Job(MODEL.partition(",experts")[0], 4, 8), gpus(2)).semantics
