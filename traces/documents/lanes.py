"""The order in which lanes are drawn: devices as the timeline lists them, the lanes of a device by name, with numbers in numeric order."""

import re
from collections.abc import Sequence

from traces.documents.timeline import Span, Timeline


def lanes(timeline: Timeline, spans: Sequence[Span]) -> tuple[tuple[str, str], ...]:
    """Every (device, lane) that `spans` of the timeline use, in drawing order."""
    rank: dict[str, int] = {}
    for name in [*(use.name for use in timeline.devices), *(span.device for span in spans)]:
        rank.setdefault(name, len(rank))
    return tuple(sorted({(span.device, span.lane) for span in spans}, key=lambda place: (rank[place[0]], natural(place[1]))))


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key that puts "stream 2" before "stream 10"."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]
