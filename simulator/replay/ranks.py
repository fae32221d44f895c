"""Several ranks of one job: which of their collectives are the same one.

Of each name, the ranks' sequences are laid side by side so that the ends of most pairs agree, since a window may cut a rank's first ones
off; pairs whose ends then lie far apart are not joined. Communicators are not recorded, so collectives of one name are told apart by order.
"""

from collections.abc import Sequence
from statistics import median

from traces.recording.recording import COLLECTIVE, Work

#: Ends of one collective agree within this, or within half of its transfer.
AGREE_S = 100e-6
MOST_SHIFT = 8


def joined(ranks: Sequence[Sequence[Work]], shifts_s: Sequence[float]) -> tuple[list[dict[int, int]], int]:
    """Groups of works by rank that are one collective, and how many collectives found no partner.

    `shifts_s`: what moves each rank's clock to the common one.
    """
    sequences = [_by_name(works) for works in ranks]
    groups: list[dict[int, int]] = []
    for name, reference in sequences[0].items():
        found = [{0: index} for index in reference]
        ends = [ranks[0][index].end_s + shifts_s[0] for index in reference]
        for rank in range(1, len(ranks)):
            other = sequences[rank].get(name, [])
            other_ends = [ranks[rank][index].end_s + shifts_s[rank] for index in other]
            offset = _offset(ends, other_ends)
            for position, group in enumerate(found):
                partner = position + offset
                if 0 <= partner < len(other):
                    shortest = min(ranks[0][reference[position]].duration_s, ranks[rank][other[partner]].duration_s)
                    if abs(ends[position] - other_ends[partner]) <= max(AGREE_S, 0.5 * shortest):
                        group[rank] = other[partner]
        groups += [group for group in found if len(group) > 1]
    total = sum(len(indices) for names in sequences for indices in names.values())
    return groups, total - sum(len(group) for group in groups)


def transfer_s(group: dict[int, int], ranks: Sequence[Sequence[Work]]) -> float:
    """What is left of a collective once all have arrived: the shortest of the ranks' durations."""
    return min(ranks[rank][index].duration_s for rank, index in group.items())


def _by_name(works: Sequence[Work]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index, work in enumerate(works):
        if work.category == COLLECTIVE:
            found.setdefault(work.name, []).append(index)
    return found


def _offset(ends: list[float], others: list[float]) -> int:
    """How many places the second sequence is ahead of the first, by the median distance of the ends."""
    best, best_s = 0, float("inf")
    for offset in sorted(range(-MOST_SHIFT, MOST_SHIFT + 1), key=abs):
        distances = [abs(end - others[i + offset]) for i, end in enumerate(ends) if 0 <= i + offset < len(others)]
        if distances and median(distances) < best_s:
            best, best_s = offset, median(distances)
    return best
