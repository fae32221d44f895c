"""Divides a recording into iterations: by profiler steps or ranges that repeat, else by optimizer steps, else by the pattern of kernels.

Layers repeat as well as iterations do. An annotation, a module or an op that is outermost and spans several repetitions is one iteration.

Device work belongs to the iteration that launched it, since the host may be more than one iteration ahead of the device.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from traces.formats.recording import STEP_RANGE, CallKind, Recording, Work, by_lane

_PROFILER, _RANGE = re.compile(r"^ProfilerStep#\d+$"), re.compile(rf"^{STEP_RANGE}")
#: The most pattern lengths that are collected; and the share of kernels that must repeat.
MOST_CANDIDATES, SAME_SHARE = 64, 0.95
#: An iteration that lost this share of its kernels does not count; how many of these a note names.
LOST_SHARE, MOST_NAMED = 0.05, 3
#: The iteration number of work that was launched before the first iteration.
BEFORE = -1
#: The name of the only iteration of a recording in which nothing repeats.
WHOLE = "recording"


class Iterations(NamedTuple):
    """The names of the iterations, and the number of the iteration of each `Work` and of each call of a recording.

    The number is `BEFORE` before the first iteration, and `len(names)` after the last. `source` says how the iterations were recognized.
    """

    names: tuple[str, ...]
    of_work: tuple[int, ...]
    of_call: tuple[int, ...]
    source: str


def find(recording: Recording) -> Iterations:
    """The iterations of a recording. If nothing repeats, all of it is one iteration.

    Annotated steps count only if device work was launched in one of them: a recording may have annotations of steps without their work.
    """
    launch_times = _launch_times(recording)
    empty: list[str] = []
    for windows_of, source in (
        (partial(_named, names=_PROFILER), "profiler steps"),
        (partial(_named, names=_RANGE), "NVTX ranges"),
        (_optimizer, "optimizer steps"),
        (_spanning, "what spans the repeating kernels: an outermost annotation, module or op"),
        (_pattern, "the repeating pattern of kernels"),
        (lambda recording: [(WHOLE, float("-inf"), float("inf"))], "the whole recording: nothing in it repeats"),
    ):
        windows = windows_of(recording)
        at = _lookup(windows)
        of_work = tuple(map(at, launch_times))
        if any(0 <= number < len(windows) for number in of_work):
            break
        empty += [source] if windows else []
    lacking = f" (no device work was launched in the {' and '.join(empty)})" if empty else ""
    seen = Iterations(tuple(name for name, _, _ in windows), of_work, tuple(at(call.start_s) for call in recording.calls), source + lacking)
    return _without_lost(seen, Counter(map(at, recording.lost_s)))


def _without_lost(seen: Iterations, lost: Mapping[int, int]) -> Iterations:
    """Return the longest run of iterations whose kernels were recorded; all, if there is none. `lost`: kernels that were not, by iteration.

    What was launched before that run or after it counts as before the first iteration or after the last.
    """
    recorded = Counter(seen.of_work)
    torn = [number for number in range(len(seen.names)) if lost[number] >= LOST_SHARE * (lost[number] + recorded[number]) > 0]
    begin, end = max(pairwise([-1, *torn, len(seen.names)]), key=lambda each: each[1] - each[0])
    if not torn or end - begin < 2:
        return seen
    words = ", ".join(f"{seen.names[number]} ({lost[number]} of {lost[number] + recorded[number]})" for number in torn[:MOST_NAMED])
    more = f" and {len(torn) - MOST_NAMED} more" if len(torn) > MOST_NAMED else ""
    of_work, of_call = (
        tuple(min(max(number - begin - 1, BEFORE), end - begin - 1) for number in each) for each in (seen.of_work, seen.of_call)
    )
    source = f"{seen.source}; these do not count, because kernels that they launched were not recorded: {words}{more}"
    return Iterations(seen.names[begin + 1 : end], of_work, of_call, source)


def _lookup(windows: Sequence[tuple[str, float, float]]) -> Callable[[float], int]:
    """A function from a time to the number of its window: -1 before the first, `len(windows)` after the last."""
    starts, end_s = [start for _, start, _ in windows], windows[-1][2] if windows else float("inf")

    def number_at(time_s: float) -> int:
        index = bisect_right(starts, time_s) - 1
        return index + 1 if index == len(starts) - 1 and time_s >= end_s else index

    return number_at


def _launch_times(recording: Recording) -> list[float]:
    """The launch time of each `Work`. One without a recorded launch has the launch time of the previous one in its stream.

    If its stream had been idle since the host last waited for the device, it was launched just before it started. If no launch was recorded
    at all, the launch times are the start times.
    """
    works, calls = recording.works, recording.calls
    if recording.unmatched == len(works):
        return [work.start_s for work in works]
    launch_times = [float("-inf")] * len(works)
    waited_s = [call.end_s for call in calls if call.kind in (CallKind.DEVICE_SYNC, CallKind.STREAM_SYNC)]
    for members in by_lane(works).values():
        latest, ended_s = float("-inf"), float("-inf")
        for index in members:
            work = works[index]
            if work.call >= 0:
                latest = max(latest, calls[work.call].start_s)
            elif bisect_right(waited_s, work.start_s) > bisect_right(waited_s, ended_s):
                latest = max(latest, work.start_s)
            launch_times[index], ended_s = latest, max(ended_s, work.end_s)
    return launch_times


def _named(recording: Recording, names: re.Pattern[str]) -> list[tuple[str, float, float]]:
    steps: dict[str, tuple[float, float]] = {}
    for name, start, end in recording.annotations:
        if names.match(name):
            steps.setdefault(name, (start, end))
    windows = [(name, start, end) for name, (start, end) in steps.items()]
    windows.sort(key=lambda window: window[1])
    return [(n, s, e) for n, s, e in windows if e > s]


def _optimizer(recording: Recording) -> list[tuple[str, float, float]]:
    """Each iteration ends with its optimizer step. The first begins with the recording."""
    steps = [a for a in recording.annotations if a.name.startswith("Optimizer.step#")]
    outer, reached = [], float("-inf")
    for step in steps:  # an optimizer that wraps another is annotated twice
        if step.start_s >= reached:
            outer.append(step)
            reached = step.end_s
    begins = [float("-inf"), *(step.end_s for step in outer)]
    return [(f"optimizer step {number}", begin, step.end_s) for number, (begin, step) in enumerate(zip(begins, outer, strict=False), 1)]


def _repeating(recording: Recording) -> tuple[list[int], int]:
    """Return the works of the stream with the most, and after how many of them they repeat; 0 if they do not."""
    members = max(by_lane(recording.works).values(), key=len)
    return members, _period([recording.works[index] for index in members])


def _spanning(recording: Recording) -> list[tuple[str, float, float]]:
    """Return the outermost calls or annotations of one thread in which nearly all works were launched, if most span several repetitions."""
    members, length = _repeating(recording)
    if not length or recording.unmatched == len(recording.works):
        return []
    launch_times = _launch_times(recording)
    launched_s = sorted(launch_times[index] for index in members)
    for scopes in recording.operators.outermost():
        numbers = [bisect_left(launched_s, scope.end_s) - bisect_left(launched_s, scope.start_s) for scope in scopes]
        if sum(numbers) >= SAME_SHARE * len(members):
            filled = [scope for scope, number in zip(scopes, numbers, strict=True) if number]
            if median(number for number in numbers if number) >= 2 * length:
                return [(f"{scope.name} #{n}", scope.start_s, scope.end_s) for n, scope in enumerate(filled, 1)]
            if len(filled) > 1 and len({scope.name for scope in filled}) == 1:
                break  # calls of one module, which the profiler numbers, are the iterations that the kernels show
    return []


def _pattern(recording: Recording) -> list[tuple[str, float, float]]:
    """Iterations found in the stream with the most kernels. Their length is the period of the kernels, counted back from the end."""
    members, length = _repeating(recording)
    if not length:
        return []
    launch_times = _launch_times(recording)
    first = len(members) % length
    cuts = [launch_times[members[position]] for position in range(first, len(members), length)] + [float("inf")]
    if not first:
        cuts[0] = float("-inf")
    return [(f"iteration {number}", begin, end) for number, (begin, end) in enumerate(pairwise(cuts), 1) if end > begin]


def _period(works: Sequence[Work]) -> int:
    """The number of kernels and copies after which their names repeat; 0 if they do not.

    The candidates are the distances between occurrences of the rarest names that occur at least twice: the kernels of a layer repeat within
    an iteration, but some name, often that of the loss, occurs once per iteration.
    """
    numbers: dict[str, int] = {}
    names = np.array([numbers.setdefault(work.name, len(numbers)) for work in works])
    counts = Counter(names.tolist())
    candidates: dict[int, None] = {}
    for number, count in sorted(counts.items(), key=lambda item: (item[1], item[0])):
        if count < 2:
            continue
        positions = np.flatnonzero(names == number)
        for distance in np.diff(positions).tolist():
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
