"""Short ways to say a pipeline schedule, and how long one takes when each action takes whole units of time."""

from collections.abc import Callable

from simulator.strategies import interleaved_1f1b, zero_bubble
from simulator.strategies.pipeline import orders
from simulator.strategies.pipeline.schedule import UNITS, Action, Schedule, Span, timed

#: Our schedules by their name: from numbers of ranks and microbatches.
OURS: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": orders.gpipe_order,
    "1f1b": orders.one_f_one_b_order,
    "interleaved-1f1b": interleaved_1f1b.order,
    "zero-bubble": zero_bubble.order,
    "zero-bubble in the memory of 1F1B": lambda ranks, m: zero_bubble.order(ranks, m, most_alive=ranks),
    "zero-bubble, V": lambda ranks, m: zero_bubble.order(2 * ranks, m, most_alive=2 * ranks, shape="v"),
}


def schedule(*ranks: str) -> Schedule:
    """The schedule whose ranks run what the texts say: schedule("0F0 0B0", "1F0 1B0")."""
    return Schedule(tuple(tuple(Action(int(text[0]), text[1], int(text[2:])) for text in rank.split()) for rank in ranks))


def makespan_s(spans: dict[Action, Span]) -> float:
    """When the last action ends."""
    return max((span.end_s for span in spans.values()), default=0.0)


def units(of: Schedule) -> int:
    """The makespan with F = I = W = 1, B = 2 and free transfers."""
    return int(makespan_s(timed(of, lambda action: UNITS[action.kind])))


def excess(of: Schedule) -> int:
    """Units of the makespan beyond the work of a rank: its bubbles."""
    return units(of) - 3 * of.microbatches * of.stages // len(of.ranks)
