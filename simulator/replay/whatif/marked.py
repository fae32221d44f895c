"""What rules changed in a timeline: tasks that are shorter or longer than before, that are gone, or that are new."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from traces.documents.timeline import Timeline

#: The phases under which changed tasks are drawn.
SHORTER, LONGER, REMOVED, NEW = "shorter", "longer", "removed", "new"
#: Tasks whose durations differ by less than this share, and this many seconds, are as they were.
SAME_SHARE, SAME_S = 0.01, 5e-7


@dataclass(frozen=True)
class Changes:
    """By kind of change, the tasks and by how many seconds they are longer in all."""

    kind: Mapping[str, str]
    seconds: Mapping[str, float]

    @property
    def counts(self) -> dict[str, int]:
        """The number of tasks by kind of change, in a fixed order."""
        numbers = Counter(self.kind.values())
        return {kind: numbers[kind] for kind in (SHORTER, LONGER, REMOVED, NEW) if numbers[kind]}


def changes(before: Timeline, after: Timeline) -> Changes:
    """Return what differs between two simulations of one recording, whose tasks have the same names."""
    lengths = [{span.task: span.end_s - span.start_s for span in timeline.spans} for timeline in (before, after)]
    kinds: dict[str, str] = {}
    seconds: Counter[str] = Counter()
    for task in lengths[0].keys() | lengths[1].keys():
        old, new = (own.get(task) for own in lengths)
        kind = REMOVED if new is None else NEW if old is None else _kind(old, new)
        if kind:
            kinds[task] = kind
            seconds[kind] += (new or 0.0) - (old or 0.0)
    return Changes(kinds, seconds)


def _kind(old_s: float, new_s: float) -> str:
    if abs(new_s - old_s) <= max(SAME_SHARE * old_s, SAME_S):
        return ""
    return SHORTER if new_s < old_s else LONGER


def marked(timeline: Timeline, changed: Changes) -> Timeline:
    """Return a timeline whose changed tasks have their kind of change as their phase, so that they are drawn in its color."""
    spans = tuple(replace(span, phase=changed.kind[span.task]) if span.task in changed.kind else span for span in timeline.spans)
    return replace(timeline, spans=spans)
