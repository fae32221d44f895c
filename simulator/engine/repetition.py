"""Whether a schedule repeats itself exactly: the proof of a steady state.

Two periods of equal length prove nothing: a stream may have a lead that it loses later, or use what it shares with others in another order.
So every start and every end of a window is compared with those of the window p windows earlier. If all tasks of a lane are later by the
same time, the lane repeats itself. If the times of all lanes are equal too, and everything that was under way at the start of what repeats
ended within it, the engine is in a state that it was in before. It then goes on as it did, so that p windows take this time for ever.

A lane may repeat itself in less time than others, because it runs ahead of them. The slowest lane then decides, if no lane that shares SMs,
bandwidth or links runs ahead: what runs concurrently with such a lane changes as its lead grows. Such a lane must also not have run the
last simulated period, since the other lanes then run without it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulator.engine.hosts import EagerHost
from simulator.engine.steady import EQUAL, Repeated
from simulator.engine.world import World

#: A schedule nearly repeats itself if two halves of at least this many windows, and all lanes, take equally long within this share.
LEAST_HALF, ALIKE = 3, 2e-3
#: Most windows after which a schedule is looked for that repeats itself.
MOST_APART = 24


class _Window(NamedTuple):
    """What happened in one window.

    `times_s`: starts and ends, periods by tasks in order of lanes. `last_s`: by lane, when it ended. `longest_s`: by lane, the longest time
    from when a task asked for what it shares until its end.
    """

    times_s: np.ndarray
    last_s: np.ndarray
    longest_s: np.ndarray


class _Match(NamedTuple):
    """`windows` successive windows repeat the previous ones, later by `later_s` for each lane."""

    windows: int
    later_s: np.ndarray


class Repetition:
    """Compares the windows of one simulation as they are completed."""

    def __init__(
        self,
        world: World,
        lanes: Sequence[Sequence[int]],
        sharing: Sequence[Sequence[int]],
        hosts: Sequence[tuple[EagerHost, Sequence[int]]],
        per_window: int,
    ):
        """`lanes`: the tasks of each. `sharing`: groups of lanes, by number, that share something (`sharing_lanes`). `hosts`: those that
        issue task by task, with the numbers of the lanes that they feed. `per_window`: periods in a window.
        """
        self._world, self._hosts, self._per_window = world, hosts, per_window
        self._sharing = [np.array(group) for group in sharing]
        self._tasks = np.array([index for lane in lanes for index in lane])
        self._firsts = np.cumsum([0, *map(len, lanes[:-1])])
        self._last_of = [lane[-1] for lane in lanes]
        self._asks = np.array([not world.recipes[index].alone for index in self._tasks])
        self._windows: dict[int, _Window] = {}
        self._matches: dict[int, _Match] = {}

    def repeats(self, lengths_s: Sequence[float], first: int) -> Repeated | None:
        """How the schedule repeats itself according to the windows of these lengths; those before `first` do not count."""
        last = len(lengths_s) - 1
        equal_s = EQUAL * sum(lengths_s)
        proof = None
        for apart in range(1, min(MOST_APART, last - first) + 1):
            later_s = None
            if abs(lengths_s[last] - lengths_s[last - apart]) <= 2 * equal_s:
                later_s = self._later(last, apart, equal_s)
            if later_s is None:
                self._matches.pop(apart, None)
                continue
            before = self._matches.get(apart)
            windows = before.windows + 1 if before is not None and bool((np.abs(before.later_s - later_s) <= 2 * equal_s).all()) else 1
            match = self._matches[apart] = _Match(windows, later_s)
            if proof is None and self._proves(match, last, apart, equal_s):
                proof = Repeated(apart, float(later_s.max()))
        return proof

    def pace(self, lengths_s: Sequence[float], first: int) -> Repeated | None:
        """How long a window takes on average, if the schedule nearly repeats itself: no lane gains on another, or changes its pace."""
        last = len(lengths_s) - 1
        half = (last - first) // 2
        ends_s = [self._window(last - ago).last_s for ago in (2 * half, half, 0)]
        whole_s, later_s = ends_s[2] - ends_s[0], ends_s[2] - ends_s[1]
        mean_s = float(whole_s.max()) / (2 * half)
        alike = [np.abs(whole_s / (2 * half) - mean_s), np.abs(later_s / half - mean_s)]
        steady = half >= LEAST_HALF and all(bool((each <= ALIKE * mean_s).all()) for each in alike)
        match = _Match(2 * half, whole_s)
        if not steady or self._left_alone() or not all(self._keeps_up(*fed, match, last, mean_s / self._per_window) for fed in self._hosts):
            return None
        return Repeated(1, mean_s)

    def _later(self, window: int, apart: int, equal_s: float) -> np.ndarray | None:
        """By lane, how much later than `apart` windows before everything happened; None if not all by the same time."""
        later = self._window(window).times_s - self._window(window - apart).times_s
        least = np.minimum.reduceat(later, self._firsts, axis=1).min(axis=0)
        most = np.maximum.reduceat(later, self._firsts, axis=1).max(axis=0)
        return most if bool((most - least <= equal_s).all()) else None

    def _window(self, number: int) -> _Window:
        if number not in self._windows:
            world, size = self._world, self._world.program.size
            first, count = number * self._per_window * size, self._per_window * size

            def rows(column) -> np.ndarray:
                return np.frombuffer(column, float, count, 8 * first).reshape(self._per_window, size)[:, self._tasks]

            start_s, end_s = rows(world.start_s), rows(world.end_s)
            under_way_s = end_s - np.where(self._asks, rows(world.earliest_s), start_s)
            self._windows[number] = _Window(
                np.concatenate((start_s, end_s)),
                np.maximum.reduceat(end_s.max(axis=0), self._firsts),
                np.maximum.reduceat(under_way_s.max(axis=0), self._firsts),
            )
        return self._windows[number]

    def _proves(self, match: _Match, last: int, apart: int, equal_s: float) -> bool:
        period_s = float(match.later_s.max()) / apart / self._per_window
        behind = match.later_s < match.later_s.max() - 2 * equal_s  # lanes that take less time, and so run ahead
        seen = self._world.program.reach * (len(self._firsts) if behind.any() else 1)  # periods that a circle of waiting tasks may span
        if match.windows * self._per_window < seen or self._left_alone() or any(behind[group].any() for group in self._sharing):
            return False
        return all(self._flushed(group, match, last) for group in self._sharing) and all(
            self._keeps_up(host, fed, match, last, period_s) for host, fed in self._hosts
        )

    def _left_alone(self) -> bool:
        """Whether a lane with which others share something has run all the periods that are simulated."""
        world = self._world
        first, end_s = (world.horizon - 1) * world.program.size, world.end_s
        numbers = [first + self._last_of[lane] for group in self._sharing for lane in group]
        return any(number < len(end_s) and end_s[number] == end_s[number] for number in numbers)  # not a number: it has not run

    def _flushed(self, group: np.ndarray, match: _Match, last: int) -> bool:
        """Whether what was under way in a group when its last lane began to repeat itself ended while all of them did."""
        begin_s = self._window(last - match.windows).last_s[group].max()
        end_s = self._window(last).last_s[group].min()
        longest_s = max(self._window(last - ago).longest_s[group].max() for ago in range(match.windows))
        return bool(end_s - begin_s >= longest_s)

    def _keeps_up(self, host: EagerHost, fed: Sequence[int], match: _Match, last: int, period_s: float) -> bool:
        """Whether a host issues a period in the time of a period, and blocks now as it will later: when its queues are full."""
        if host.issue_s > period_s * (1 + EQUAL):
            return False
        periods = range((last + 1 - match.windows) * self._per_window, (last + 1) * self._per_window)
        if host.blocked.issuperset(periods) or len(fed) == 1:
            return True
        last_s = self._window(last).last_s[list(fed)]
        lead = (last_s.max() - last_s.min()) / period_s if period_s else 0.0
        return (1 + lead) * host.most_launches < host.depth  # tasks may be issued up to a period apart that start at one time
