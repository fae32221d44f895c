"""Activation checkpointing: which blocks there are, what they repeat, and what is held in the end."""

import itertools
import json

import pytest

from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model import graph as graphs
from simulator.model.checkpoint import choice
from simulator.model.checkpoint.blocks import Block, blocks
from simulator.model.checkpoint.budget import LEVELS, peak_bytes, repeated_work
from simulator.model.checkpoint.checkpoint import checkpointed
from simulator.model.checkpoint.rewrite import Rewriting, kept_by_selective
from simulator.model.graph import Op, TrainingGraph
from simulator.model.job import Job
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.task import ACTIVATION, AGAIN, BACKWARD, FORWARD, GRADIENT, INPUT, PARAMETER, Operand, Value
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from simulator.strategies.pytorch import joined
from tests.support import models
from tests.support.jobs import MLP, planned
from traces.errors import SchedcastError, UnusableFileError


def captured(model: str, batch: int = 4, **fields) -> TrainingGraph:
    return Job(f"{models.__file__}:{model}", batch, **fields).graph()


def repeated(graph: TrainingGraph) -> list[str]:
    return [op.name.replace(AGAIN, "") for op in graph.ops if AGAIN in op.name]


def chain(*sizes: int, layers: tuple[str, ...]) -> TrainingGraph:
    """A chain of products `f0`, `f1`, ... of the given layers, whose results have so many bytes; backward reads them in reverse."""
    values = {
        "x": Value("x", (sizes[0] // 4,), (1,), "float32", "", INPUT, "x"),
        "w": Value("w", (1,), (1,), "float32", "", PARAMETER, "w"),
    }
    ops, before = [], values["x"].operand()

    def add(name, phase, layer, kind, size, *reads):
        values[name] = Value(name, (size // 4,), (1,), "float32", "", kind, name)
        ops.append(Op(name, OpCall("aten.mm.default"), phase, layer, "dX" if phase == BACKWARD else "", reads, (values[name].operand(),)))
        return values[name].operand()

    for number, (size, layer) in enumerate(zip(sizes, layers, strict=True)):
        before = add(f"f{number}", FORWARD, layer, ACTIVATION, size, before)
    gradient = add("loss", FORWARD, "loss", ACTIVATION, 4, before)
    for number in reversed(range(len(sizes))):
        gradient = add(f"b{number}", BACKWARD, layers[number], GRADIENT, sizes[number], gradient, values[f"f{number}"].operand())
    gradients = {"w": Operand(f"b{0}", (1,), (1,), "float32")}
    sizes_of = {name: value.operand().bytes for name, value in values.items()}
    return TrainingGraph(1, tuple(ops), values, sizes_of, ("x",), ("w",), {"w": ""}, gradients, "loss")


#: Two blocks of three layers between a first and a last layer.
CHAIN = chain(40, 100, 200, 60, 100, 200, 60, 20, layers=("in", "h.0.a", "h.0.b", "h.0.c", "h.1.a", "h.1.b", "h.1.c", "out"))


def test_a_full_block_keeps_only_what_it_reads_and_what_others_read_of_it():
    full = checkpointed(CHAIN, "full")
    names = [op.name for op in full.ops]
    assert names[names.index("loss") + 1 :] == [
        "b7",
        "b6",
        "f4#again",
        "f5#again",
        "b5",
        "b4",
        "b3",
        "f1#again",
        "f2#again",
        "b2",
        "b1",
        "b0",
    ]
    assert full.checkpoint == "full, 2 blocks"
    reads = {op.name: [operand.value for operand in op.reads] for op in full.ops}
    assert reads["f4#again"] == ["f3"]
    assert reads["f5#again"] == ["f4#again"]
    assert reads["b5"] == ["b6", "f5#again"]
    assert reads["b6"] == ["b7", "f6"]
    assert full.repeats == {names.index(f"f{n}#again"): n for n in (1, 2, 4, 5)}


def test_what_is_held_is_exact():
    """Without checkpointing all results, 780 bytes and the loss. With it, what two blocks read, and what a block makes inside."""
    assert peak_bytes(CHAIN) == 784
    assert peak_bytes(checkpointed(CHAIN, "full")) == 40 + 60 + (100 + 200)


def test_the_predicted_peak_falls_as_much():
    """But for what the library of matrix products keeps, and for gradients, which are others at the new peak."""
    machine, model = load_machine("h100"), f"{models.__file__}:attending"
    peaks, held = [], []
    for checkpoint in ("none", "full"):
        job = Job(model, 4096, checkpoint=checkpoint)
        timeline = forecast(planned("baseline", job, machine), Target.of(CostModel(machine))).timeline
        peaks.append(timeline.devices[0].peak_bytes)
        held.append(peak_bytes(job.graph()))
    assert peaks[0] - peaks[1] == pytest.approx(held[0] - held[1], rel=0.1)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("attending", ["blocks.0", "blocks.1", "blocks.2"]),
        ("convolving", ["blocks.0", "blocks.1", "blocks.2"]),
        ("three_layers", ["0"]),
        ("six", ["fork"]),
    ],
)
def test_blocks_are_members_of_lists_with_layers_of_their_own(model, names):
    kind, divided = blocks(captured(model))
    assert [block.name for block in divided] == names
    assert kind == ("blocks" if len(names) > 1 else "segments")


def test_a_sequential_of_blocks_is_looked_into():
    layers = ("features.0.0", "features.1.0.conv.0", "features.1.0.norm", "features.1.1.conv.0", "features.1.1", "head.0")
    assert blocks(chain(*[8] * 6, layers=layers)) == ("blocks", [Block("features.1.0", (1, 2)), Block("features.1.1", (3, 4))])


def test_a_chain_without_blocks_is_cut_into_about_sqrt_of_its_length():
    kind, divided = blocks(chain(*[8] * 16, layers=("",) * 16))
    assert kind == "segments"
    assert [block.ops for block in divided] == [tuple(range(first, first + 4)) for first in (0, 4, 8)]


def test_selective_keeps_attention_and_every_second_product():
    """Of the products by weights project, output, up and down, the first and the third."""
    graph = captured("attending")
    block = blocks(graph)[1][0]
    kept = [graph.ops[index].name for index in sorted(kept_by_selective(graph, block))]
    assert kept == [f"blocks.0{name}" for name in (".project/addmm", "/_scaled_dot_product_flash_attention_for_cpu", ".up/addmm")]
    again = {name.rpartition("/")[2] for name in repeated(checkpointed(graph, "selective"))}
    assert again == {"native_layer_norm", "addmm", "add", "gelu"}


def test_attention_is_repeated_with_all_its_results():
    graph = captured("attending", checkpoint="full")
    first = next(op for op in graph.ops if "attention" in op.name and AGAIN in op.name)
    backward = next(op for op in graph.ops if "attention_for_cpu_backward" in op.name)
    assert {operand.value for operand in first.writes} <= {operand.value for operand in backward.reads}


def test_casts_of_autocast_are_repeated():
    graph = captured("attending", precision="amp", checkpoint="full")
    casts = [name for name in repeated(graph) if "_to_copy" in name]
    weights = {graph.ops[index].writes[0].value for index in graph.repeats.values()} & graph.weights
    assert casts
    assert weights


def test_what_is_changed_in_place_across_blocks_is_kept():
    """The sum of a block is changed by the activation behind it, and read by the next block."""
    graph = captured("convolving", checkpoint="full")
    storages = {graph.values[o.value].storage for index in graph.repeats for o in (*graph.ops[index].writes, *graph.ops[index].mutates)}
    assert not any(graph.values[o.value].kind not in (ACTIVATION,) for index in graph.repeats for o in graph.ops[index].mutates)
    assert all(AGAIN in storage for storage in storages)


def test_plain_pytorch_follows_the_same_graph():
    assert captured("attending").checkpoint == ""
    assert joined(captured("attending", checkpoint="full")).repeats


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("own", "model", "checkpoint"),
    [
        ("checkpointing", "attending", "full"),
        ("reentrant", "attending", "full"),
        ("redrawing", "attending_dropping", "full"),
        ("selecting", "attending", "selective"),
    ],
)
def test_it_is_what_torch_utils_checkpoint_does(own, model, checkpoint):
    """The graph of a model that calls it has the ops of the rewritten graph of one that does not, on the same values.

    PyTorch repeats a block before its first product by a weight, which it has saved too, and not before the first op that reads a result.
    """
    by_itself, rewritten = captured(own), captured(model, checkpoint=checkpoint)
    ops = [{op.name: (op.body, op.reads, op.writes) for op in graph.ops} for graph in (by_itself, rewritten)]
    assert ops[0] == ops[1]
    assert peak_bytes(by_itself) == peak_bytes(rewritten)


@pytest.mark.parametrize("model", ["attending", "convolving"])
def test_a_budget_is_kept_with_the_least_work(model):
    """Against every combination of levels."""
    graph = captured(model, batch=16)
    divided = blocks(graph)[1]
    rewriting = Rewriting(graph, divided)
    kept = {
        "none": lambda block: set(block.ops),
        "selective": lambda block: kept_by_selective(graph, block),
        "full": lambda block: set(),
    }
    candidates = []
    for levels in itertools.product(LEVELS, repeat=len(divided)):
        each = [rewriting.repeated(number, kept[level](divided[number])) for number, level in enumerate(levels)]
        work = sum(repeated_work(graph, one.ops) for one in each if one)
        candidates.append((work, peak_bytes(rewriting.with_repeated(one for one in each if one))))
    least, most = min(peak for _, peak in candidates), peak_bytes(graph)
    for tenth in range(11):
        budget = least + (most - least) * tenth // 10
        chosen = checkpointed(graph, f"budget:{budget}B")
        assert peak_bytes(chosen) <= budget
        best = min(work for work, peak in candidates if peak <= budget)
        assert repeated_work(graph, chosen.repeats.values()) == pytest.approx(best)
    assert "none of 3 blocks" in chosen.checkpoint


def test_a_budget_that_nothing_meets_says_what_is_needed():
    with pytest.raises(SchedcastError, match=r"a microbatch of 4 needs .* for activations even if all of the model's blocks are"):
        captured("attending", checkpoint="budget:1KiB")


def test_a_damaged_graph_with_a_repeat_of_nothing_is_refused():
    document = json.loads(json.dumps(graphs.dump(captured("attending", checkpoint="full"))))
    assert graphs.load(document).repeats
    document["ops"] = [op for op in document["ops"] if op["name"] != "blocks.1/gelu"]
    with pytest.raises(UnusableFileError, match="repeats an op that is missing"):
        graphs.load(document)


@pytest.mark.parametrize(
    ("text", "size"), [("budget:70GiB", 70 << 30), ("budget:1.5GB", 1_500_000_000), ("budget:300MiB", 300 << 20), ("budget:512B", 512)]
)
def test_sizes(text, size):
    assert choice.read(text) == choice.Choice("budget", size)


@pytest.mark.parametrize(
    "text", ["", "half", "budget", "budget:", "budget:0GiB", "budget:-1GB", "budget:1e9B", "budget:70", "budget:iB", "full "]
)
def test_anything_else_is_refused_in_a_line(text):
    with pytest.raises(SchedcastError, match="expected none, full, selective or budget:SIZE"):
        Job(MLP, 4, checkpoint=text)


def test_strategies_that_would_repeat_a_forward_with_other_weights_or_twice_refuse():
    machine = load_machine("p100x4")
    job, own = Job(f"{models.__file__}:chain", 8, checkpoint="full"), Job(f"{models.__file__}:checkpointing", 8)
    for asked, text, words in (
        (job, "stale-pipeline", "with other weights"),
        (job, "gpipe:rematerialize=on", "both repeat forwards"),
        (own, "gpipe:rematerialize=on", "both repeat forwards"),
        (job, "bppsa", "needs all activations at once"),
        (own, "bppsa", "needs all activations at once"),
    ):
        with pytest.raises(SchedcastError, match=words):
            planned(text, asked, machine)
