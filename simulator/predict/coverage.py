"""How often measured steps lie in the 90 % intervals that were predicted for them, over many validations.

A correct 90 % interval contains about nine of ten measured steps. Documents store the interval that was predicted before the step was
measured, so coverage is not a result of fitting: it judges the predictions that users saw.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from simulator.predict.discrepancy import OWN_LOOP, PIPELINES, PLAIN, PROCESSES, group_of
from traces.documents.comparison import Validation

#: What the coverage of 90 % intervals should lie in.
WANTED = (0.80, 0.97)


@dataclass(frozen=True)
class Judged:
    """A measured step with its prediction. Times are in seconds. `gpu`: the GPU's name; empty on a CPU."""

    model: str
    batch: int
    strategy: str
    processes: bool
    predicted_s: float
    interval_s: tuple[float, float]
    measured_s: float
    gpu: str = ""

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the interval."""
        return self.interval_s[0] <= self.measured_s <= self.interval_s[1]

    @property
    def group(self) -> str:
        """The group of steps whose errors decide how wide the interval is: those of a GPU, or see `discrepancy.group_of`."""
        return self.gpu or group_of(self.strategy, self.processes)

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s


def judged(validations: Iterable[Validation], kind: str | None = None) -> list[Judged]:
    """The steps of all validations that have an interval, on devices of `kind` (cpu or gpu; None: all) that were not busy."""
    return [
        Judged(
            validation.model,
            batch=validation.batch_size,
            strategy=row.strategy,
            processes=bool(validation.device.get("processes")),
            predicted_s=row.steps_s[0],
            interval_s=interval_s,
            measured_s=row.steps_s[1],
            gpu=str(validation.device.get("name")) if validation.device.get("kind") == "gpu" else "",
        )
        for validation in validations
        if not validation.busy and (kind is None or validation.device.get("kind") == kind)
        for row in validation.rows
        if row.ok and (interval_s := row.predicted_interval_s) is not None
    ]


def coverage(steps: Sequence[Judged]) -> float:
    """The share of steps that lie in their intervals. Raises ValueError without steps."""
    if not steps:
        raise ValueError("no steps with intervals")
    return sum(step.inside for step in steps) / len(steps)


def worst(steps: Sequence[Judged]) -> Judged:
    """The step whose measured time is the furthest from its prediction, as a ratio. Raises ValueError without steps."""
    return max(steps, key=lambda step: max(step.ratio, 1 / step.ratio))


def by_group(steps: Iterable[Judged]) -> dict[str, list[Judged]]:
    """The steps of each group that has any: on CPUs those of one process, of plain PyTorch, of pipelines, and of several processes."""
    steps = list(steps)
    names = (PLAIN, OWN_LOOP, PIPELINES, PROCESSES, *sorted({step.gpu for step in steps} - {""}))
    groups = {name: [step for step in steps if step.group == name] for name in names}
    return {name: own for name, own in groups.items() if own}


def by_strategy(steps: Iterable[Judged]) -> dict[str, list[Judged]]:
    """The steps of each strategy, by name; those of several processes apart."""

    def group(step: Judged) -> str:
        return f"{step.strategy}, in processes" if step.processes else step.strategy

    return {name: list(own) for name, own in groupby(sorted(steps, key=group), group)}
