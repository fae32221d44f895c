"""Apply a job's choice of activation checkpointing to its graph."""

from dataclasses import replace

from simulator.model.checkpoint import choice as choices
from simulator.model.checkpoint.blocks import blocks
from simulator.model.checkpoint.budget import within_budget
from simulator.model.checkpoint.rewrite import Rewriting, kept_by_selective
from simulator.model.graph import TrainingGraph
from traces import units


def levels_of(graph: TrainingGraph) -> dict[str, str]:
    """By block of a checkpointed graph that repeats something of it, full or selective. Empty for segments, which are no modules."""
    kind, divided = blocks(graph)
    again = set(graph.repeats.values())
    own = {block.name: block for block in divided if kind == "blocks" and not again.isdisjoint(block.ops)}
    return {name: choices.FULL if again & kept_by_selective(graph, block) else choices.SELECTIVE for name, block in own.items()}


def checkpointed(graph: TrainingGraph, text: str) -> TrainingGraph:
    """The graph whose backward repeats the forward of its blocks, as --checkpoint `text` says.

    With `full`, a block saves its inputs and the results that other blocks read; with `selective`, also the results of `kept_by_selective`;
    a budget chooses one of these for each block. Random ops repeat the numbers of their first draw, so that masks are the same. Raises
    SchedcastError for a budget that full checkpointing of all blocks exceeds.
    """
    choice = choices.read(text)
    if choice.kind == choices.NONE:
        return graph
    kind, divided = blocks(graph)
    rewriting = Rewriting(graph, divided)
    if choice.kind == choices.BUDGET:
        levels, rewritten = within_budget(rewriting, graph, choice.budget_bytes)
        counts = ", ".join(f"{count} {level}" for level in (choices.FULL, choices.SELECTIVE) if (count := levels.count(level)))
        return replace(rewritten, checkpoint=f"budget of {units.memory(choice.budget_bytes)}: {counts or 'none'} of {len(divided)} {kind}")
    kept = [kept_by_selective(graph, block) if choice.kind == choices.SELECTIVE else set() for block in divided]
    repeated = [each for number, own in enumerate(kept) if (each := rewriting.repeated(number, own))]
    return replace(rewriting.with_repeated(repeated), checkpoint=f"{choice.kind}, {len(repeated)} {kind}")
