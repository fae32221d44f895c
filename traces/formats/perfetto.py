"""Exports timelines as a Chrome trace for ui.perfetto.dev: one process per device, one thread per lane, arrows along the critical path.

Times are microseconds with three decimals (the viewer's resolution is a nanosecond). Timelines are shifted so that their steady periods
begin at the same time. A device that runs stages of a pipeline has one more thread, with a slice for each action, such as 0F3, and for
updates.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from traces.documents.spans import LEAST_GAP, TRANSFER, critical_spans, lanes, stretches
from traces.documents.timeline import Cause, Span, Timeline
from traces.files import write_json

Event = dict[str, Any]
#: The name of the thread with a pipeline's actions.
SCHEDULE = "schedule"


def export(path: Path | str, timelines: Mapping[str, Timeline]) -> Path:
    """Write the timelines, each with its label ("predicted", "measured"), as one trace file (gzip if the name ends in .gz)."""
    return write_json(path, trace_document(timelines))


def trace_document(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """The trace as a JSON object: metadata, then events in order of time, each slice before the arrows that end in it."""
    origin = max((timeline.window_s[0] for timeline in timelines.values()), default=0.0)
    metadata: list[Event] = []
    events: list[Event] = []
    first_process = 1
    for label, timeline in timelines.items():
        own = _Exported(label, timeline, first_process, origin - timeline.window_s[0])
        metadata += own.metadata()
        events += own.events()
        first_process += len(own.processes)
    events.sort(key=lambda event: (event["ts"], event["ph"] != "X"))
    steps = {label: {"step_s": timeline.step_s, "mode": timeline.mode} for label, timeline in timelines.items()}
    return {"displayTimeUnit": "ms", "otherData": {"producer": "schedcast", **steps}, "traceEvents": metadata + events}


class _Exported:
    """A timeline's slices, arrows and counters, and the process and thread numbers of its devices and lanes.

    A lane whose measured spans overlap (timer error) gets extra rows. `label`: unique among timelines. `shift_s` is added to all times.
    """

    def __init__(self, label: str, timeline: Timeline, first_process: int, shift_s: float):
        self.label, self.timeline, self.shift_s = label, timeline, shift_s
        self.critical = critical_spans(timeline)
        names = (use.name for use in timeline.devices), (span.device for span in timeline.spans), timeline.memory, timeline.memory_kinds
        devices = dict.fromkeys(chain.from_iterable(names))
        self.processes = {device: first_process + i for i, device in enumerate(devices)}
        self.place: dict[Span, tuple[int, int]] = {}
        self.rows: dict[tuple[int, int], str] = {}
        by_lane: dict[tuple[str, str], list[Span]] = {place: [] for place in lanes(timeline, timeline.spans)}
        for span in sorted(timeline.spans, key=lambda s: (s.start_s, s.end_s)):
            by_lane[span.device, span.lane].append(span)
        for (device, lane), spans in by_lane.items():
            self._place_lane(self.processes[device], lane, spans)
        self.schedules: dict[str, tuple[int, int]] = {}  # by device with pipeline stages
        for device in dict.fromkeys(span.device for span in timeline.spans if span.action):
            process = self.processes[device]
            self.schedules[device] = process, 1 + sum(process == other for other, _ in self.rows)

    def clock(self, time_s: float) -> int:
        """Seconds of the timeline as whole nanoseconds of the trace."""
        return round((time_s + self.shift_s) * 1e9)

    def _place_lane(self, process: int, lane: str, spans: list[Span]) -> None:
        ends: list[int] = []  # of each row
        threads: list[int] = []
        for span in spans:
            row = next((i for i, end in enumerate(ends) if end <= self.clock(span.start_s)), len(ends))
            if row == len(ends):
                ends.append(0)
                threads.append(1 + sum(process == other for other, _ in self.rows))
                self.rows[process, threads[row]] = lane if row == 0 else f"{lane} ({row + 1})"
            ends[row] = self.clock(span.end_s)
            self.place[span] = (process, threads[row])

    def metadata(self) -> Iterator[Event]:
        """Names and order of processes and threads."""
        for device, process in self.processes.items():
            yield _metadata("process_name", process, 0, name=f"{self.label} {device}")
            yield _metadata("process_sort_index", process, 0, sort_index=process)
        for (process, thread), lane in self.rows.items():
            yield _metadata("thread_name", process, thread, name=lane)
            yield _metadata("thread_sort_index", process, thread, sort_index=thread)
        for process, thread in self.schedules.values():
            yield _metadata("thread_name", process, thread, name=SCHEDULE)
            yield _metadata("thread_sort_index", process, thread, sort_index=0)

    def events(self) -> Iterator[Event]:
        causes = {span: link.cause for span, link in self.critical}
        for span in self.timeline.spans:
            yield self._slice(span, causes.get(span))
        for number, ((source, _), (target, link)) in enumerate(pairwise(self.critical)):
            yield from self._arrow(source, target, f"critical path: {link.cause}", f"{self.label} {number}")
        for device, (process, thread) in self.schedules.items():
            yield from self._actions(device, {"pid": process, "tid": thread})
        for device, steps in self.timeline.memory.items():
            for time_s, used_bytes in steps:
                at = {"pid": self.processes[device], "tid": 0, "ts": self.clock(time_s) / 1000}
                yield {"ph": "C", "name": "memory", **at, "args": {"MB": round(used_bytes / 1e6, 3)}}
        for device, use in self.timeline.memory_kinds.items():
            for index, time_s in enumerate(use.time_s):
                at = {"pid": self.processes[device], "tid": 0, "ts": self.clock(time_s) / 1000}
                for kind, held in use.held_bytes.items():
                    if index == 0 or held[index] != held[index - 1]:
                        yield {"ph": "C", "name": f"memory: {kind}", **at, "args": {"MB": round(held[index] / 1e6, 3)}}

    def _slice(self, span: Span, cause: Cause | None) -> Event:
        process, thread = self.place[span]
        start, end = self.clock(span.start_s), self.clock(span.end_s)
        args: dict[str, Any] = {"phase": span.phase, "layer": span.layer, "microbatch": span.microbatch, "iteration": span.iteration}
        if cause is not None:
            args["cause"] = str(cause)
        at = {"pid": process, "tid": thread, "ts": start / 1000, "dur": (end - start) / 1000}
        return {"ph": "X", "name": span.task, "cat": span.phase, **at, "args": args}

    def _actions(self, device: str, place: Event) -> Iterator[Event]:
        """A slice for each action of a device, and for the updates between them; gaps are idle time."""
        begin_s, end_s = self.timeline.window_s
        computed = [span for span in self.timeline.spans if span.device == device and span.phase != TRANSFER]
        reached = 0
        for group in sorted(stretches(computed, LEAST_GAP * (end_s - begin_s)), key=lambda group: group[0].start_s):
            first = group[0]
            start = max(reached, self.clock(first.start_s))
            reached = max(start, *(self.clock(span.end_s) for span in group))
            args = {"phase": first.phase, "microbatch": first.microbatch, "iteration": first.iteration, "tasks": len(group)}
            times = {"ts": start / 1000, "dur": (reached - start) / 1000}
            yield {"ph": "X", "name": first.action or first.phase, "cat": first.phase, **place, **times, "args": args}

    def _arrow(self, source: Span, target: Span, name: str, arrow: str) -> Iterator[Event]:
        """An arrow from the last nanosecond of one slice to the start of another. An end binds to the slice that is open at its time."""
        leave = max(self.clock(source.start_s), self.clock(source.end_s) - 1)
        arrive = max(leave, self.clock(target.start_s))
        for phase, span, time in (("s", source, leave), ("f", target, arrive)):
            process, thread = self.place[span]
            event = {"ph": phase, "name": name, "cat": "arrow", "id": arrow, "pid": process, "tid": thread, "ts": time / 1000}
            yield event | ({"bp": "e"} if phase == "f" else {})


def _metadata(kind: str, process: int, thread: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": args}
