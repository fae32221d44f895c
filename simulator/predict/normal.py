"""Is a speed normal: the published steps nearest to a job, and how accurate predictions are on its GPU with models of its family.

`published.json` has the steps, and the shipped scoreboard the scores of many more, whose own tables are not part of the package.
"""

from functools import cache
from math import log

from simulator.machine.presets import card_of
from simulator.model.job import Job
from simulator.predict.discrepancy import PublishedStep, published
from simulator.predict.forecast import Forecast
from simulator.predict.scoreboard.predicted import family_of
from simulator.strategies.registry import family
from traces.documents.predictions import NearStep, Normal
from traces.documents.scoreboard import Group, Scoreboard
from traces.documents.shipped import scoreboard_file

#: Published steps that are shown at most.
NEAREST = 3


def normal(job: Job, predicted: Forecast, measured_s: float | None = None) -> Normal:
    """Compare a measured step with the predicted one, and both with what is published. On a CPU nothing is."""
    card = card_of(predicted.machine.name)
    kind = family_of(predicted.plan) if card else ""
    return Normal(
        step_s=predicted.timeline.step_s,
        interval_s=predicted.interval_s,
        measured_s=measured_s,
        near=tuple(map(_shown, nearest(job, card, len(predicted.plan.devices)))) if card else (),
        groups=tuple(each for each in _groups() if kind and (card_of(each.gpu), each.family) == (card, kind)),
    )


def nearest(job: Job, card: str, devices: int) -> list[PublishedStep]:
    """The published steps of the same model or on the same card, the nearest first: by model, card, schedule, precision, batch a device."""
    name = job.model.rpartition(":")[2]

    def distance(step: PublishedStep) -> tuple[bool, bool, bool, bool, float]:
        batches = step.batch / (step.devices or 1), job.batch / devices
        alone = family(step.strategy) == family("baseline")
        return (
            step.model != name,
            card_of(step.machine) != card,
            not alone,
            step.precision != job.precision,
            abs(log(batches[0] / batches[1])),
        )

    alike = [step for step in published().steps if step.model == name or card_of(step.machine) == card]
    return sorted(alike, key=distance)[:NEAREST]


def _shown(step: PublishedStep) -> NearStep:
    return NearStep(
        source=published().sources[step.source].partition(",")[0], machine=step.machine, model=step.model, batch=step.batch,
        devices=step.devices or 1, precision=step.precision, strategy=step.strategy, published_s=step.published, predicted_s=step.predicted,
    )  # fmt: skip


@cache
def _groups() -> tuple[Group, ...]:
    return Scoreboard.load(scoreboard_file()).groups
