"""The contents of a device's memory: by kind of value over time, and at the peak."""

from dataclasses import dataclass

from pydantic import Field

from traces.documents.base import Bytes, Data, Seconds


@dataclass(frozen=True, slots=True)
class HeldByKind:
    """Bytes by kind of value. Entry i of a kind holds from `time_s[i]` until the next instant; every kind has one entry per instant."""

    time_s: tuple[Seconds, ...]
    held_bytes: dict[str, tuple[Bytes, ...]]


class Holder(Data):
    """One storage at the peak. `layer` is the layer of the task that writes it first, or of the parameter that it holds or belongs to."""

    storage: str
    kind: str
    layer: str
    bytes: int = Field(ge=0)


class AtPeak(Data):
    """The contents of one device's memory at its peak.

    `time_s` counts from the start of the steady period and is negative if the peak comes earlier. `task`, `layer` and `phase` describe the
    task that runs on the device at that time ("" if none does). `by_kind` has the largest kind first. `largest` lists a few storages that
    are not carried, the largest first. `replicated_bytes` counts parameters, optimizer state and buffers that other devices hold too.
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
