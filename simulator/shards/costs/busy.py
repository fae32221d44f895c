"""Which part of a machine is busy longest with copies that start together, for many sets of copies at once.

A part is a channel of a link, or a direction of it: each byte and each copy between two devices takes some of its time. Most parts serve
all copies from some devices to some others. So the bytes are summed over such groups of devices once, and each part reads the sum that it
needs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

#: Devices, as numbers.
_Group = frozenset[int]


class _Term(NamedTuple):
    """All copies from a group of devices to another, and what each of their bytes and each copy takes of the time of `part`."""

    part: int
    sources: _Group
    targets: _Group
    byte_s: float
    copy_s: float

    def forms(self) -> list[Self]:
        """Terms with just these copies: a device alone may as well be in the other group, since nothing goes to itself."""
        both, forms = self.sources | self.targets, [self]
        if len(self.sources) == 1 < len(self.targets):
            forms.append(self._replace(targets=both))
        elif len(self.targets) == 1 < len(self.sources):
            forms.append(self._replace(sources=both))
        return forms


class _Side:
    """One side of some terms: the number of each one's device, or its column in `members` [device, group] if it has several."""

    def __init__(self, groups: Sequence[_Group], size: int):
        distinct = list(dict.fromkeys(groups))
        self.members: np.ndarray | None = None
        if len(distinct[0]) == 1:
            self.numbers = np.array([device for (device,) in groups])
            return
        self.members = np.array([[device in group for group in distinct] for device in range(size)], float)
        self.numbers = np.array([distinct.index(group) for group in groups])


class _Entries:
    """Terms whose sides are alike, devices alone or groups, so that they read one array of sums."""

    def __init__(self, terms: Sequence[_Term], size: int):
        parts, sources, targets, *seconds = zip(*terms, strict=True)
        self.parts = np.array(parts)
        self.sides = _Side(sources, size), _Side(targets, size)
        self.seconds = np.array(seconds)[..., None, None]

    def add_to(self, busy_s: np.ndarray, moved: Sequence[np.ndarray], back: bool) -> None:
        """Add the time of each part to [part, ..., ...]. `moved`: bytes and copies [..., source, ..., target], coming `back` if so."""
        sources, targets = reversed(self.sides) if back else self.sides
        there, taken_s = None, 0.0
        for own, seconds in zip(moved, self.seconds, strict=True):
            if seconds.any():
                summed = _summed(own, sources.members, targets.members)
                there = np.flatnonzero((sources.numbers < summed.shape[1]) & (targets.numbers < summed.shape[3]))
                taken_s = taken_s + summed[:, sources.numbers[there], :, targets.numbers[there]] * seconds[there]
        if len(there):
            parts, first = np.unique(self.parts[there], return_index=True)
            busy_s[parts] += np.add.reduceat(taken_s, first, axis=0)


class Busiest:
    """The parts of a machine.

    `parts`: [part, 2, source, target], the seconds that a byte and a copy between two devices take of a part's time.
    """

    def __init__(self, parts: np.ndarray):
        parts, size = np.unique(parts, axis=0), parts.shape[-1]
        covered = [(part <= parts).all(axis=(1, 2, 3)).sum() > 1 for part in parts]  # never busy for longer than another part
        parts = parts[~np.array(covered, bool)]
        #: Whether copies take as long on their way back: all links are alike in both directions.
        self.both_ways = np.array_equal(np.unique(parts.swapaxes(2, 3), axis=0), parts)
        self._parts = len(parts)
        terms = [term for number, part in enumerate(parts) for term in _terms(number, part)]
        uses = Counter(group for term in terms for form in term.forms() for group in (form.sources, form.targets))
        alike: dict[tuple[bool, bool], list[_Term]] = defaultdict(list)
        for term in terms:
            form = max(term.forms(), key=lambda form: uses[form.sources] * uses[form.targets])
            alike[len(form.sources) > 1, len(form.targets) > 1].append(form)
        self._entries = [_Entries(own, size) for own in alike.values()]

    def seconds(self, moved: np.ndarray, back: bool = False) -> np.ndarray:
        """[..., ...], the time of the busiest part for bytes [..., source, ..., target], of which the last devices may be left out.

        `back`: and of their way back, at another time. What a device copies to itself must be 0.
        """
        both = moved, (moved > 0).astype(np.float32)
        there_s = self._one_way(both, False)
        return there_s + (there_s if self.both_ways else self._one_way(both, True)) if back else there_s

    def _one_way(self, moved: Sequence[np.ndarray], back: bool) -> np.ndarray:
        busy_s = np.zeros((self._parts, moved[0].shape[0], moved[0].shape[2]))
        for entries in self._entries:
            entries.add_to(busy_s, moved, back)
        return busy_s.max(axis=0, initial=0.0)


def _terms(number: int, part: np.ndarray) -> Iterator[_Term]:
    """Yield what adds up to the time of a part: copies that take equal time, from groups of devices to others."""
    away = ~np.eye(part.shape[-1], dtype=bool)
    for seconds in dict.fromkeys(zip(*part[:, away].tolist(), strict=True)):
        if any(seconds):
            used = (part[0] == seconds[0]) & (part[1] == seconds[1]) & away
            sources, targets = used.any(axis=1), used.any(axis=0)
            if ((sources[:, None] & targets & away) == used).all():
                yield _Term(number, _devices(sources), _devices(targets), *seconds)
            else:
                for source in np.flatnonzero(sources):
                    yield _Term(number, frozenset({int(source)}), _devices(used[source]), *seconds)


def _summed(moved: np.ndarray, sources: np.ndarray | None, targets: np.ndarray | None) -> np.ndarray:
    """[..., sources, ..., targets], sums over the devices of groups (`_Side.members`), or each device if None."""
    first, rows, second, columns = moved.shape
    if targets is not None:  # one large product: NumPy computes a stack of small ones one by one
        moved = (moved.reshape(-1, columns) @ targets[:columns].astype(moved.dtype)).reshape(first, rows, second, -1)
    if sources is not None:
        moved = (sources[:rows].T.astype(moved.dtype) @ moved.reshape(first, rows, -1)).reshape(first, sources.shape[1], second, -1)
    return moved


def _devices(mask: np.ndarray) -> _Group:
    return frozenset(map(int, np.flatnonzero(mask)))
