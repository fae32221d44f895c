"""Timelines of small pipelines, with two ops per action, as `strategies.pipeline.schedule.timed` times their actions."""

from simulator.strategies.pipeline.schedule import BY_WEIGHT, FORWARD, UNITS, Schedule, timed
from tests.support.pipelines import makespan_s
from traces.documents.timeline import Cause, CriticalSpan, DeviceUse, Span, Timeline

#: Seconds of a unit of time.
UNIT_S = 1e-3


def pipeline_timeline(schedule: Schedule, kind: str = "predicted", transfer_s: float = 0.0) -> Timeline:
    """One step of a schedule in which a forward takes 1 ms and a whole backward 2 ms, each in two ops. Results go to the neighbors."""
    times = timed(schedule, lambda action: UNITS[action.kind] * UNIT_S, transfer_s)
    spans = []
    for action, (start_s, end_s) in times.items():
        device, middle_s = f"cpu:{schedule.rank_of[action.stage]}", (start_s + end_s) / 2
        phase = "forward" if action.kind == FORWARD else "backward"
        for name, begin, end in (("a", start_s, middle_s), ("b", middle_s, end_s)):
            layer = f"layer{action.stage}.{name}"
            spans.append(Span(f"{action}/{name}", device, "stream 0", begin, end, phase, layer, action.microbatch, action=str(action)))
        other = action.stage + (1 if action.kind == FORWARD else -1)
        if 0 <= other < schedule.stages and action.kind != BY_WEIGHT:
            until_s = end_s + transfer_s
            spans.append(Span(f"send {action}", device, "stream 2", end_s, until_s, "transfer", action=str(action)))
    end_s = makespan_s(times)
    last = max(spans, key=lambda span: span.end_s)
    critical = (CriticalSpan(last.task, last.start_s, last.end_s, Cause.LANE, last.phase, last.layer),)
    devices = tuple(DeviceUse(f"cpu:{rank}", 0.5, 10**6) for rank in range(len(schedule.ranks)))
    return Timeline(kind, tuple(spans), end_s, (0.0, end_s), devices=devices, critical_path=critical)
