"""Busy shares, bubble and exposed transfers in a window of a timeline, predicted or measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.plan.plan import Plan
from simulator.plan.task import COLLECTIVE, TRANSFER
from traces.documents.timeline import DeviceUse, Span, busy_seconds

_MOVING = (TRANSFER, COLLECTIVE)


@dataclass(frozen=True, slots=True)
class Summary:
    """`exposed_transfer_s`: seconds per step of transfers or collectives without computing at the same time, on the worst device."""

    devices: tuple[DeviceUse, ...]
    bubble_share: float
    exposed_transfer_s: float


def summarise(plan: Plan, spans: Sequence[Span], window_s: tuple[float, float], steps: float, peak_bytes: dict[str, int]) -> Summary:
    """Summarize the plan's devices in `window_s`, which holds `steps` steps.

    A device is busy while it computes. A transfer counts for both its ends. bubble = 1 − Σ busy seconds / (devices · window).
    """
    start, end = window_s
    length = end - start
    ends_of = {task.name: task.body.ends for task in plan.tasks if task.body.ends is not None}
    computing: dict[str, list[Span]] = {device: [] for device in plan.devices}
    moving: dict[str, list[Span]] = {device: [] for device in plan.devices}
    for span in spans:
        if span.end_s <= start or span.start_s >= end:
            continue
        if span.phase in _MOVING or span.task in ends_of:
            for device in dict.fromkeys(ends_of.get(span.task, (span.device,))):
                if device in moving:
                    moving[device].append(span)
        else:
            computing[span.device].append(span)
    busy = {device: busy_seconds(computing[device], start, end) for device in plan.devices}
    exposed = [busy_seconds(computing[d] + moving[d], start, end) - busy[d] for d in plan.devices if moving[d]]
    uses = tuple(DeviceUse(d, busy[d] / length if length else 0.0, peak_bytes.get(d, 0)) for d in plan.devices)
    bubble = 1.0 - sum(busy.values()) / (len(busy) * length) if length else 0.0
    return Summary(uses, bubble, max(exposed, default=0.0) / steps)
