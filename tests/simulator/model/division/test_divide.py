"""The graph of one of the devices that divide layers: its collectives, its work, and its part of the parameters."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from executors.binding import apply_views
from simulator.model.division.divide import UNDIVIDED, Division, divided, with_shared_casts
from simulator.model.division.local import COLLECTIVES
from simulator.model.division.placement import WHOLE, Placement, cut_along
from simulator.model.graph import TrainingGraph
from simulator.model.job import Job
from simulator.plan.bodies.opcall import CAST, DROPOUT
from simulator.plan.task import BACKWARD, FORWARD
from tests.support import models
from tests.support.view_chains import numbered, part

BATCH, LENGTH, WIDTH = 2, 6, 16
SIZES = f"layers=2,d_model={WIDTH},heads=4,ffn=24"
LLAMA, GPT = f"lm:form=llama,{SIZES},vocab=32", f"lm:form=gpt,{SIZES},vocab=32"
#: Bytes of the tokens' features.
FEATURES = BATCH * LENGTH * WIDTH * 8
#: Bytes of one number for each token.
NUMBERS = BATCH * LENGTH * 8


def divided_graph(model: str, degree: int = 1, rank: int = 0, sequence: bool = False, precision: str = "fp64") -> TrainingGraph:
    job = Job(model, BATCH, image_size=LENGTH if model.startswith("lm:") else None, precision=precision)
    return job.graph(division=Division(degree, rank, sequence) if degree > 1 else UNDIVIDED)


def collectives(graph: TrainingGraph, phase: str, layer: str) -> list[tuple[str, int]]:
    """What the devices sum or gather together for a layer, and the bytes of the whole tensors."""
    return [
        (op.body.target.split(".")[1], sum(o.bytes for o in op.writes if "all_gather" in op.body.target) or sum(o.bytes for o in op.inputs))
        for op in graph.ops
        if op.body.target in COLLECTIVES and op.phase == phase and (op.layer == layer or op.layer.startswith(f"{layer}."))
    ]


@pytest.mark.parametrize(("model", "degree"), [(LLAMA, 2), (LLAMA, 4), (GPT, 2), (GPT, 4), (f"{LLAMA},kv_heads=2", 2)])
def test_a_block_has_two_sums_forward_and_two_backward(model, degree):
    """Megatron-LM, figure 3: of what attention and the feed-forward network make, and of the gradients of what they read."""
    graph = divided_graph(model, degree)
    for phase in (FORWARD, BACKWARD):
        assert collectives(graph, phase, "blocks.1") == [("all_reduce", FEATURES)] * 2


def test_sequence_parallelism_scatters_and_gathers_instead():
    """Korthikanti et al., figure 5; and the gradients of norms are sums over the tokens of all devices."""
    graph = divided_graph(LLAMA, 2, sequence=True)
    assert collectives(graph, FORWARD, "blocks.1") == [("all_gather", FEATURES), ("reduce_scatter", FEATURES)] * 2
    norm = ("all_reduce", WIDTH * 8)
    assert collectives(graph, BACKWARD, "blocks.1") == [("all_gather", FEATURES), ("reduce_scatter", FEATURES), norm] * 2


def test_layers_that_cast_the_same_tensor_gather_it_once_and_sum_its_gradients_once():
    """Under autocast each of three layers casts what it reads to bfloat16, and its gradient to float32."""
    graph = divided_graph(LLAMA, 2, sequence=True, precision="amp")
    low, wide = FEATURES // 4, FEATURES // 2
    assert collectives(graph, FORWARD, "blocks.1") == [("all_gather", low), ("reduce_scatter", low)] * 2
    norm = ("all_reduce", WIDTH * 4)
    assert collectives(graph, BACKWARD, "blocks.1") == [("all_gather", low), ("reduce_scatter", wide), norm] * 2


def test_a_gradient_that_is_not_added_to_others_is_summed_before_it_is_cast():
    """The narrow tensor moves faster: queries, keys and values are one product here, and so are both of the feed-forward network."""
    graph = divided_graph(f"{LLAMA},fused=on", 2, sequence=True, precision="amp")
    assert [each for each in collectives(graph, BACKWARD, "blocks.1") if each[0] == "reduce_scatter"] == [
        ("reduce_scatter", FEATURES // 4)
    ] * 2


def test_casts_are_shared_only_while_their_tensor_stays_as_it_is():
    graph = divided_graph(LLAMA, precision="amp")
    casts = [op for op in graph.ops if op.layer.startswith("blocks.0.attention") and op.body.target == CAST and op.phase == FORWARD]
    same = [op for op in casts if op.reads == next(each for each in casts if "norm1" in each.reads[0].value).reads]
    assert len(same) == 3
    shared = with_shared_casts(graph)
    assert [op.name for op in shared.ops if op in same] == [same[0].name]
    assert {op.inputs[0].value for op in shared.ops if op.body.target == "aten.mm.default"} >= {same[0].writes[0].value}
    changes = replace(same[1], name="change", body=replace(same[1].body, target="aten.zero_.default"), mutates=same[0].reads, reads=())
    changed = with_shared_casts(replace(graph, ops=(*graph.ops, replace(changes, writes=()))))
    assert [op.name for op in changed.ops if op in same] == [op.name for op in same]


def test_outside_of_blocks_what_is_looked_up_is_a_sum_and_the_loss_exchanges_one_number_per_token():
    """The logarithms of the sums of each device's logits; the loss and its weight; sums of gradients of logits."""
    graph = divided_graph(LLAMA, 2)
    assert collectives(graph, FORWARD, "blocks.0")[:1] == [("all_reduce", FEATURES)]
    assert collectives(graph, FORWARD, "head") == []
    assert collectives(graph, FORWARD, "loss") == [("all_gather", 2 * NUMBERS), ("all_reduce", 2 * 8)]
    assert collectives(graph, BACKWARD, "loss") == [("all_reduce", NUMBERS)]
    assert collectives(graph, BACKWARD, "norm") == [("all_reduce", FEATURES)]  # what the head reads
    assert len([op for op in graph.ops if op.body.target in COLLECTIVES]) == 2 * 4 + 5


def test_a_fused_loss_exchanges_two_numbers_per_token():
    """The logit of the label, which one device has, and the sum of its logits."""
    graph = divided_graph(f"{LLAMA},loss=fused", 2)
    assert collectives(graph, FORWARD, "loss") == [("all_reduce", NUMBERS), ("all_gather", 2 * NUMBERS)]
    assert collectives(graph, BACKWARD, "loss") == []


def test_forward_and_backward_look_up_the_same_rows_of_a_divided_vocabulary():
    graph = divided_graph(LLAMA, 2)
    (rows,) = (operand.value for op in graph.ops for operand in op.writes if operand.value.endswith("#within"))
    readers = [op.body.target for op in graph.ops if any(operand.value == rows for operand in op.reads)]
    assert readers == ["aten.embedding.default", "aten.embedding_dense_backward.default"]


def test_norms_of_heads_sum_the_gradients_of_their_weights():
    graph = divided_graph(f"{LLAMA},qk_norm=on", 2)
    of_head = ("all_reduce", WIDTH // 4 * 8)
    assert collectives(graph, BACKWARD, "blocks.1") == [("all_reduce", FEATURES), of_head, of_head, ("all_reduce", FEATURES)]


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize(("model", "degree"), [(LLAMA, 2), (LLAMA, 4), (GPT, 2)])
def test_devices_divide_the_work_of_every_product(model, degree, sequence):
    """A product whose addends are summed over the devices is an op of its own before the bias is added."""
    graphs = both(model, degree, sequence)
    whole, own = ({op.name.removesuffix("#product"): op.body.flops for op in graph.ops if op.body.flops} for graph in graphs)
    assert own == pytest.approx({name: flops / degree for name, flops in whole.items()})


def both(model: str, degree: int, sequence: bool = False) -> tuple[TrainingGraph, TrainingGraph]:
    """The graph of a model, and that of its first device of several."""
    return divided_graph(model), divided_graph(model, degree, 0, sequence)


def test_heads_of_keys_that_do_not_divide_run_whole_on_every_device():
    """Two heads of keys for four devices: each runs all of attention, and a fourth of the feed-forward network."""
    whole, own = (Counter() for _ in range(2))
    for work, graph in zip((whole, own), both(f"{LLAMA},kv_heads=2", 4), strict=True):
        for op in graph.ops:
            work["attention" if "attention_for_cpu" in op.name else op.layer.rpartition(".")[2]] += op.body.flops
    assert own["attention"] == whole["attention"]
    assert [own[layer] for layer in ("gate", "up", "down", "head")] == [whole[layer] / 4 for layer in ("gate", "up", "down", "head")]


def test_a_vocabulary_that_does_not_divide_is_whole_on_every_device():
    graph = divided_graph(LLAMA.replace("vocab=32", "vocab=31"), 2)
    assert graph.values["tokens.weight"].shape == (31, WIDTH)
    assert collectives(graph, FORWARD, "blocks.0") == [("all_reduce", FEATURES)] * 2
    assert collectives(graph, FORWARD, "loss") == []
    assert collectives(graph, FORWARD, "blocks.1") == [("all_reduce", FEATURES)] * 2


# Parameters.


def check_parameters(model: str, degree: int, cut: dict[str, Placement]) -> None:
    """Check which part each device has of every parameter. `cut`: by the ends of their names, of those that are not whole."""
    whole = divided_graph(model)
    for rank in range(degree):
        graph = divided_graph(model, degree, rank)
        assert graph.parameters == whole.parameters
        for name in graph.parameters:
            value, tensor = graph.values[name], numbered(whole.values[name].shape)
            placement = next((each for end, each in cut.items() if name.endswith(end)), WHOLE)
            held = tensor if value.source is None else apply_views(tensor, value.source)
            assert tuple(held.shape) == value.shape == graph.gradients[name].shape
            assert torch.equal(held.reshape(placement.local(tensor.shape, degree)), part(tensor, placement, rank, degree)), name


def test_devices_have_heads_hidden_channels_and_words():
    """Together, they have the model once, and everyone has the norms."""
    rows = {f"{layer}.weight": cut_along(0, WIDTH) for layer in ("query", "key", "value")}
    rows |= {f"{layer}.weight": cut_along(0, 24) for layer in ("gate", "up")} | {"head.weight": cut_along(0, 32)}
    columns = {"output.weight": cut_along(1, WIDTH), "down.weight": cut_along(1, 24)}
    check_parameters(LLAMA, 2, rows | columns | {"tokens.weight": cut_along(0, 32)})
    check_parameters(LLAMA, 4, rows | columns | {"tokens.weight": cut_along(0, 32)})


def test_queries_keys_and_values_of_one_product_are_cut_one_by_one():
    """A device has the same heads of all three. Biases behind a sum belong to everyone."""
    fused = Placement(0, (WIDTH,) * 3)
    cut = {"project.weight": fused, "project.bias": fused, "up.weight": cut_along(0, 24), "up.bias": cut_along(0, 24)}
    cut |= {"output.weight": cut_along(1, WIDTH), "down.weight": cut_along(1, 24), "tokens.weight": cut_along(0, 32)}
    check_parameters(GPT, 2, cut)


def test_one_device_alone_has_the_graph():
    graph = divided_graph(LLAMA)
    assert divided(graph, UNDIVIDED) is graph


def test_a_device_draws_its_part_of_a_mask():
    """Of hidden channels; what follows the sum is the same on every device, or by sequences, of which each device has whole ones."""
    model = f"{models.__file__}:dropped_rows"
    masks = [op.body.kwargs for op in divided_graph(model, 2, 1).ops if op.body.target == DROPOUT]
    assert masks == ['{"part":{"of":[8,16],"box":[[0,8],[8,16]]}}', "{}"]
    by_sequences = [op.body.kwargs for op in divided_graph(model, 2, 1, sequence=True).ops if op.body.target == DROPOUT]
    assert by_sequences == [masks[0], '{"part":{"of":[8,8],"box":[[4,8],[0,8]]}}']
