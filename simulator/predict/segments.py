"""What a forecast of a plan of several segments says of a step, from the forecasts of its segments.

What belongs to a step of segment i counts `engine.segments.weights`[i] times, so that parts and sources add up to the plan's step time.
A drain is counted like as many steady periods as it is long.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.predict.intervals import Sensitivity
from simulator.predict.parts import OnPath, StepParts
from traces.documents.comparison import Shares
from traces.documents.memory_use import AtPeak


@dataclass(frozen=True)
class WeightedSensitivity:
    """What the step time of a plan of several segments depends on. `parts`: (weight, that of the segment's own step)."""

    parts: Sequence[tuple[float, Sensitivity]]

    @property
    def step_s(self) -> float:
        """Seconds per step."""
        return sum(weight * part.step_s for weight, part in self.parts)

    def draws(self) -> np.ndarray:
        """Draws of the step time, shape (DRAWS,). A source errs alike in all segments."""
        return sum(weight * part.draws() for weight, part in self.parts)


def weighted_parts(parts: Sequence[tuple[float, StepParts]]) -> StepParts:
    """The parts of the plan's step. `parts`: (weight, those of the segment's own step)."""
    on_path: dict[str, float] = defaultdict(float)
    work: dict[str, float] = defaultdict(float)
    for weight, part in parts:
        for total, own in ((on_path, part.on_path), (work, part.work)):
            for name, seconds in own.items():
                total[name] += weight * seconds
    tasks = [OnPath(task.task, task.part, weight * task.runs, weight * task.seconds) for weight, part in parts for task in part.tasks]
    return StepParts(sum(weight * part.step_s for weight, part in parts), dict(on_path), dict(work), tuple(tasks))


def weighted_shares(shares: Sequence[tuple[float, Shares]]) -> Shares:
    """The origin of the run's task seconds. `shares`: (task seconds of the segment in the run, shares of these)."""
    total_s = sum(seconds for seconds, _ in shares) or 1.0
    return Shares(**{name: sum(s * getattr(own, name) for s, own in shares) / total_s for name in Shares.model_fields})


def highest(peaks: Sequence[Sequence[AtPeak]]) -> tuple[AtPeak, ...]:
    """By device, the contents of its memory at the highest of the segments' peaks."""
    by_device: dict[str, AtPeak] = {}
    for peak in (peak for of_segment in peaks for peak in of_segment):
        if peak.device not in by_device or peak.bytes > by_device[peak.device].bytes:
            by_device[peak.device] = peak
    return tuple(by_device.values())


def most(held: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """By name, the most bytes of any segment."""
    return {name: max(each.get(name, 0) for each in held) for name in dict.fromkeys(name for each in held for name in each)}
