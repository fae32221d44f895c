"""Interleaved 1F1B: stage s runs on device s mod D, so a bubble is as short as one stage of a device (Narayanan et al., 2021).

"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (Narayanan et al., 2021).
"""

from dataclasses import dataclass

from simulator.engine.costs.cost import PlanCosts
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies.options import Count
from simulator.strategies.pipeline.planning import FUSED, ScheduledOptions, combined, microbatch_texts, synchronous
from simulator.strategies.pipeline.schedule import BACKWARD, FORWARD, Action, Schedule


def order(ranks: int, microbatches: int, per_rank: int = 2) -> Schedule:
    """Interleaved 1F1B with `per_rank` stages on each rank.

    Microbatches pass in rounds of at least `ranks` (of all, if there are fewer): each stage of a rank runs a round before the next stage
    does. Where torch's ScheduleInterleaved1F1B accepts the number of microbatches the order is the same; it refuses those that it
    cannot cut into equal rounds, and here the first rounds are one microbatch longer.

    >>> for actions in order(2, 4, per_rank=2).ranks:
    ...     print(*actions)
    0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
    1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
    """
    return Schedule(tuple(_rank(rank, ranks, _rounds(ranks, microbatches), per_rank) for rank in range(ranks)))


def _rounds(ranks: int, microbatches: int) -> list[range]:
    """The microbatches of each round."""
    count = max(1, microbatches // ranks)
    length, longer = divmod(microbatches, count)
    ends = [(n + 1) * length + min(n + 1, longer) for n in range(count)]
    return [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _rank(rank: int, ranks: int, rounds: list[range], per_rank: int) -> tuple[Action, ...]:
    stages = range(rank, ranks * per_rank, ranks)
    forwards = [Action(stage, FORWARD, m) for batch in rounds for stage in stages for m in batch]
    backwards = [Action(stage, BACKWARD, m) for batch in rounds for stage in stages[::-1] for m in batch]
    # The last rank's first backward follows the first round's forwards; each rank before it runs two more, one for either way.
    warm_up = min((per_rank - 1) * len(rounds[0]) + 2 * (ranks - 1 - rank), len(forwards))
    actions = forwards[:warm_up]
    for place, backward in enumerate(backwards):
        actions += [*forwards[warm_up + place : warm_up + place + 1], backward]
    return tuple(actions)


NAME = "interleaved-1f1b"
FAMILY = "pipelines"
ABOUT = "pipeline with several stages on each device, in 1F1B order: shorter bubbles, more transfers"
USES_COSTS = True
LEAST_DEVICES = 2


@dataclass(frozen=True)
class Options(ScheduledOptions):
    """How the model is cut."""

    per_device: Count = 2
    """Stages on each device."""


def candidates(job: Job, machine: Machine) -> tuple[str, ...]:
    """Numbers of microbatches, and of stages on each device, and backward-fusion."""
    return combined(microbatch_texts(job, machine), ("per_device=4",), FUSED)


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    """`per_device` stages on each device."""
    v = options.per_device
    return synchronous(NAME, job, machine, costs, options, lambda ranks, m: order(ranks, m, v), per_rank=v)
