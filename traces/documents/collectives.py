"""How long a library's collectives take, by size, as calibration measured it. Seconds and bytes."""

from bisect import bisect_left
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

#: How the duration on a number of ranks that was not measured is obtained. Shown among the sources of a machine.
SCALED = "for other numbers of ranks, scaled from the nearest measured one by the algorithm's communication rounds and bytes"

#: A measured quantity, and a rate per second that can be divided by. Their bounds keep every sum, product and quotient finite.
Measure = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False, strict=True)]
Rate = Annotated[float, Field(ge=1, le=1e30, allow_inf_nan=False, strict=True)]


class LawPiece(NamedTuple):
    """A collective of at most `up_to_bytes` takes `latency_s + s_per_byte * bytes` seconds."""

    up_to_bytes: Measure
    latency_s: Measure
    s_per_byte: Measure


class CollectiveLaw(BaseModel):
    """The duration of a collective that runs alone, as a function of the bytes of one device's operands.

    A library chooses an algorithm (ring, tree) and a protocol by size, each with its own latency and time per byte. So the law has one line
    per range of sizes and may jump between ranges. The last piece is also valid beyond its end. `points` are the measured (bytes, seconds),
    in order of bytes. `held_out_error` is the mean relative error on points that were excluded from a fit.
    """

    model_config = ConfigDict(extra="ignore")

    pieces: Annotated[list[LawPiece], Field(min_length=1)]
    points: list[tuple[Measure, Measure]] = []
    held_out_error: Measure | None = None

    def parts(self, payload_bytes: float) -> tuple[float, float]:
        """(latency, transfer time) in seconds. For a measured size they add up to the measured time."""
        piece = self.pieces[bisect_left([piece.up_to_bytes for piece in self.pieces[:-1]], payload_bytes)]
        index = bisect_left(self.points, (payload_bytes, 0.0))
        if index < len(self.points) and self.points[index][0] == payload_bytes:
            measured_s = self.points[index][1]
            return min(piece.latency_s, measured_s), max(0.0, measured_s - piece.latency_s)
        return piece.latency_s, piece.s_per_byte * payload_bytes

    def seconds(self, payload_bytes: float) -> float:
        """Latency and transfer time together."""
        return sum(self.parts(payload_bytes))

    def faster(self, factor: float) -> "CollectiveLaw":
        """The law with `factor` times the bandwidth. Latencies stay."""
        pieces = [piece._replace(s_per_byte=piece.s_per_byte / factor) for piece in self.pieces]
        points = [(size, latency + transfer / factor) for size, _ in self.points for latency, transfer in [self.parts(size)]]
        return self.model_copy(update={"pieces": pieces, "points": points})


def law_name(operation: str, library: str, ranks: int, nodes: int = 1) -> str:
    """The key of a law in a profile: `all-reduce|nccl|8` for 8 ranks on one node, `all-reduce|nccl|8/2` for 8 ranks on 2 nodes."""
    return f"{operation}|{library}|{ranks}" + (f"/{nodes}" if nodes > 1 else "")
