"""A captured graph in units and stages: which ops belong together, and what goes between the stages."""

import random

import pytest

from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.strategies.builder import PlanBuilder
from simulator.strategies.pipeline.partition import units
from simulator.strategies.pipeline.pipeline import Cut, Sent
from simulator.strategies.pipeline.schedule import BACKWARD, BY_INPUT, BY_WEIGHT, FORWARD
from tests.support import staged_models
from traces.errors import SchedcastError


def job(name: str, batch: int = 4) -> Job:
    return Job(f"{staged_models.__file__}:{name}", batch)


def sent(name: str, placement: tuple[int, ...]) -> list[Sent]:
    stages = [f"cpu:{stage}" for stage in range(len(placement) + 1)]
    return Cut(job(name).graph(), placement).placed(stages, stages)[1]


@pytest.mark.parametrize(("model", "count"), [("lenet5", 5), ("vgg16", 16), ("resnet20", 20), ("resnet18", 21)])
def test_a_model_has_as_many_units_as_papers_count_layers(model, count):
    """ResNet-18 has 18 layers and 3 more convolutions on its shortcuts."""
    graph = Job(model, 2, 32 if model != "lenet5" else None).graph()
    chain = units(graph)
    assert len(chain) == count
    assert sorted(index for unit in chain for index in (*unit.forward, *unit.backward)) == list(range(len(graph.ops)))


def test_a_chain_sends_one_activation_up_and_one_gradient_down():
    assert [(s.source, s.target, s.changed) for s in sent("chain", (4,))] == [("cpu:0", "cpu:1", False), ("cpu:1", "cpu:0", False)]


def test_a_skip_over_a_cut_is_sent_too():
    """Behind a cut in the middle of a block, the output of its first half and its skip are needed; their gradients come back."""
    moved = sent("residual", (2,))
    assert [(s.value, s.target) for s in moved[:2]] == [("norms.1/native_batch_norm", "cpu:1"), ("norms.0/native_batch_norm", "cpu:1")]
    assert [s.target for s in moved[2:]] == ["cpu:0", "cpu:0"]


def test_what_a_later_stage_changes_in_place_is_not_left_in_one_memory():
    """Behind a cut before the shortcut's convolution, the shortcut is added to what was received."""
    assert [(s.value, s.changed) for s in sent("residual", (5,)) if s.target == "cpu:1"] == [
        ("norms.2/native_batch_norm", False), ("norms.4/native_batch_norm", True)
    ]  # fmt: skip


def test_tied_weights_are_sent_to_the_other_stage_and_their_gradient_back():
    own, *others = [s for s in sent("tied", (1,)) if s.value == "table.weight"]
    assert (own.source, own.target, own.after, others) == ("cpu:0", "cpu:1", -1, [])


def test_a_backward_is_split_so_that_only_what_the_stage_before_waits_for_comes_first():
    cut = Cut(job("chain").graph(), (4,))
    for stage in (0, 1):
        whole, by_input, by_weight = (cut.chunks[stage, kind] for kind in (BACKWARD, BY_INPUT, BY_WEIGHT))
        assert sorted(by_input + by_weight) == whole
        assert {cut.graph.ops[index].gradient for index in by_weight} <= {"dW", "dB"}
        assert len(by_weight) == 8  # four weights and four biases


@pytest.mark.parametrize("name", ["residual", "tied", "chain"])
def test_wherever_a_model_is_cut_each_op_finds_its_values_on_its_device(name):
    """In any order of the stages that respects the graph, on any devices."""
    graph, rng, machine = job(name).graph(), random.Random(1), this_cpu(devices=2)
    count = len(units(graph))
    for _ in range(20):
        stages = rng.randint(1, count)
        cut = Cut(graph, tuple(sorted(rng.sample(range(1, count), stages - 1))))
        devices = [rng.choice(("cpu:0", "cpu:1")) for _ in range(stages)]
        place, moved = cut.placed(devices, devices)
        build = PlanBuilder(job(name), place, graph)
        made = {operand.value for op in range(len(graph.ops)) for operand in build.ops([op])[0].inputs}
        assert {s.copy for s in moved} <= made, "whatever is sent is read"
        assert all(build.tensors.values[o.value].device == t.device for t in build.ops(range(len(graph.ops))) for o in t.inputs)
    assert machine.devices


def test_the_forward_of_a_stage_needs_no_later_stage_and_its_backward_no_earlier_one():
    graph = Job("googlenet", 2, 64).graph()
    cut = Cut(graph, (20, 40))
    for producer, consumer in graph.edges:
        order = [(0, cut.stage_of[i]) if i in cut.chunks[cut.stage_of[i], FORWARD] else (1, -cut.stage_of[i]) for i in (producer, consumer)]
        assert order[0] <= order[1]


@pytest.mark.parametrize("placement", [(0,), (9,), (3, 3), (4, 2)])
def test_cuts_out_of_range_or_order_are_refused(placement):
    with pytest.raises(SchedcastError, match=r"out of (range|order)"):
        Cut(job("chain").graph(), placement)
