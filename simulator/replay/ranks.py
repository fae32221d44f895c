"""The ranks of one job: which of their collectives are one, and which ranks of many are replayed.

For each name, the ranks' sequences of collectives are aligned so that the ends of most pairs agree, because a recording may have missed the
first collectives of a rank. Pairs whose ends are then far apart are not joined. Traces do not record communicators, so collectives of one
name are identified by their order.

A collective ends on all its ranks at once. If the ends of most collectives differ by the same time, the ranks' clocks do, and that time is
subtracted: ranks on different machines have different clocks.

A replay of a rank takes some 20 MB, and the time to compute each rank's cost grows with their number squared. Therefore, only some of many
ranks are replayed: those that the others wait for, and representatives of the rest. All are read, one after another, but only the
collectives of each are retained, so that memory does not grow with their number.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from traces import units
from traces.formats.reading import load_ranks
from traces.formats.recording import COLLECTIVE, Recording, Work

#: Ranks that are replayed at most, and how many of them are those that arrive at collectives last.
MOST_REPLAYED, LATEST = 8, 3


class _Read(NamedTuple):
    """What is retained of a rank: its trace, its position among the trace's ranks, its number, its clock, its collectives."""

    trace: Path | str
    position: int
    rank: int
    origin_ns: int
    collectives: tuple[Work, ...]


def read_ranks(
    traces: Sequence[Path | str], progress: Callable[[str], None] = lambda stage: None
) -> tuple[list[Recording], tuple[str, ...]]:
    """Read the ranks of a job on one clock, and choose those that are replayed if there are many. Returns them, and what to note.

    `progress` is called before a trace is read. Raises UnusableFileError for a file that cannot be read.
    """
    kept: list[Recording] = []
    read: list[_Read] = []
    for trace in traces:
        progress(f"reading {Path(trace).name}")
        for position, own in enumerate(load_ranks(trace)):
            collectives = tuple(work for work in own.works if work.category == COLLECTIVE)
            read.append(_Read(trace, position, own.rank, own.origin_ns, collectives))
            kept += [own] if len(traces) <= MOST_REPLAYED else []
    if len({own.rank for own in read}) < len(read):  # profilers without ranks number all of them 0
        read = [own._replace(rank=number) for number, own in enumerate(read)]
    read, notes = _on_one_clock(read)
    if len(read) <= MOST_REPLAYED:
        return [replace(own, rank=rank.rank, origin_ns=rank.origin_ns) for own, rank in zip(kept, read, strict=True)], notes
    late_s = lateness([own.collectives for own in read], [(own.origin_ns - read[0].origin_ns) / 1e9 for own in read])
    chosen = choose(late_s)
    again = [kept[number] if kept else load_ranks(read[number].trace)[read[number].position] for number in chosen]
    latest = sorted(chosen, key=lambda number: -late_s[number])[:LATEST]
    words = ", ".join(f"{read[number].rank} by {units.duration(late_s[number])}" for number in latest)
    note = (
        f"{len(read)} ranks read, {len(chosen)} of them replayed: those that arrive at collectives last, in all of the recording later than"
        f" the median rank (rank {words}), and {len(chosen) - len(latest)} that stand for the others"
    )
    ranks = [read[number] for number in chosen]
    return [replace(own, rank=rank.rank, origin_ns=rank.origin_ns) for own, rank in zip(again, ranks, strict=True)], (note, *notes)


def _on_one_clock(read: Sequence[_Read]) -> tuple[list[_Read], tuple[str, ...]]:
    """Return the ranks on the clock of the first, and notes on clocks that differ."""
    ahead = [clock_ahead(read[0].collectives, own.collectives, (own.origin_ns - read[0].origin_ns) / 1e9) for own in read]
    apart = [(own.rank, clock) for own, clock in zip(read, ahead, strict=True) if clock.seconds]
    apart.sort(key=lambda each: -abs(each[1].seconds))
    on_one = [own._replace(origin_ns=own.origin_ns - round(clock.seconds * 1e9)) for own, clock in zip(read, ahead, strict=True)]
    words = [
        f"rank {rank}'s is {units.duration(abs(clock.seconds))} {'ahead of' if clock.seconds > 0 else 'behind'} rank {read[0].rank}'s"
        f" ({clock.collectives} collectives, whose ends then agree within {units.duration(clock.spread_s)})"
        for rank, clock in apart[:MOST_NOTED]
    ]
    words += [f"{len(apart) - MOST_NOTED} others by less"] if len(apart) > MOST_NOTED else []
    return on_one, (f"clocks aligned by the ends of common collectives: {', '.join(words)}",) if words else ()


def lateness(ranks: Sequence[Sequence[Work]], shifts_s: Sequence[float]) -> list[float]:
    """Return for each rank how many seconds in all it arrived at joined collectives after the median rank. `shifts_s`: as `joined`."""
    late_s = [0.0] * len(ranks)
    for group in joined(ranks, shifts_s)[0]:
        arrived_s = {rank: ranks[rank][index].start_s + shifts_s[rank] for rank, index in group.items()}
        middle_s = median(arrived_s.values())
        for rank, start_s in arrived_s.items():
            late_s[rank] += max(0.0, start_s - middle_s)
    return late_s


def choose(late_s: Sequence[float]) -> list[int]:
    """Return the ranks that are replayed, in order: the latest, and others evenly from the later to the earlier ones."""
    order = sorted(range(len(late_s)), key=lambda rank: -late_s[rank])
    others, number = order[LATEST:], MOST_REPLAYED - LATEST
    evenly = {others[round(at * (len(others) - 1) / (number - 1))] for at in range(number)}
    return sorted({*order[:LATEST], *evenly})


#: The ends of one collective on two ranks agree within this time, or within half the duration of its transfer.
AGREE_S = 100e-6
MOST_SHIFT = 8
_AHEAD = tuple(sorted(range(-MOST_SHIFT, MOST_SHIFT + 1), key=abs))
#: Clocks that are apart by less are one clock: the ends of one collective on one machine agree within some microseconds.
ONE_CLOCK_S = 10e-6
#: Collectives that show how far two clocks are apart, at least; how many spreads of their ends clocks are apart by; ranks in one note.
FEWEST, SPREADS, MOST_NOTED = 3, 3.0, 3


class Clock(NamedTuple):
    """By how many seconds a rank's clock is ahead of another's, by how many collectives, and the median distance of their ends then."""

    seconds: float = 0.0
    collectives: int = 0
    spread_s: float = 0.0


def clock_ahead(reference: Sequence[Work], works: Sequence[Work], shift_s: float) -> Clock:
    """Return how far the clock of `works` is ahead of that of `reference`, from the ends of the collectives of both.

    `shift_s`: what to add to the times of `works`, according to the recordings. The clocks are one if the ends of half of the collectives
    agree as they are; else they are apart by the time that brings most ends together, if these are at least half, and `FEWEST`. Of several
    such times, the one for which the fewest collectives are missing from a recording counts.
    """
    distances: list[list[np.ndarray]] = []  # by name: those of the ends, for each number of positions that one sequence is ahead
    own = _by_name(works)
    for name, indices in _by_name(reference).items():
        ends = np.array([reference[index].end_s for index in indices])
        others = np.array([works[index].end_s + shift_s for index in own.get(name, ())])
        pairs = [
            (max(0, -ahead), min(len(ends), len(others) - ahead), ahead) for ahead in sorted(range(-MOST_SHIFT, MOST_SHIFT + 1), key=abs)
        ]
        distances.append([others[first + ahead : last + ahead] - ends[first:last] for first, last, ahead in pairs if first < last])

    def agreeing(apart_s: float) -> list[np.ndarray]:
        return [max((each[np.abs(each - apart_s) <= AGREE_S] for each in by_shift), key=len) for by_shift in distances if by_shift]

    enough = max(FEWEST, 0.5 * sum(max(map(len, by_shift)) for by_shift in distances if by_shift))
    agree = agreeing(0.0)
    if sum(map(len, agree)) < enough:
        candidates = [float(np.median(each)) for by_shift in distances for each in by_shift]
        agree = max(map(agreeing, candidates), key=lambda each: sum(map(len, each)), default=[])
    ends_s = np.concatenate(agree) if agree else np.array([])
    if len(ends_s) < enough:
        return Clock()
    apart_s = float(np.median(ends_s))
    spread_s = float(np.median(np.abs(ends_s - apart_s)))
    return Clock(apart_s, len(ends_s), spread_s) if abs(apart_s) > max(ONE_CLOCK_S, SPREADS * spread_s) else Clock()


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
    for offset in _AHEAD:
        distances = [abs(end - others[i + offset]) for i, end in enumerate(ends) if 0 <= i + offset < len(others)]
        if distances and median(distances) < best_s:
            best, best_s = offset, median(distances)
    return best
