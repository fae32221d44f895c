"""What a collective that a library makes takes, by the points that calibration measured."""

from itertools import pairwise
from typing import TYPE_CHECKING

from .bodies.collective import Collective
from .plan import Task

if TYPE_CHECKING:
    from traces.profile import Profile

Points = list[tuple[int, float]]


def points_name(operation: str, library: str, ranks: int) -> str:
    """Under which a profile keeps the points of an operation among so many processes."""
    return f"{operation}|{library}|{ranks}"


def operation_name(body: Collective) -> str:
    """The operation, and the algorithm where the library is told one: "server" is a sum at the root and a broadcast."""
    return f"{body.operation}>server" if body.algorithm == "server" else body.operation


def collective_s(task: Task, library: str, profile: "Profile | None") -> float | None:
    """Seconds of a collective that `library` makes; None where nothing like it was measured."""
    body: Collective = task.body
    if not library or profile is None:
        return None
    points = profile.collectives.get(points_name(operation_name(body), library, len(body.devices)))
    return between(points, body.payload_bytes(task)) if points else None


def between(points: Points, size_bytes: int) -> float:
    """Seconds for so many bytes, on the lines between points and beyond the outer ones: no more than the first point's before it, and no
    less than the last one's behind it. Of a single point, its own or in proportion.
    """
    if len(points) == 1:
        (known_bytes, known_s), *_ = points
        return known_s * max(1.0, size_bytes / known_bytes if known_bytes else 1.0)
    (x0, y0), (x1, y1) = next((pair for pair in pairwise(points) if size_bytes <= pair[1][0]), tuple(points[-2:]))
    seconds = y0 + (y1 - y0) * (size_bytes - x0) / (x1 - x0)
    if size_bytes < points[0][0]:
        return min(max(seconds, 0.0), points[0][1])
    return max(seconds, y1) if size_bytes > x1 else seconds
