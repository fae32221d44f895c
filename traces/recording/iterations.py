"""The iterations of a recording: by profiler steps, else by optimizer steps, else by the repeating pattern of kernels.

Device work belongs to the iteration in which it was launched, since the host may run ahead by more than one.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from traces.recording.recording import Recording, Work, by_lane

_PROFILER = re.compile(r"^ProfilerStep#\d+$")
#: Candidates for the length of a pattern, and the share of kernels that must repeat.
MOST_CANDIDATES, SAME_SHARE = 64, 0.95
BEFORE = -1


class Iterations(NamedTuple):
    """`names` of the iterations; `of_work` and `of_call` say by index which one each belongs to.

    `BEFORE`: launched before the first one; `len(names)`: after the last.
    """

    names: tuple[str, ...]
    of_work: tuple[int, ...]
    of_call: tuple[int, ...]
    source: str


def find(recording: Recording) -> Iterations:
    """The iterations of a recording; all of it is one iteration where nothing repeats."""
    windows, source = _annotated(recording), "profiler steps"
    if not windows:
        windows, source = _optimizer(recording), "optimizer steps"
    if not windows:
        windows, source = _pattern(recording), "the repeating pattern of kernels"
    if not windows:
        windows, source = [("recording", float("-inf"), float("inf"))], "the whole recording: nothing in it repeats"
    moments = _moments(recording)
    starts, ends = [start for _, start, _ in windows], [end for _, _, end in windows]

    def at(time_s: float) -> int:
        found = bisect_right(starts, time_s) - 1
        return len(windows) if found == len(windows) - 1 and time_s >= ends[found] else found

    names = tuple(name for name, _, _ in windows)
    return Iterations(names, tuple(map(at, moments)), tuple(at(call.start_s) for call in recording.calls), source)


def _moments(recording: Recording) -> list[float]:
    """When each work was launched; work without a launch counts as launched with the work before it in its stream.

    Where nothing was launched in the recording, the start stands for it.
    """
    works, calls = recording.works, recording.calls
    if recording.unmatched == len(works):
        return [work.start_s for work in works]
    moments = [float("-inf")] * len(works)
    for members in by_lane(works).values():
        latest = float("-inf")
        for index in members:
            if works[index].call >= 0:
                latest = max(latest, calls[works[index].call].start_s)
            moments[index] = latest
    return moments


def _annotated(recording: Recording) -> list[tuple[str, float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for name, start, end in recording.annotations:
        if _PROFILER.match(name):
            found.setdefault(name, (start, end))
    windows = [(name, start, end) for name, (start, end) in found.items()]
    windows.sort(key=lambda window: window[1])
    return [(n, s, e) for n, s, e in windows if e > s]


def _optimizer(recording: Recording) -> list[tuple[str, float, float]]:
    """An iteration ends with its optimizer step; the first begins with the recording."""
    steps = [a for a in recording.annotations if a.name.startswith("Optimizer.step#")]
    outer, reached = [], float("-inf")
    for step in steps:  # an optimizer that wraps another is annotated twice
        if step.start_s >= reached:
            outer.append(step)
            reached = step.end_s
    begins = [float("-inf"), *(step.end_s for step in outer)]
    return [(f"optimizer step {number}", begin, step.end_s) for number, (begin, step) in enumerate(zip(begins, outer, strict=False), 1)]


def _pattern(recording: Recording) -> list[tuple[str, float, float]]:
    """Iterations of the stream with the most work: the shortest distance at which its kernels repeat, counted back from the end."""
    works = recording.works
    members = max(by_lane(works).values(), key=len)
    length = _period([works[index] for index in members])
    if not length:
        return []
    moments = _moments(recording)
    first = len(members) % length
    cuts = [moments[members[position]] for position in range(first, len(members), length)] + [float("inf")]
    if not first:
        cuts[0] = float("-inf")
    return [(f"iteration {number}", begin, end) for number, (begin, end) in enumerate(pairwise(cuts), 1) if end > begin]


def _period(works: Sequence[Work]) -> int:
    """The number of works after which names repeat, 0 if they do not.

    Candidates are the distances between occurrences of the rarest names that occur at least twice: a layer's kernels repeat within an
    iteration, but some name, often the loss, occurs once in each.
    """
    numbers: dict[str, int] = {}
    names = np.array([numbers.setdefault(work.name, len(numbers)) for work in works])
    counts = Counter(names.tolist())
    candidates: dict[int, None] = {}
    for number, count in sorted(counts.items(), key=lambda item: (item[1], item[0])):
        if count < 2:
            continue
        places = np.flatnonzero(names == number)
        for distance in np.diff(places).tolist():
            if 2 * distance <= len(names):
                candidates.setdefault(distance)
        if len(candidates) >= MOST_CANDIDATES:
            break
    best, best_share = 0, SAME_SHARE
    for distance in sorted(candidates)[: 4 * MOST_CANDIDATES]:
        share = float(np.mean(names[distance:] == names[:-distance]))
        if share > best_share + 1e-3 or (not best and share >= SAME_SHARE):
            best, best_share = distance, share
    return best
