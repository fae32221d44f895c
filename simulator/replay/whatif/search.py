"""How many kernels a regular expression matches and how long they take, before a rule changes them."""

from collections import defaultdict
from dataclasses import dataclass

from simulator.replay.nodes import ARRIVAL, short_name
from simulator.replay.replay import Replay
from simulator.replay.whatif.edit import device_work
from simulator.replay.whatif.matching import matching
from simulator.replay.whatif.parsing import MalformedError
from traces.errors import SchedcastError


@dataclass(frozen=True)
class KernelMatches:
    """Kernels (also copies and collectives) of a recording whose names match.

    `kernels` and `seconds`: in the whole recording. `steps`: recorded steps, at least 1. `share`: of the seconds of all kernels.
    `names`: (short name, kernels, seconds), the longest first.
    """

    kernels: int
    seconds: float
    steps: int
    share: float
    names: tuple[tuple[str, int, float], ...]


def kernel_matches(replay: Replay, regex: str) -> KernelMatches:
    """Return what a regular expression matches. Raises SchedcastError if that is nothing, or if it cannot be used."""
    try:
        tasks = matching(replay, regex)
    except MalformedError as error:
        raise SchedcastError(str(error)) from error
    counts: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for task in tasks:
        own = counts[short_name(task.body.name)]
        own[0] += ARRIVAL not in task.name
        own[1] += task.body.duration_s
    total_s = sum(task.body.duration_s for task in device_work(replay))
    names = sorted(((name, int(count), seconds) for name, (count, seconds) in counts.items()), key=lambda row: (-row[2], row[0]))
    seconds, share = sum(row[2] for row in names), 0.0
    if total_s:
        share = seconds / total_s
    return KernelMatches(sum(row[1] for row in names), seconds, max(1, len(replay.steps)), share, tuple(names))
