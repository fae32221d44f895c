"""Splits the spans of a lane into tracks whose spans do not overlap, so that the browser finds visible ones by binary search."""

from collections.abc import Sequence

import numpy as np

#: Tracks of a lane at most. Spans that fit into none of them lose the part that overlaps in the last one.
MOST_TRACKS = 8


def tracks(start: np.ndarray, end: np.ndarray) -> list[list[int]]:
    """The indices of spans by track, each in order of start. Spans of a lane overlap where they are nested or a timer was inexact.

    `start`, `end`: integer ticks of each span. Those of shortened spans are changed in place.
    """
    placed: list[list[int]] = []
    reached: list[int] = []  # the end of each track
    for index in np.lexsort((-end.astype(np.int64), start)).tolist():
        begin, until = int(start[index]), int(end[index])
        number = next((number for number, last in enumerate(reached) if last <= begin), len(reached))
        if number == MOST_TRACKS:
            number -= 1
            begin = max(begin, reached[number])
            until = max(begin, until)
            start[index], end[index] = begin, until
        if number == len(reached):
            placed.append([])
            reached.append(0)
        placed[number].append(index)
        reached[number] = until
    return placed


def one_track(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of stretches in order of start, each without the part that an earlier one covers."""
    order = np.lexsort((end, start))
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    start[1:] = np.maximum(start[1:], reached[:-1])
    return start, np.maximum(start, end)


def borders(parts: Sequence[Sequence[int]], first: int) -> list[int]:
    """Where each part begins in an array that holds all of them from place `first` on, and where the last one ends."""
    places = [first]
    for part in parts:
        places.append(places[-1] + len(part))
    return places
