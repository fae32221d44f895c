"""Which part of a machine is busy longest with copies that start together, for many sets of copies at once.

A part is a channel of a link, or a direction of it: each byte and each copy between two devices takes some of its time. Most parts serve
all copies from some devices to some others. So the bytes are summed over such groups of devices once, and each part reads the sum that it
needs.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple, Self

import numpy as np

#: Devices, as numbers.
_Group = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a machine: [source, target], the seconds that a byte and a copy between two devices take of its time."""

    byte_s: np.ndarray
    copy_s: np.ndarray

    @classmethod
    def unused(cls, size: int) -> Self:
        """A part that no copy between `size` devices uses."""
        return cls(np.zeros((size, size)), np.zeros((size, size)))

    def covers(self, other: "Part") -> bool:
        """Whether this part is never busy for less time than another one."""
        return bool((self.byte_s >= other.byte_s).all() and (self.copy_s >= other.copy_s).all())


class _Term(NamedTuple):
    """All copies from a group of devices to another, and what each of their bytes and each copy takes of a part's time."""

    sources: _Group
    targets: _Group
    byte_s: float
    copy_s: float

    def forms(self) -> list[tuple[_Group, _Group]]:
        """Pairs of groups with just these copies: a device alone may as well be in the other group, since nothing goes to itself."""
        both = tuple(sorted({*self.sources, *self.targets}))
        if len(self.sources) == 1 < len(self.targets):
            return [(self.sources, self.targets), (self.sources, both)]
        if len(self.targets) == 1 < len(self.sources):
            return [(self.sources, self.targets), (both, self.targets)]
        return [(self.sources, self.targets)]


class Sums:
    """Sums of [..., source, ..., target] over the devices of groups, each made when it is first read.

    `members`: [device, group], 1 for the devices of each group; more devices than there are sources or targets are left out.
    """

    def __init__(self, moved: np.ndarray, members: np.ndarray):
        self._moved, self._members = moved, members.astype(moved.dtype)
        self._made: dict[tuple[tuple[int, ...], tuple[int, ...]], np.ndarray] = {}

    @cached_property
    def total(self) -> np.ndarray:
        """[..., ...], the sum over all devices."""
        return self._moved.sum(axis=(1, 3))

    def between(self, sources: tuple[int, ...], targets: tuple[int, ...]) -> np.ndarray:
        """[..., sources, ..., targets] from groups, or from each device if `sources` is empty, to groups or to each device."""
        if (sources, targets) not in self._made:
            self._made[sources, targets] = self._sum(sources, targets)
        return self._made[sources, targets]

    def _sum(self, sources: tuple[int, ...], targets: tuple[int, ...]) -> np.ndarray:
        first, rows, second, columns = self._moved.shape
        to_targets = self._moved
        if targets:  # one large product: NumPy computes a stack of small ones one by one
            to_targets = (self._moved.reshape(-1, columns) @ self._members[:columns, targets]).reshape(first, rows, second, -1)
        if not sources:
            return to_targets
        members = self._members[:rows, sources]
        return (members.T @ to_targets.reshape(first, rows, -1)).reshape(first, len(sources), second, -1)


class _Entries(NamedTuple):
    """Some entries of one array of `Sums`: its groups, the places of sources and targets, and seconds of a byte and of a copy.

    `parts`: whose time each entry takes, in rising order.
    """

    groups: tuple[tuple[int, ...], tuple[int, ...]]
    parts: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    byte_s: np.ndarray
    copy_s: np.ndarray

    def add_to(self, busy_s: np.ndarray, moved: Sums, copies: Sums, back: bool) -> None:
        """Add the seconds to [part, ..., ...].

        `back`: what goes from sources to targets comes back instead. Devices that `moved` leaves out have none.
        """
        sources, targets, groups = self.sources, self.targets, self.groups
        if back:
            sources, targets, groups = targets, sources, (groups[1], groups[0])
        summed = moved.between(*groups)
        _, rows, _, columns = summed.shape
        there = (sources < rows) & (targets < columns)
        if not there.any():
            return
        sources, targets, byte_s, copy_s = (each[there] for each in (sources, targets, self.byte_s, self.copy_s))
        seconds = summed[:, sources, :, targets] * byte_s[:, None, None]
        if copy_s.any():
            seconds += copies.between(*groups)[:, sources, :, targets] * copy_s[:, None, None]
        parts, first = np.unique(self.parts[there], return_index=True)
        busy_s[parts] += np.add.reduceat(seconds, first, axis=0)


class Busiest:
    """The parts of a machine with `size` devices. `parts`: the time is that of the busiest part."""

    def __init__(self, size: int, parts: Sequence[Part]):
        terms = [_terms(part) for part in _without_covered(parts)]
        uses = Counter(group for term in chain(*terms) for form in term.forms() for group in form)
        forms = {term: max(term.forms(), key=lambda form: uses[form[0]] * uses[form[1]]) for term in chain(*terms)}
        every = tuple(range(size))
        groups = list(dict.fromkeys(group for form in forms.values() for group in form if len(group) > 1))
        self._members = np.zeros((size, len(groups)))
        for number, group in enumerate(groups):
            self._members[list(group), number] = 1
        self._numbers = {group: (True, number) for number, group in enumerate(groups)} | {(n,): (False, n) for n in every}
        mirrored = {(*reversed(forms[term]), *term[2:]) for term in chain(*terms)}
        #: Whether copies take as long on their way back: all links are alike in both directions.
        self.both_ways = all(len(own) == 1 for own in terms) and mirrored == {forms[term] + term[2:] for term in chain(*terms)}
        self._parts = len(terms)
        self._entries = list(self._by_array([(part, *forms[term], *term[2:]) for part, own in enumerate(terms) for term in own]))

    def sums(self, moved: np.ndarray) -> Sums:
        """Sums of [..., source, ..., target] over groups of devices, of which the last may be left out.

        What a device copies to itself must be 0.
        """
        return Sums(moved, self._members)

    def seconds(self, moved: Sums, copies: Sums, back: bool) -> np.ndarray:
        """[..., ...], the time of the busiest part for sums of bytes and of copies. `back`: of copies from each target to its source."""
        busy_s = np.zeros((self._parts, *moved.total.shape))
        for entries in self._entries:
            entries.add_to(busy_s, moved, copies, back)
        return busy_s.max(axis=0, initial=0.0)

    def _by_array(self, terms: Sequence[tuple[int, _Group, _Group, float, float]]) -> Iterator[_Entries]:
        """The terms (part, sources, targets, seconds of a byte and of a copy), together if they read the same array of sums."""
        by_array: dict[tuple[bool, bool], list[tuple[int, int, int, float, float]]] = {}
        for part, sources, targets, *seconds in terms:
            (tall, a), (wide, b) = self._numbers[sources], self._numbers[targets]
            by_array.setdefault((tall, wide), []).append((part, a, b, *seconds))
        for by_group, rows in by_array.items():
            parts, *ends, byte_s, copy_s = map(np.array, zip(*rows, strict=True))
            used = [tuple(map(int, np.unique(end))) if is_group else () for is_group, end in zip(by_group, ends, strict=True)]
            a, b = (np.searchsorted(own, end) if own else end for own, end in zip(used, ends, strict=True))
            yield _Entries((used[0], used[1]), parts, a, b, byte_s, copy_s)


def _without_covered(parts: Sequence[Part]) -> list[Part]:
    """The parts but those that are never busy for longer than another one."""
    kept: list[Part] = []
    for part in parts:
        if not any(other.covers(part) for other in kept):
            kept = [other for other in kept if not part.covers(other)] + [part]
    return kept


def _terms(part: Part) -> list[_Term]:
    """What adds up to the time of a part: copies that take equal time, from groups of devices to others."""
    size, terms = len(part.byte_s), []
    away = ~np.eye(size, dtype=bool)
    for byte_s, copy_s in dict.fromkeys(zip(part.byte_s[away], part.copy_s[away], strict=True)):
        if not byte_s and not copy_s:
            continue
        used = (part.byte_s == byte_s) & (part.copy_s == copy_s) & away
        sources, targets = used.any(axis=1), used.any(axis=0)
        if ((sources[:, None] & targets & away) == used).all():
            rows = [(sources, targets)]
        else:
            rows = [(np.arange(size) == source, used[source]) for source in np.flatnonzero(sources)]
        terms += [_Term(_devices(a), _devices(b), float(byte_s), float(copy_s)) for a, b in rows]
    return terms


def _devices(mask: np.ndarray) -> _Group:
    return tuple(map(int, np.flatnonzero(mask)))
