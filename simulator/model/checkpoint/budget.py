"""Choose for each block whether and how it is checkpointed, so that activations fit a budget with the least repeated work.

While a block's backward runs, memory contains the activations that earlier blocks saved for their backward, which is a sum over these
blocks, and what the block itself needs. So dynamic programming over the blocks in forward order, with the bytes saved so far as its state,
finds the best choice. Times are not known here, so the cost of an op is a roofline of its work: the bytes that it moves, or its FLOPs at
FLOPS_PER_BYTE if these take longer.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from simulator.model.checkpoint.blocks import lives
from simulator.model.checkpoint.choice import FULL, NONE, SELECTIVE
from simulator.model.checkpoint.rewrite import Repeated, Rewriting, kept_by_selective
from simulator.model.graph import TrainingGraph
from simulator.plan.task import AGAIN, BACKWARD, FORWARD
from traces import units
from traces.errors import Code, SchedcastError

LEVELS = (NONE, SELECTIVE, FULL)
#: FLOPs that take as long as moving a byte: about the tensor cores' peak over the bandwidth of GPUs since the V100 (139) in 16 bits,
#: times the share that they reach (an A100 has 153, an H100 295).
FLOPS_PER_BYTE = 100.0
#: How often the choice is repeated with a smaller budget, if the graph needs more memory than the sums say.
_TRIES = 8


def within_budget(rewriting: Rewriting, graph: TrainingGraph, budget_bytes: int) -> tuple[list[str], TrainingGraph]:
    """The level of each block, and the graph with the repeated ops, whose activations of one microbatch are within the budget.

    Raises SchedcastError if there is no such choice.
    """
    held = _Held(rewriting, graph)
    allowed = budget_bytes
    for _ in range(_TRIES):
        levels = held.cheapest(allowed)
        if levels is None:
            break
        rewritten = held.rewritten(levels)
        excess = peak_bytes(rewritten) - budget_bytes
        if excess <= 0:
            return levels, rewritten
        allowed -= excess
    least = min(peak_bytes(held.rewritten([level] * len(rewriting.blocks))) for level in LEVELS)
    raise SchedcastError(
        f"--checkpoint budget of {units.memory(budget_bytes)}: a microbatch of {graph.batch} needs {units.memory(least)} for activations"
        " even if all of the model's blocks are checkpointed; allow more, or choose a smaller batch or more microbatches",
        Code.BATCH,
    )


def repeated_work(graph: TrainingGraph, ops: Iterable[int]) -> float:
    """The work of repeating ops, in bytes moved."""
    works = (graph.ops[index].body.work(graph.ops[index]) for index in ops)
    return sum(max(work.bytes, work.flops / FLOPS_PER_BYTE) for work in works)


def peak_bytes(graph: TrainingGraph) -> int:
    """The peak of a microbatch's activations in bytes, if each is freed after its last use."""
    spans = ((first, last + 1, graph.storage_bytes[name]) for name, (first, last) in lives(graph, graph.ops).items())
    return max(_alive(len(graph.ops), spans))


def _alive(count: int, spans: Iterable[tuple[int, int, int]]) -> list[int]:
    """By op, the bytes of the spans (first op, op after the last one, bytes) that it lies in."""
    changes = [0] * (count + 1)
    for first, end, size in spans:
        if first < end:
            changes[first] += size
            changes[end] -= size
    return list(accumulate(changes[:count]))


class _Held:
    """By block and level: what is repeated, its work, the bytes saved for its backward, and the most that its forward or backward needs.

    The ops of the step lie in windows: that of a block has its forward, with what precedes it, and its backward, which begins with what is
    repeated. Bytes saved for a backward count until the window of their last use. The last window has what is after the blocks.
    """

    def __init__(self, rewriting: Rewriting, graph: TrainingGraph):
        self._rewriting, self._graph = rewriting, graph
        blocks = rewriting.blocks
        kept = [{NONE: set(block.ops), SELECTIVE: kept_by_selective(graph, block), FULL: set()} for block in blocks]
        self._repeated: list[dict[str, Repeated | None]] = [
            {level: rewriting.repeated(number, own[level]) for level in LEVELS} for number, own in enumerate(kept)
        ]
        self._works = [{level: repeated_work(graph, each.ops) if each else 0.0 for level, each in own.items()} for own in self._repeated]
        starts = [min((each.before for each in own.values() if each), default=len(graph.ops)) for own in self._repeated]
        self._starts = list(accumulate(reversed(starts), max))  # by block from the last one on
        self._ends = [block.ops[-1] for block in blocks]
        self._kept: list[dict[str, int]] = [{} for _ in range(len(blocks) + 1)]
        self._most: list[dict[str, int]] = [{} for _ in range(len(blocks) + 1)]
        for level in LEVELS:
            self._fill(level)

    def rewritten(self, levels: Sequence[str]) -> TrainingGraph:
        """The graph with these levels, by block."""
        return self._rewriting.with_repeated(each for own, level in zip(self._repeated, levels, strict=True) if (each := own[level]))

    def cheapest(self, budget_bytes: int) -> list[str] | None:
        """The levels with the least work whose windows all fit into the budget; None if there are none."""
        states: list[tuple[int, float, tuple]] = [(0, 0.0, ())]  # bytes saved, work, and the levels so far as nested pairs
        for kept, most, works in zip(self._kept, self._most, self._works, strict=False):
            following = [
                (held + kept[level], work + works[level], (chosen, level))
                for held, work, chosen in states
                for level in LEVELS
                if held + most[level] <= budget_bytes
            ]
            states, least = [], float("inf")
            for state in sorted(following, key=lambda each: each[:2]):
                if state[1] < least:
                    states.append(state)
                    least = state[1]
        fitting = [state for state in states if state[0] + self._most[-1][NONE] <= budget_bytes]
        if not fitting:
            return None
        levels, chosen = [], min(fitting, key=lambda each: each[1])[2]
        while chosen:
            chosen, level = chosen
            levels.append(level)
        return levels[::-1]

    def _fill(self, level: str) -> None:
        graph, count = self.rewritten([level] * len(self._rewriting.blocks)), len(self._rewriting.blocks)
        windows = self._windows(graph)
        first_backward = next((index for index, op in enumerate(graph.ops) if op.phase == BACKWARD), len(graph.ops))
        after_forward = [bisect_right(windows, number, 0, first_backward) for number in range(count + 1)]
        begins = [first_backward] * (count + 1)
        for index in range(len(graph.ops) - 1, first_backward - 1, -1):
            begins[windows[index]] = index
        kept, spans = [0] * (count + 1), []
        for storage, (first, last) in lives(graph, graph.ops).items():
            size, number = graph.storage_bytes[storage], windows[last]
            if first < first_backward <= last:
                kept[number] += size
                spans += [(first, after_forward[number], size), (begins[number], last + 1, size)]
            else:
                spans.append((first, last + 1, size))
        most = [0] * (count + 1)
        for number, alive in zip(windows, _alive(len(graph.ops), spans), strict=True):
            most[number] = max(most[number], alive)
        for number in range(count + 1):
            self._kept[number][level], self._most[number][level] = kept[number], most[number]

    def _windows(self, graph: TrainingGraph) -> list[int]:
        """The window of each op of a rewritten graph."""
        count, windows, first = len(self._rewriting.blocks), [], 0
        for op in graph.ops:
            # an op that is repeated lies in the window of the op that it is repeated before
            here = bisect_left(self._ends, first) if op.phase == FORWARD else count - bisect_right(self._starts, first)
            windows.append(here)
            first += AGAIN not in op.name
        return windows
