"""What a device's memory holds: by kind of value over time, and at its peak."""

from dataclasses import dataclass

from pydantic import Field

from traces.documents import Data


@dataclass(frozen=True, slots=True)
class HeldByKind:
    """Bytes by kind of value from each instant on until the next. Every kind has as many figures as there are instants."""

    time_s: tuple[float, ...]
    held_bytes: dict[str, tuple[int, ...]]


class Holder(Data):
    """One storage at the peak; `layer` is that of the task that writes it first, or of the parameter that it is or serves."""

    storage: str
    kind: str
    layer: str
    bytes: int = Field(ge=0)


class AtPeak(Data):
    """What one device holds when it holds the most.

    `time_s` from the start of the steady period, below 0 where the peak comes before it. `task`, `layer` and `phase` are what runs
    there then ("" for nothing). `by_kind`: the largest kind first; `largest`: a few storages that are not carried, the largest first.
    `replicated_bytes`: of parameters, optimizer state and buffers that other devices hold too.
    """

    device: str
    bytes: int = Field(ge=0)
    time_s: float
    task: str
    layer: str
    phase: str
    by_kind: dict[str, int]
    largest: tuple[Holder, ...]
    replicated_bytes: int = 0
