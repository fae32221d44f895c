"""Runs between two: one run's nodes with some terms, such as the durations of its kernels, taken from the other.

The hybrid has the nodes of both. Paired nodes are one. A node that only one run has is absent while its term is the other run's: it takes
no time and delays nothing. Its place in the other run's order is after the previous nodes of its own lane, and after those that it waits
for. With all terms of the first run, the times are those of the first run; with all terms of the second, those of the second. In between, a
node does not wait for later nodes.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from operator import itemgetter

from simulator.replay.diff.run import ORDER, PAUSES, SYNCHRONIZATION, Lane, Node, Run


@dataclass(frozen=True)
class Structure:
    """The structure of one run, by node of the hybrid: the lane, and what it waits for; and all nodes in order.

    `synced`: the device's work that a host's node waits for. `others`: everything else that a node waits for.
    """

    order: list[int]
    lane: list[int]
    synced: list[tuple[int, ...]]
    others: list[tuple[int, ...]]


@dataclass(frozen=True)
class Walk:
    """The times of a hybrid: when each node has ended, with and without its pause, in seconds; what it waited for last, -1 for nothing."""

    freed_s: list[float]
    end_s: list[float]
    waited_for: list[int]


class Hybrid:
    """All hybrids of two runs. `of_b`: the node of the first run by the node of the second."""

    def __init__(self, a: Run, b: Run, of_b: Mapping[int, int]):
        count = len(a.nodes)
        self.ids_a = list(range(count))
        self.ids_b = [of_b.get(index, -1) for index in range(len(b.nodes))]
        for index, number in enumerate(self.ids_b):
            if number < 0:
                self.ids_b[index] = count
                count += 1
        self.in_a = _by_id(a, self.ids_a, count)
        self.in_b = _by_id(b, self.ids_b, count)
        self.term = [_term(*nodes) for nodes in zip(self.in_a, self.in_b, strict=True)]
        self.steps, self._whole = a.steps, a.whole
        self._structures = (_structure(a, self.ids_a, b, self.ids_b), _structure(b, self.ids_b, a, self.ids_a))
        self._after: dict[tuple[bool, bool], list[tuple[int, ...]]] = {}
        self._by_step: dict[int, list[int]] = {}
        for index, nodes in enumerate(zip(self.in_a, self.in_b, strict=True)):
            node = either(*nodes)
            if node.on_device:
                self._by_step.setdefault(node.step, []).append(index)

    def differing(self) -> list[str]:
        """Return the terms in which the runs differ at all, in the order of their first node."""
        terms: dict[str, None] = {}
        for x, y, term in zip(self.in_a, self.in_b, self.term, strict=True):
            if x is None or y is None or x.seconds != y.seconds:
                terms.setdefault(term)
            if x is not None and y is not None and x.pause_s != y.pause_s:
                terms.setdefault(PAUSES)
        structures = self._structures
        if structures[0].synced != structures[1].synced:
            terms.setdefault(SYNCHRONIZATION)
        if structures[0].others != structures[1].others or _places(structures[0]) != _places(structures[1]):
            terms.setdefault(ORDER)
        return list(terms)

    def step_s(self, terms: Collection[str]) -> float:
        """Return the step time if the nodes of `terms` are those of the second run."""
        seconds = self.seconds(terms)
        walk = self._walked(terms, seconds, track=False)
        begin, end = self._borders(walk, seconds)
        return (end[1] - begin[1]) / self.counted

    def seconds(self, terms: Collection[str]) -> list[float]:
        """Return the seconds of every node if those of `terms` are the second run's; a negative number for an absent one."""
        result = []
        for x, y, term in zip(self.in_a, self.in_b, self.term, strict=True):
            node = y if term in terms else x
            result.append(-1.0 if node is None else node.seconds)
        return result

    def on_path(self, terms: Collection[str], seconds: list[float]) -> Counter[int]:
        """Return by node how many steps' lengths grow with it: 1 on the path to the end of the last step, less 1 on that to the begin."""
        walk = self._walked(terms, seconds, track=True)
        begin, end = self._borders(walk, seconds)
        counts: Counter[int] = Counter(_path(walk, end[0]))
        counts.subtract(_path(walk, begin[0]))
        return counts

    @property
    def counted(self) -> int:
        """How many steps count: all but the first, unless it is the only one."""
        return max(1, self.steps - 1)

    def _walked(self, terms: Collection[str], seconds: list[float], track: bool) -> Walk:
        of_order, of_sync = ORDER in terms, SYNCHRONIZATION in terms
        structure = self._structures[of_order]
        after = self._waits(of_order, of_sync)
        pauses = [
            either(y, x).pause_s if PAUSES in terms or x is None else x.pause_s for x, y in zip(self.in_a, self.in_b, strict=True)
        ]  # a node that only one run has keeps its own
        lane_of = structure.lane
        free_s = [0.0] * (max(lane_of, default=0) + 1)
        last = [-1] * len(free_s)
        freed_s, end_s = [0.0] * len(seconds), [0.0] * len(seconds)
        waited_for = [-1] * len(seconds) if track else []
        for index in structure.order:
            lane, own_s = lane_of[index], seconds[index]
            start_s, before = free_s[lane], last[lane]
            if own_s < 0:
                freed_s[index] = start_s
                if track:
                    waited_for[index] = before
                continue
            for other in after[index]:
                if freed_s[other] > start_s:
                    start_s, before = freed_s[other], other
            free_s[lane] = freed_s[index] = start_s + (own_s + pauses[index])
            end_s[index] = max(start_s, freed_s[index] - pauses[index])
            if track:
                waited_for[index], last[lane] = before, index
        return Walk(freed_s, end_s, waited_for)

    def _waits(self, of_order: bool, of_sync: bool) -> list[tuple[int, ...]]:
        key = (of_order, of_sync)
        if key not in self._after:
            synced, others = self._structures[of_sync].synced, self._structures[of_order].others
            self._after[key] = [x + y for x, y in zip(synced, others, strict=True)]
        return self._after[key]

    def _borders(self, walk: Walk, seconds: list[float]) -> tuple[tuple[int, float], tuple[int, float]]:
        """Return the start and the end of the steps that count, each as the node that ends then (-1: none) and the time."""
        if self._whole:
            last = max((index for index, own_s in enumerate(seconds) if own_s >= 0), key=walk.freed_s.__getitem__, default=-1)
            return (-1, 0.0), (last, walk.freed_s[last] if last >= 0 else 0.0)
        reached: list[tuple[int, float]] = []
        for step in range(-1, self.steps):
            present = [index for index in self._by_step.get(step, ()) if seconds[index] >= 0]
            last = max(present, key=walk.end_s.__getitem__, default=-1)
            ended = (last, walk.end_s[last] if last >= 0 else float("-inf"))
            reached.append(max((*reached[-1:], ended), key=itemgetter(1)))
        if self.steps > 1:
            return reached[1], reached[-1]
        if reached[0][0] >= 0:
            return reached[0], reached[1]
        starts = [walk.end_s[index] - seconds[index] for index in self._by_step.get(0, ()) if seconds[index] >= 0]
        return (-1, min(starts, default=0.0)), reached[1]


def _by_id(run: Run, ids: list[int], count: int) -> list[Node | None]:
    nodes: list[Node | None] = [None] * count
    for number, node in zip(ids, run.nodes, strict=True):
        nodes[number] = node
    return nodes


def either(a: Node | None, b: Node | None) -> Node:
    """The first of two paired nodes, or the second if there is no first."""
    node = a or b
    assert node is not None, "a node is of one of the runs at least"
    return node


def _term(a: Node | None, b: Node | None) -> str:
    """The term of a node. A host call that waits for a device in one of the runs is a synchronization."""
    terms = [node.term for node in (a, b) if node is not None]
    return SYNCHRONIZATION if SYNCHRONIZATION in terms else terms[0]


def _structure(run: Run, ids: list[int], other: Run, other_ids: list[int]) -> Structure:
    """Return the structure of `run`, with places for the nodes that only `other` has."""
    place = {number: (index, 0) for index, number in enumerate(ids)}
    node_of = dict(zip(ids, run.nodes, strict=True))
    pairs = Counter((node.lane, node_of[number].lane) for number, node in zip(other_ids, other.nodes, strict=True) if number in node_of)
    here: dict[Lane, Lane] = {}
    for (theirs, ours), _ in pairs.most_common():
        here.setdefault(theirs, ours)
    numbers: dict[Hashable, int] = {}
    lane = {number: numbers.setdefault(node.lane, len(numbers)) for number, node in node_of.items()}
    waits = _waits(run, ids)
    before: dict[Lane, int] = {}
    inserted = 0
    for (number, node), own in zip(zip(other_ids, other.nodes, strict=True), _waits(other, other_ids).items(), strict=True):
        if number not in place:
            inserted += 1
            sources = [*own[1][0], *own[1][1], *([before[node.lane]] if node.lane in before else [])]
            place[number] = (max((place[source][0] for source in sources), default=-1), inserted)
            lane[number] = numbers.setdefault(here.get(node.lane, ("other", node.lane)), len(numbers))
            waits[number] = own[1]
        before[node.lane] = number
    everything = range(len(place))
    return Structure(
        sorted(place, key=place.__getitem__),
        [lane[number] for number in everything],
        [waits[number][0] for number in everything],
        [waits[number][1] for number in everything],
    )


def _waits(run: Run, ids: list[int]) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return by node the device's work that it waits for if it is a host's, and all else that it waits for."""
    waits = {}
    for number, node in zip(ids, run.nodes, strict=True):
        synced = tuple(ids[other] for other in node.after if not node.on_device and run.nodes[other].on_device)
        waits[number] = (synced, tuple(ids[other] for other in node.after if ids[other] not in synced))
    return waits


def _places(structure: Structure) -> set[tuple[int, int]]:
    """Return the pairs of nodes that follow one another in a lane."""
    last: dict[int, int] = {}
    pairs = set()
    for number in structure.order:
        lane = structure.lane[number]
        pairs.add((last.get(lane, -1), number))
        last[lane] = number
    return pairs


def _path(walk: Walk, last: int) -> list[int]:
    path = []
    while last >= 0:
        path.append(last)
        last = walk.waited_for[last]
    return path
