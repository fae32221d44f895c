"""Replay traces, compare the replay with its recording, and apply what-if rules to it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from simulator.plan.task import BACKWARD, UPDATE
from simulator.replay.build import build_replay
from simulator.replay.compare import boundaries, compare
from simulator.replay.nodes import HOST
from simulator.replay.replay import Replay, simulate_replay
from simulator.whatif.edit import with_tasks
from simulator.whatif.phases import backward_names
from simulator.whatif.registry import apply_rules
from traces.recording.kineto import load_trace
from traces.replay_result import MisplacedKernel, ReplayResult, ReplayStep, StreamBusy, WhatIf
from traces.timeline import Timeline


@dataclass(frozen=True)
class Replayed:
    """A replay, its simulated timeline, and its comparison with the recording."""

    replay: Replay
    simulated: Timeline
    result: ReplayResult


@dataclass(frozen=True)
class Answer:
    """A replay changed by rules, its timeline, and the gain."""

    replay: Replay
    timeline: Timeline
    what_if: WhatIf


def replayed(traces: Sequence[Path | str]) -> Replayed:
    """Replay one trace per rank of a job. Raises StepcastError for files that cannot be replayed."""
    recordings = [load_trace(trace) for trace in traces]
    replay = with_backward(build_replay(recordings))
    unmatched = sum(recording.unmatched for recording in recordings)
    del recordings
    simulated = simulate_replay(replay)
    comparison = compare(replay, simulated)
    lanes = {task.name: (task.device, f"stream {task.stream}") for task in replay.plan.tasks}
    result = ReplayResult(
        gpu_period_measured_s=comparison.period_measured_s,
        gpu_period_simulated_s=comparison.period_simulated_s,
        error=comparison.error,
        steps=tuple(ReplayStep(name=s.name, measured_s=s.measured_s, simulated_s=s.simulated_s) for s in comparison.steps),
        kernels=comparison.kernels,
        streams=len(comparison.streams),
        unmatched_kernels=unmatched,
        exposed_communication_measured_s=comparison.exposed_measured_s,
        exposed_communication_simulated_s=comparison.exposed_simulated_s,
        busy=tuple(
            StreamBusy(device=s.device, stream=s.stream, measured_s=s.measured_s, simulated_s=s.simulated_s) for s in comparison.streams
        ),
        misplaced=tuple(
            MisplacedKernel(
                task=worst.task,
                device=lanes[worst.task][0],
                stream=lanes[worst.task][1],
                measured_start_s=worst.measured_start_s,
                simulated_start_s=worst.simulated_start_s,
                reason=worst.reason,
            )
            for worst in comparison.worst
        ),
        notes=replay.notes,
    )
    return Replayed(replay, simulated, result)


def with_backward(replay: Replay) -> Replay:
    """Return the replay with its backward tasks marked as such, if the recording identifies them by its threads or its kernels' names.

    A recording without updates is not of a training step and is returned unchanged.
    """
    tasks = replay.plan.tasks
    updates = [task.name for task in tasks if task.phase == UPDATE]
    names = backward_names(tasks, updates) if updates else set()
    if not names:
        return replay
    changed = with_tasks(replay, [replace(task, phase=BACKWARD) if task.name in names else task for task in tasks])
    spans = tuple(replace(span, phase=BACKWARD) if span.task in names else span for span in replay.recorded.spans)
    return replace(changed, recorded=replace(replay.recorded, spans=spans))


def ask(recorded: Replayed, rules: Sequence[str]) -> Answer:
    """Apply the rules one after another and simulate the result. Raises StepcastError for rules that cannot be applied."""
    changed, assumptions = apply_rules(recorded.replay, rules)
    timeline = simulate_replay(changed)
    before, after = recorded.result.gpu_period_simulated_s, period_s(changed, timeline)
    what_if = WhatIf(
        rules=tuple(rules),
        assumptions=tuple(assumptions),
        gpu_period_before_s=before,
        gpu_period_after_s=after,
        speedup=before / after if after > 0 else None,
    )
    return Answer(changed, timeline, what_if)


def period_s(replay: Replay, timeline: Timeline) -> float:
    """Return the GPU period of `timeline` as `replay.compare` defines it."""
    lengths = _lengths(boundaries(replay.plan, replay.steps, timeline))
    return fmean(lengths[1:] or lengths)


def typical_step(result: ReplayResult) -> int:
    """Return the number of the recorded step with the median length; the first step does not count, unless it is the only one."""
    lengths = [step.measured_s for step in result.steps]
    numbers = sorted(range(1, len(lengths)) if len(lengths) > 1 else range(len(lengths)), key=lengths.__getitem__)
    return numbers[len(numbers) // 2]


def one_step(replay: Replay, timeline: Timeline, number: int, kind: str) -> Timeline:
    """Return the device spans of `timeline` with step `number` (the last one, if there are fewer) as its window, under another `kind`."""
    borders = boundaries(replay.plan, replay.steps, timeline)
    begin, end = list(pairwise(borders))[: number + 1][-1]
    spans = tuple(span for span in timeline.spans if span.device != HOST)
    path = tuple(link for link in timeline.critical_path if begin < link.end_s and link.start_s < end)
    return replace(timeline, kind=kind, spans=spans, step_s=end - begin, window_s=(begin, end), critical_path=path)


def _lengths(borders: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(borders)]
