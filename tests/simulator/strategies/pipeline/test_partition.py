"""Chains are cut where the longest stage is shortest, and a stage fits its device's memory."""

import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.strategies.builder import PlanBuilder
from simulator.strategies.pipeline.cut import Cut, Sent
from simulator.strategies.pipeline.partition import balanced, balanced_unfolded, between_blocks, in_flight_1f1b, stages_of, units
from simulator.strategies.pipeline.planning import cut_graph_of
from simulator.strategies.pipeline.schedule import BACKWARD, BY_INPUT, BY_WEIGHT, FORWARD
from tests.support import models
from tests.support.refusals import refuses
from traces.errors import Code, SchedcastError

# A captured graph in units and stages: which ops belong together, and what goes between the stages.


def job(name: str, batch: int = 4) -> Job:
    return Job(f"{models.__file__}:{name}", batch)


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


TRANSFORMER = "lm:form=llama,layers=4,d_model=16,heads=4,kv_heads=2,ffn=24,vocab=32"


def test_a_transformer_is_cut_between_blocks_where_one_tensor_goes_up_and_its_gradient_down():
    """However uneven the stages become: within a block, what was normalized and what goes around it would cross a cut too."""
    graph = Job(TRANSFORMER, 2, 8).graph()
    chain = units(graph)
    joints = between_blocks(graph, chain)
    assert [chain[at].layer for at in joints] == [*(f"blocks.{n}.attention.query" for n in range(4)), "head"]
    cut = cut_graph_of(graph, (), 3, False, lambda: [9.0, *[1.0] * (len(chain) - 1)])
    assert set(cut.placement) <= set(joints)
    moved = cut.placed(("cpu:0", "cpu:1", "cpu:2"), ("cpu:0", "cpu:1", "cpu:2"))[1]
    assert sorted((s.source, s.target) for s in moved) == [
        ("cpu:0", "cpu:1"), ("cpu:1", "cpu:0"), ("cpu:1", "cpu:2"), ("cpu:2", "cpu:1"),
    ]  # fmt: skip


def test_a_transformer_with_more_stages_than_blocks_is_cut_within_them():
    graph = Job(TRANSFORMER, 2, 8).graph()
    count = len(units(graph))
    assert len(cut_graph_of(graph, (), 8, False, lambda: [1.0] * count).placement) == 7


def test_an_even_placement_gives_each_stage_as_many_blocks():
    """The embedding goes with the first ones, the last norm and the head with the last ones, however long they take."""
    graph = Job(TRANSFORMER, 2, 8).graph()
    chain = units(graph)
    (cut,) = cut_graph_of(graph, (), 2, True, list).placement
    assert chain[cut].layer == "blocks.2.attention.query"
    with pytest.raises(SchedcastError, match="placement=even cannot give each of 5 stages one of 4 blocks; drop it"):
        cut_graph_of(graph, (), 5, True, list)


def test_an_even_placement_of_other_networks_counts_layers():
    graph = Job("resnet20", 2, 32).graph()
    assert cut_graph_of(graph, (), 4, True, list).placement == (5, 10, 15)


def test_networks_without_attention_have_no_cuts_that_are_preferred():
    graph = Job("resnet20", 2, 32).graph()
    assert between_blocks(graph, units(graph)) == []


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
    with refuses(Code.REQUEST):
        Cut(job("chain").graph(), placement)


def every_placement(count: int, stages: int) -> list[tuple[int, ...]]:
    return list(combinations(range(1, count), stages - 1))


def sums(seconds, placement) -> list[float]:
    return [sum(seconds[unit] for unit in stage) for stage in stages_of(placement, len(seconds))]


chains = st.lists(st.integers(0, 20), min_size=1, max_size=9)


def test_the_longest_stage_is_as_short_as_it_can_be():
    assert balanced([1, 2, 3, 4, 5, 6], 3) == (3, 5)  # 6, 9, 6
    assert balanced([9, 1, 1, 1], 2) == (1,)
    assert balanced([1, 1, 1, 9], 2) == (3,)


def test_among_placements_with_the_same_longest_stage_the_most_even_one_is_taken():
    assert balanced([9, 1, 1, 1, 1], 3) == (1, 3)  # 9, 2, 2 rather than 9, 1, 3


def test_among_equally_even_placements_the_earliest_cuts_are_taken():
    assert balanced([0.1] * 7, 3) == (2, 4)  # so that as few weights as possible are stale


def test_one_stage_has_no_cut_and_as_many_stages_as_units_have_all():
    assert balanced([3, 1, 2], 1) == ()
    assert balanced([0, 0, 0], 3) == (1, 2)


@settings(derandomize=True, max_examples=200)
@given(chains, st.data())
def test_no_other_placement_is_better(seconds, data):
    stages = data.draw(st.integers(1, len(seconds)))
    best = min((max(s), sum(x * x for x in s)) for s in (sums(seconds, p) for p in every_placement(len(seconds), stages)))
    chosen = sums(seconds, balanced(seconds, stages))
    assert (max(chosen), sum(x * x for x in chosen)) == pytest.approx(best)


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=8), st.data())
def test_unfolded_stages_have_two_accelerators_and_the_last_one_has_one(pairs, data):
    forward, backward = [f for f, _ in pairs], [b for _, b in pairs]
    stages = data.draw(st.integers(1, len(pairs)))

    def cycle(placement) -> float:
        both = list(zip(sums(forward, placement), sums(backward, placement), strict=True))
        return max([max(pair) for pair in both[:-1]] + [sum(both[-1])])

    assert cycle(balanced_unfolded(forward, backward, stages)) == min(map(cycle, every_placement(len(pairs), stages)))


def test_backward_of_twice_the_forward_gains_one_and_a_half_per_pair_at_best():
    """2K + 1 accelerators: the bound 1.5 K + 1 of PAPERS, reached by a chain fine enough."""
    for pairs in (1, 2, 3):
        units = 3 * pairs + 2
        placement = balanced_unfolded([1.0] * units, [2.0] * units, pairs + 1)
        spans = stages_of(placement, units)
        cycle = max([2.0 * len(span) for span in spans[:-1]] + [3.0 * len(spans[-1])])
        assert 3.0 * units / cycle == pytest.approx(1.5 * pairs + 1)


@pytest.mark.parametrize(
    ("stages", "said"), [(4, "cannot cut 3 units into 4 stages: take at most 3"), (0, "0 stages: a pipeline has at least 1")]
)
def test_a_number_of_stages_that_cannot_be(stages, said):
    with pytest.raises(SchedcastError, match=said):
        balanced([1, 1, 1], stages)


@pytest.mark.parametrize(
    ("placement", "said"),
    [((0,), "out of range: a cut lies after one of the units 1 to 4 of 5"), ((5,), "out of range"), ((-1, 2), "out of range"),
     ((3, 2), "out of order"), ((2, 2), "out of order")],
)  # fmt: skip
def test_a_vector_that_is_no_placement(placement, said):
    with refuses(Code.REQUEST, said):
        stages_of(placement, 5)


def test_a_placement_names_each_stages_units():
    assert stages_of((2, 3), 5) == (range(2), range(2, 3), range(3, 5))
    assert stages_of((), 2) == (range(2),)


def test_first_stages_keep_more_microbatches():
    assert in_flight_1f1b(4, 8) == (4, 3, 2, 1)
    assert in_flight_1f1b(4, 2) == (2, 2, 2, 1)


def test_thousands_of_units_are_no_matter():
    seconds = np.random.default_rng(0).uniform(0.1, 1, 2000)
    placement = balanced(seconds, 16)
    assert max(sums(seconds, placement)) <= sum(seconds) / 16 + 1
