"""The order in which lanes are drawn: devices as they come, lanes of a device by name with numbers in order."""

import re
from collections.abc import Iterable

from .timeline import Timeline


def lanes(timelines: Iterable[Timeline]) -> tuple[tuple[str, str], ...]:
    """Every (device, lane) of the timelines, in drawing order."""
    timelines = tuple(timelines)
    found = {(span.device, span.lane) for timeline in timelines for span in timeline.spans}
    named = (
        name for timeline in timelines for name in [*(use.name for use in timeline.devices), *(span.device for span in timeline.spans)]
    )
    rank = {device: position for position, device in enumerate(dict.fromkeys(named))}
    return tuple(sorted(found, key=lambda place: (rank[place[0]], natural(place[1]))))


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key that puts "stream 2" before "stream 10"."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]
