"""Interleaved schedules: stage s on rank s % ranks, so that a rank runs several stages and a bubble is as short as one of them.

"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (Narayanan et al., 2021).
"""

from simulator.strategies.pipeline.schedule import BACKWARD, FORWARD, Action, Schedule


def order(ranks: int, micro_batches: int, per_rank: int = 2) -> Schedule:
    """Interleaved 1F1B with `per_rank` stages on each rank.

    Micro-batches pass in rounds of at least `ranks` (of all, if there are fewer): each stage of a rank runs a round before the next stage
    does. Where torch's ScheduleInterleaved1F1B accepts the number of micro-batches the order is the same; it refuses those that it
    cannot cut into equal rounds, and here the first rounds are one micro-batch longer.
    """
    return Schedule(tuple(_rank(rank, ranks, _rounds(ranks, micro_batches), per_rank) for rank in range(ranks)))


def _stages(rank: int, ranks: int, per_rank: int) -> range:
    return range(rank, ranks * per_rank, ranks)


def _rounds(ranks: int, micro_batches: int) -> list[range]:
    """The micro-batches of each round."""
    count = max(1, micro_batches // ranks)
    length, longer = divmod(micro_batches, count)
    ends = [(n + 1) * length + min(n + 1, longer) for n in range(count)]
    return [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _rank(rank: int, ranks: int, rounds: list[range], per_rank: int) -> tuple[Action, ...]:
    stages = _stages(rank, ranks, per_rank)
    forwards = [Action(stage, FORWARD, m) for batch in rounds for stage in stages for m in batch]
    backwards = [Action(stage, BACKWARD, m) for batch in rounds for stage in stages[::-1] for m in batch]
    # The last rank's first backward follows the first round's forwards; each rank before it runs two more, one for either way.
    warm_up = min((per_rank - 1) * len(rounds[0]) + 2 * (ranks - 1 - rank), len(forwards))
    actions = forwards[:warm_up]
    for place, backward in enumerate(backwards):
        actions += [*forwards[warm_up + place : warm_up + place + 1], backward]
    return tuple(actions)
