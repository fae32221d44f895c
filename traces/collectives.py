"""What collectives of a library take, as calibration measured them. Seconds and bytes."""

from bisect import bisect_left
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

#: How a law is used on a number of ranks that was not measured, for the sources of a machine.
SCALED = "on other numbers of ranks scaled from the nearest by the algorithm's rounds and bytes"

Measure = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


class LawPiece(NamedTuple):
    """Up to so many bytes a collective takes `latency_s + s_per_byte * bytes`."""

    up_to_bytes: Measure
    latency_s: Measure
    s_per_byte: Measure


class CollectiveLaw(BaseModel):
    """Seconds of a collective that runs alone, by the bytes of one device's operands.

    A library chooses an algorithm (ring, tree) and a protocol by the size; each takes a latency and a time per byte. So the law is a line
    per range of sizes, and may jump between two. Beyond the last piece that goes on. `points`: the (bytes, seconds) it was fitted on, in
    order of bytes; `held_out_error`: mean relative error on points that a fit did not see.
    """

    model_config = ConfigDict(extra="ignore")

    pieces: Annotated[list[LawPiece], Field(min_length=1)]
    points: list[tuple[Measure, Measure]] = []
    held_out_error: Measure | None = None

    def parts(self, payload_bytes: float) -> tuple[float, float]:
        """Seconds of latency, and seconds in which bytes move. Of a size that was measured, as measured."""
        place = bisect_left([piece.up_to_bytes for piece in self.pieces[:-1]], payload_bytes)
        piece = self.pieces[place]
        found = bisect_left(self.points, (payload_bytes, 0.0))
        if found < len(self.points) and self.points[found][0] == payload_bytes:
            whole_s = self.points[found][1]
            return min(piece.latency_s, whole_s), max(0.0, whole_s - piece.latency_s)
        return piece.latency_s, piece.s_per_byte * payload_bytes

    def seconds(self, payload_bytes: float) -> float:
        """Both together."""
        return sum(self.parts(payload_bytes))


def law_name(operation: str, library: str, ranks: int, nodes: int = 1) -> str:
    """What a profile calls the law of `ranks` devices on `nodes` nodes: `all-reduce|nccl|8`, on two nodes `all-reduce|nccl|8/2`."""
    return f"{operation}|{library}|{ranks}" + (f"/{nodes}" if nodes > 1 else "")
