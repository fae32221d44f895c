"""Which sums of gradients go first: those of the parameters that the next forward uses first (TurboDL's reuse distance)."""

from collections.abc import Sequence

#: Urgencies that sums are divided into at most; each has a stream and a priority of its own.
URGENCIES = 4


def urgencies(first_uses: Sequence[int], levels: int) -> list[int]:
    """Return the urgency of each sum, 0 the most urgent, from where in a forward its parameters are used first.

    `levels`: priority levels of the devices, one of which is left to what they compute.
    """
    ranks = {use: rank for rank, use in enumerate(sorted(set(first_uses)))}
    count = min(URGENCIES, max(1, levels - 1), len(ranks))
    return [ranks[use] * count // len(ranks) for use in first_uses]


def priority_of(urgency: int, levels: int) -> int:
    """Return the priority of sums of this urgency on devices of so many priority levels."""
    return max(1 - levels, urgency - URGENCIES)
