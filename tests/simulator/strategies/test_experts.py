"""Models with experts under strategies for several devices: exact numbers, and what plans assume; and experts divided among devices."""

import pytest
import torch

from executors.cpu.backend import CpuBackend
from executors.trainer import Trainer
from simulator.engine.memory.over_time import carried_bytes
from simulator.model.job import Job
from simulator.plan.bodies.op_class import GROUPED_PRODUCT
from simulator.strategies.fsdp import EXPERTS
from tests.support import lockstep, real_models
from tests.support.applicable import core_groups
from tests.support.folding import by_flops, check_folded
from tests.support.jobs import planned
from tests.support.linked_gpus import gpus
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from traces.errors import Code

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


# Expert parallelism.


TEXTS = ("fsdp", "fsdp:ep=2", "fsdp:ep=4")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("fields", [{}, {"checkpoint": "full"}, {"checkpoint": "selective"}])
def test_devices_that_divide_experts_have_the_gradients_of_plain_pytorch(devices, fields):
    """Each has an equal part of the batch; tokens go to the experts that they choose, not as many to each."""
    divided, plain = lockstep.gradients(Job(MODEL, 4, 8, precision="fp64", **fields), devices)
    assert divided.keys() == plain.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(divided[name], gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("precision", "size"), [("fp32", 4), ("amp", 2), ("mixed", 2)])
def test_rows_of_tokens_go_to_their_experts_and_come_back(precision, size):
    """Four sequences of 8 tokens, each for two experts: 64 rows of 16, there and back, forward and backward; the experts' numbers first."""
    plan = planned("fsdp:ep=2,fold=on", Job(MODEL, 16, 8, precision=precision), gpus(4))
    moved = [(task.body.operation, task.body.devices, task.body.payload_bytes(task)) for task in plan.tasks if task.stream == EXPERTS]
    assert moved == [("all-to-all", ("g0", "g1"), each) for each in (64 * 8, *[64 * 16 * size] * 4)]


def test_a_device_multiplies_the_rows_of_its_own_experts():
    plan = planned("fsdp:ep=2,fold=on", Job(MODEL, 16, 8), gpus(4))
    whole = planned("fsdp:fold=on", Job(MODEL, 16, 8), gpus(4))
    products, others = ([task for task in each.tasks if task.body.op == GROUPED_PRODUCT] for each in (plan, whole))
    assert products[0].reads[1].shape == (2, 16, 16)
    assert others[0].reads[1].shape == (4, 16, 16)
    assert [task.body.flops for task in products] == [task.body.flops for task in others]


@pytest.mark.parametrize(
    ("options", "dense", "experts"),
    [
        ("", [("reduce-scatter", 4)], [("reduce-scatter", 2)]),
        (",shard=1", [("reduce-scatter", 4)], [("reduce-scatter", 2)]),
        (",shard=0", [("all-reduce", 4)], [("all-reduce", 2)]),
        (",hybrid=2", [("reduce-scatter", 2), ("all-reduce", 2)], [("all-reduce", 2)]),
    ],
)
def test_gradients_of_experts_are_summed_over_the_devices_that_have_the_same(options, dense, experts):
    """Half of the experts have 2 x 3 x 16 x 8 parameters; device 0 has the same as device 2."""
    plan = planned(f"fsdp:ep=2,fold=on{options}", Job(MODEL, 16, 8), gpus(4))
    sums = {
        layer: [task for task in plan.tasks if task.layer == layer and task.body.kind == "collective" and "reduce" in task.body.operation]
        for layer in ("blocks.1", "blocks.1.feed_forward")
    }
    operations = [[(task.body.operation, len(task.body.devices)) for task in own] for own in sums.values()]
    assert operations == [dense, experts]
    assert sums["blocks.1.feed_forward"][0].body.payload_bytes(sums["blocks.1.feed_forward"][0]) == 4 * 2 * 3 * 16 * 8
    assert sums["blocks.1.feed_forward"][0].body.devices == ("g0", "g2")


def test_experts_are_held_once_by_all_devices_together():
    """Also where there are fewer experts than devices: these have a part of the hidden channels of each."""
    four, eight = ({text: carried_bytes(planned(text, Job(MODEL, 16, 8), gpus(n)))["g0"] for text in TEXTS} for n in (4, 8))
    assert four["fsdp"] == four["fsdp:ep=2"] == four["fsdp:ep=4"]
    assert eight["fsdp"] == eight["fsdp:ep=2"] == eight["fsdp:ep=4"]
    kept = {text: carried_bytes(planned(f"{text},shard=0".replace("fsdp,", "fsdp:"), Job(MODEL, 16, 8), gpus(4)))["g0"] for text in TEXTS}
    state = 4 * 2 * 4 * 3 * 16 * 8  # parameters and momentum of all experts
    assert [kept["fsdp"] - kept[text] for text in TEXTS] == [0, state // 2, state * 3 // 4]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("fsdp:ep=2", {"accumulate": 2}),
        ("fsdp:ep=4,shard=1", {"clip_norm": 0.1}),
        ("fsdp:ep=2,shard=0", {"clip_norm": 0.1, "checkpoint": "full"}),
    ],
)
def test_one_device_stands_for_all(text, fields):
    """A folded plan has the time of the whole plan where times follow from FLOPs and bytes, and its device the memory."""
    check_folded(text, Job(MODEL, 8, 8, **fields), by_flops)


def test_a_plan_says_that_experts_are_divided():
    assert planned("fsdp:ep=2", Job(MODEL, 8, 8), gpus(4)).semantics["divided"] == "experts over 2 devices"


def test_what_it_cannot_do_is_refused():
    with refuses(Code.REQUEST, "ep=3 does not divide 4 devices; choose one of 1, 2, 4"):
        planned("fsdp:ep=3", Job(MODEL, 8, 8), gpus(4))
    with refuses(Code.REQUEST, "ep=4 does not divide 2 devices"):
        planned("fsdp:ep=4,hybrid=2", Job(MODEL, 8, 8), gpus(4))
    with refuses(Code.REQUEST, "ep=2 goes with tp=1, and tp is 2"):
        planned("fsdp:ep=2,tp=2", Job(MODEL, 8, 8), gpus(4))
    with refuses(Code.MODEL, r"\(ep=8\) does not divide the 4 experts of blocks.1.feed_forward.gate_up; choose a divisor"):
        planned("fsdp:ep=8", Job(MODEL, 8, 8), gpus(8))
    with refuses(Code.MODEL, "the model has none; drop ep"):
        planned("fsdp:ep=2", Job(MODEL.partition(",experts")[0], 4, 8), gpus(2))
    with refuses(Code.MODEL, "has only how many each gets"):
        planned("fsdp:ep=2", Job(f"{real_models.__file__}:mixtral", 4), gpus(2))
    machine, job = core_groups(2), Job(MODEL, 4, 8)
    with refuses(Code.PLAN, "no executor runs experts elsewhere; drop ep"):
        Trainer(planned("fsdp:ep=2", job, machine), job, job.build(), CpuBackend(machine, cores=[0] * 2))
