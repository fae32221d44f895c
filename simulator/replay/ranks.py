"""Join the collectives of several ranks of one job.

For each name, the ranks' sequences of collectives are aligned so that the ends of most pairs agree, because a recording may have missed the
first collectives of a rank. Pairs whose ends are then far apart are not joined. Traces do not record communicators, so collectives of one
name are identified by their order.
"""

from collections.abc import Sequence
from statistics import median

from traces.formats.recording import COLLECTIVE, Work

#: The ends of one collective on two ranks agree within this time, or within half the duration of its transfer.
AGREE_S = 100e-6
MOST_SHIFT = 8


def joined(ranks: Sequence[Sequence[Work]], shifts_s: Sequence[float]) -> tuple[list[dict[int, int]], int]:
    """Return the joined collectives, each as {rank: index of its work}, and the number of collectives without a partner.

    `shifts_s`: what to add to each rank's clock to get the common clock.
    """
    sequences = [_by_name(works) for works in ranks]
    groups: list[dict[int, int]] = []
    for name, reference in sequences[0].items():
        candidates = [{0: index} for index in reference]
        ends = [ranks[0][index].end_s + shifts_s[0] for index in reference]
        for rank in range(1, len(ranks)):
            other = sequences[rank].get(name, [])
            other_ends = [ranks[rank][index].end_s + shifts_s[rank] for index in other]
            offset = _offset(ends, other_ends)
            for position, group in enumerate(candidates):
                partner = position + offset
                if 0 <= partner < len(other):
                    shortest = min(ranks[0][reference[position]].duration_s, ranks[rank][other[partner]].duration_s)
                    if abs(ends[position] - other_ends[partner]) <= max(AGREE_S, 0.5 * shortest):
                        group[rank] = other[partner]
        groups += [group for group in candidates if len(group) > 1]
    total = sum(len(indices) for names in sequences for indices in names.values())
    return groups, total - sum(len(group) for group in groups)


def transfer_s(group: dict[int, int], ranks: Sequence[Sequence[Work]]) -> float:
    """Return the time that a collective takes after all ranks have arrived: the shortest of the ranks' durations."""
    return min(ranks[rank][index].duration_s for rank, index in group.items())


def _by_name(works: Sequence[Work]) -> dict[str, list[int]]:
    indices: dict[str, list[int]] = {}
    for index, work in enumerate(works):
        if work.category == COLLECTIVE:
            indices.setdefault(work.name, []).append(index)
    return indices


def _offset(ends: list[float], others: list[float]) -> int:
    """Return by how many positions the second sequence is ahead of the first: the offset with the least median distance of the ends."""
    best, best_s = 0, float("inf")
    for offset in sorted(range(-MOST_SHIFT, MOST_SHIFT + 1), key=abs):
        distances = [abs(end - others[i + offset]) for i, end in enumerate(ends) if 0 <= i + offset < len(others)]
        if distances and median(distances) < best_s:
            best, best_s = offset, median(distances)
    return best
