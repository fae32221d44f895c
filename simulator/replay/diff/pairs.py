"""Pair the nodes of two runs: device work by its name and order, step by step, and host time by what it launches.

Work of one name that has another place in the other run, because it moved to another stream or before its neighbor, is paired as well: then
its place differs, not its duration.

Another precision, library or GPU has other kernels for the same ops. If names pair too little, work without a partner of its name is paired
with that of the same call of the same op, if both runs call that op, from the same place, equally often in that step.

Align two sequences of names: their longest common subsequence, which survives inserted, removed and replaced items.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.predict.waterfall import WAITING
from simulator.replay.diff.run import Lane, Node, Run

#: Cells of a table at most; larger problems are divided (Hirschberg), which takes twice the time and little memory.
MOST_CELLS = 1 << 22

Pairs = list[tuple[int, int]]


def aligned(first: Sequence[Hashable], second: Sequence[Hashable]) -> Pairs:
    """Return pairs of positions with equal items, both ascending, as many as possible."""
    numbers: dict[Hashable, int] = {}
    a, b = (np.array([numbers.setdefault(item, len(numbers)) for item in items], dtype=np.int64) for items in (first, second))
    return _aligned(a, b, 0, 0)


def refined(
    first: Sequence[int], second: Sequence[int], keys: Sequence[tuple[Callable[[int], Hashable], Callable[[int], Hashable]]]
) -> Pairs:
    """Align items by the first key, then those between two pairs by the next key, and so on. Returns pairs of items.

    `keys`: for each pass, the key of an item of `first` and that of an item of `second`.
    """
    if not keys or not first or not second:
        return []
    key_a, key_b = keys[0]
    pairs = aligned([key_a(item) for item in first], [key_b(item) for item in second])
    result = []
    for (begin_a, begin_b), (end_a, end_b) in zip([(-1, -1), *pairs], [*pairs, (len(first), len(second))], strict=True):
        result += refined(first[begin_a + 1 : end_a], second[begin_b + 1 : end_b], keys[1:])
        if end_a < len(first):
            result.append((first[end_a], second[end_b]))
    return result


def _aligned(a: np.ndarray, b: np.ndarray, at_a: int, at_b: int) -> Pairs:
    """Return the pairs of two parts that begin at the positions `at_a` and `at_b`."""
    begin = _equal(a, b)
    pairs = [(at_a + i, at_b + i) for i in range(begin)]
    a, b, at_a, at_b = a[begin:], b[begin:], at_a + begin, at_b + begin
    end = _equal(a[::-1], b[::-1])
    suffix = [(at_a + len(a) - end + i, at_b + len(b) - end + i) for i in range(end)]
    a, b = a[: len(a) - end], b[: len(b) - end]
    if len(a) and len(b):
        if len(a) * len(b) <= MOST_CELLS or len(a) == 1:
            pairs += [(at_a + i, at_b + j) for i, j in _by_table(a, b)]
        else:
            middle = len(a) // 2
            left = _last_row(a[:middle], b)
            right = _last_row(a[middle:][::-1], b[::-1])[::-1]
            cut = int(np.argmax(left + right))
            pairs += _aligned(a[:middle], b[:cut], at_a, at_b) + _aligned(a[middle:], b[cut:], at_a + middle, at_b + cut)
    return pairs + suffix


def _equal(a: np.ndarray, b: np.ndarray) -> int:
    """Return how many items at the start are equal."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def _next_row(row: np.ndarray, item: int, b: np.ndarray) -> np.ndarray:
    """Return the lengths of the common subsequences with each prefix of `b` after one more item, from those before it."""
    longer = np.maximum(row[1:], (row[:-1] + 1) * (b == item))
    return np.concatenate(([0], np.maximum.accumulate(longer)))


def _last_row(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    row = np.zeros(len(b) + 1, dtype=np.int32)
    for item in a:
        row = _next_row(row, item, b)
    return row


def _by_table(a: np.ndarray, b: np.ndarray) -> Pairs:
    rows = [np.zeros(len(b) + 1, dtype=np.int32)]
    for item in a:
        rows.append(_next_row(rows[-1], item, b))
    pairs = []
    i, j = len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif rows[i - 1][j] >= rows[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


@dataclass(frozen=True)
class Pairing:
    """`of_b`: the node of the first run by the node of the second. `share`: of the device seconds of both, those of pairs of one name or of
    one call of an op.

    `by_op`: how many pairs of device work of other names one call of an op launched. `by_class`: how many share no more than their class:
    one kernel in place of another.
    """

    of_b: dict[int, int]
    share: float
    by_op: int
    by_class: int


#: Runs whose names pair less than this share are paired by their ops, and are of different models if that pairs less, too.
LEAST_SHARE = 0.5


def pair(a: Run, b: Run) -> Pairing:
    """Pair the nodes of two runs."""
    by_name = _Pairer(a, b).pairing(by_op=False)
    return by_name if by_name.share >= LEAST_SHARE else _Pairer(a, b).pairing(by_op=True)


class _Pairer:
    def __init__(self, a: Run, b: Run):
        self.a, self.b = a.nodes, b.nodes
        self.of_a: dict[int, int] = {}
        self.of_b: dict[int, int] = {}

    def pairing(self, by_op: bool) -> Pairing:
        """Pair by names, and then, if `by_op`, by the calls of ops."""
        lanes = self._lanes(lambda run: {node.lane for node in run if node.on_device}, lambda node: node.names[0])
        by_lane = self._members(lambda node: node.on_device)
        for lane_b, lane_a in lanes.items():
            for step in sorted({step for side, lane, step in by_lane if lane == (lane_a, lane_b)[side]}):
                self._refine(by_lane.get((0, lane_a, step), []), by_lane.get((1, lane_b, step), []), (0,))
        self._moved()
        exact = set(self.of_b)
        if by_op:
            self._called()
        called = self.of_b.keys() - exact
        for lane_b, lane_a in lanes.items():
            for step in sorted({step for side, lane, step in by_lane if side and lane == lane_b}):
                self._between(by_lane.get((0, lane_a, step), []), by_lane.get((1, lane_b, step), []), (1, 2))
        named = {index for index in self.of_b if index in exact or self._names_agree(index)}
        share = self._share(named | called)
        by_class = len(self.of_b) - len(named | called)
        self._hosts()
        return Pairing(self.of_b, share, len(called - named), by_class)

    def _names_agree(self, index: int) -> bool:
        return self.a[self.of_b[index]].names[:2][-1] == self.b[index].names[:2][-1]

    def _share(self, same: set[int]) -> float:
        total_s = sum(node.seconds for run in (self.a, self.b) for node in run if _counts(node))
        paired_s = sum(node.seconds for index in same for node in (self.b[index], self.a[self.of_b[index]]) if _counts(node))
        return paired_s / total_s if total_s else 0.0

    def _add(self, pairs: Iterable[tuple[int, int]]) -> None:
        for index_a, index_b in pairs:
            if index_a not in self.of_a and index_b not in self.of_b:
                self.of_a[index_a], self.of_b[index_b] = index_b, index_a

    def _members(self, wanted: Callable) -> dict[tuple[int, Lane, int], list[int]]:
        """Return the nodes by run (0 or 1), lane and step, in order."""
        members: dict[tuple[int, Lane, int], list[int]] = defaultdict(list)
        for side, run in enumerate((self.a, self.b)):
            for index, node in enumerate(run):
                if wanted(node):
                    members[side, node.lane, node.step].append(index)
        return members

    def _lanes(self, lanes_of: Callable, name: Callable) -> dict[Lane, Lane]:
        """Return the lane of the first run by the lane of the second: those with most in common first; devices are taken in order."""
        lanes_a, lanes_b = lanes_of(self.a), lanes_of(self.b)
        devices_a, devices_b = (sorted({device for device, _ in lanes}) for lanes in (lanes_a, lanes_b))
        device_of = dict(zip(devices_b, devices_a, strict=False))
        names: list[dict[Lane, Counter]] = [defaultdict(Counter), defaultdict(Counter)]
        for side, (run, lanes) in enumerate(((self.a, lanes_a), (self.b, lanes_b))):
            for node in run:
                if node.lane in lanes:
                    names[side][node.lane][name(node)] += 1
        common = [
            (-(names[0][lane_a] & names[1][lane_b]).total(), str(lane_a[1]) != str(lane_b[1]), str(lane_b), str(lane_a), lane_b, lane_a)
            for lane_b in lanes_b
            for lane_a in lanes_a
            if device_of.get(lane_b[0]) == lane_a[0]
        ]
        result: dict[Lane, Lane] = {}
        for *_, lane_b, lane_a in sorted(common, key=lambda row: row[:4]):
            if lane_b not in result and lane_a not in result.values():
                result[lane_b] = lane_a
        return result

    def _refine(self, members_a: Sequence[int], members_b: Sequence[int], passes: Sequence[int]) -> None:
        keys = [
            (lambda index, at=at: self.a[index].names[min(at, len(self.a[index].names) - 1)],
             lambda index, at=at: self.b[index].names[min(at, len(self.b[index].names) - 1)])
            for at in passes
        ]  # fmt: skip
        self._add(refined(members_a, members_b, keys))

    def _between(self, members_a: Sequence[int], members_b: Sequence[int], passes: Sequence[int]) -> None:
        """Pair the remaining nodes between the pairs of two lanes."""
        position = {index: at for at, index in enumerate(members_a)}
        begin_a = begin_b = 0
        for at_b, index_b in [*enumerate(members_b), (len(members_b), -1)]:
            at_a = position.get(self.of_b.get(index_b, -1), -1) if index_b >= 0 else len(members_a)
            if at_a >= begin_a:
                left_a = [index for index in members_a[begin_a:at_a] if index not in self.of_a]
                left_b = [index for index in members_b[begin_b:at_b] if index not in self.of_b]
                self._refine(left_a, left_b, passes)
                begin_a, begin_b = at_a + 1, at_b + 1

    def _moved(self) -> None:
        """Pair the work of one name and step that has no partner in its own place."""
        left: dict[tuple[str, int], list[int]] = defaultdict(list)
        for index, node in enumerate(self.a):
            if node.on_device and index not in self.of_a:
                left[node.names[0], node.step].append(index)
        for index, node in enumerate(self.b):
            others = left.get((node.names[0], node.step)) if node.on_device and index not in self.of_b else None
            if others:
                self._add([(others.pop(0), index)])

    def _called(self) -> None:
        """Pair the work of one call of an op: first that of one class, then in order."""
        calls: list[Counter] = [Counter(), Counter()]
        left: list[dict[tuple, list[int]]] = [defaultdict(list), defaultdict(list)]
        for side, (run, paired) in enumerate(((self.a, self.of_a), (self.b, self.of_b))):
            for index, node in enumerate(run):
                calls[side][node.step, node.callers] = max(calls[side][node.step, node.callers], node.call)
                if node.call and index not in paired:
                    left[side][node.step, node.callers, node.call, node.term].append(index)
        for place, members in left[1].items():
            others = left[0].get(place)
            if others and calls[0][place[:2]] == calls[1][place[:2]]:
                self._refine(others, members, (2,))
                self._add(
                    zip([index for index in others if index not in self.of_a], [i for i in members if i not in self.of_b], strict=False)
                )

    def _hosts(self) -> None:
        """Pair launches of paired work, then the nodes between them in their threads, by name."""
        self._add(
            (self.a[index_a].launch, self.b[index_b].launch)
            for index_b, index_a in sorted(self.of_b.items())
            if self.a[index_a].launch >= 0 and self.b[index_b].launch >= 0
        )
        votes = Counter(
            (self.b[index_b].lane, self.a[index_a].lane) for index_b, index_a in self.of_b.items() if not self.b[index_b].on_device
        )
        threads: dict[Lane, Lane] = {}
        for (lane_b, lane_a), _ in votes.most_common():
            if lane_b not in threads and lane_a not in threads.values():
                threads[lane_b] = lane_a
        others = self._lanes(lambda run: {node.lane for node in run if not node.on_device}, lambda node: node.names[0])
        for lane_b, lane_a in others.items():
            if lane_b not in threads and lane_a not in threads.values():
                threads[lane_b] = lane_a
        members: dict[tuple[int, Lane], list[int]] = defaultdict(list)
        for side, run in enumerate((self.a, self.b)):
            for index, node in enumerate(run):
                if not node.on_device:
                    members[side, node.lane].append(index)
        for lane_b, lane_a in threads.items():
            self._between(members[0, lane_a], members[1, lane_b], (0,))


def _counts(node: Node) -> bool:
    """Whether a node is a device's work, rather than time between its work."""
    return node.on_device and node.term != WAITING
