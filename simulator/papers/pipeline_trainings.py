"""What is trained for the paper on pipelined training with stale weights, and the claims that trainings decide."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simulator.model.job import Job
from simulator.papers import registry
from simulator.papers.registry import line
from traces.documents.reproduction import Chart, Check, Panel, Table

PAPER = registry.get("pipeline")


@dataclass(frozen=True)
class Training:
    """A training: pairs of registers as in `Network.placement`, none for plain training, and what differs from the others.

    `pipelined`: the share of the iterations in the pipeline, before it drains and trains plainly. `inputs`: "framed" like those of MNIST.
    `strategy`: whose stale weights it has; by default those of the pipeline with such registers.
    """

    placement: tuple[int, ...] = ()
    name: str = ""
    pipelined: float = 1.0
    rate: float = 0.0
    optimizer: str = "momentum"
    backward_weights: Literal["current", "stashed"] = "current"
    activation: Literal["relu", "tanh"] = "relu"
    inputs: Literal["standard", "framed"] = "standard"
    strategy: str = ""

    @property
    def placed(self) -> str:
        """The placement as the paper writes it."""
        return f"({', '.join(map(str, self.placement))})" if self.placement else "none"


@dataclass(frozen=True)
class Trained:
    """Trainings of a network on one task, the first of them plain; they fill a table.

    `rate`: the learning rate, a tenth of it after `decay` of the iterations (1: never). `level`: an accuracy to reach. `seeds`: trainings
    of each kind.
    """

    table: str
    network: str
    model: str
    data: Literal["digits", "cluttered"]
    batch: int
    image_size: int
    steps: int
    rate: float
    decay: float
    level: float
    trainings: tuple[Training, ...]
    seeds: int = 3

    @property
    def timed(self) -> tuple[Training, ...]:
        """The trainings that two GPUs can run, and plain training, unless they differ from it in more than their stages."""
        plain = self.trainings[0]
        alike = (each for each in self.trainings if replace(each, placement=(), name=plain.name) == plain and each.name in ("", plain.name))
        timed = tuple(each for each in alike if len(each.placement) <= 1)
        return timed if len(timed) > 1 else ()

    def labels(self, training: Training) -> dict[str, object]:
        """The labels of a training among those of all tasks."""
        return {
            "network": self.network,
            "trained": f"{self.steps} iterations",
            "training": training.name or "stale",
            "pairs after": training.placed,
        }

    def job(self, seed: int, training: Training = Training()) -> Job:
        """The job of a training."""
        rate, lower = training.rate or self.rate, int(self.decay * self.steps)
        schedule = f"0:{rate:g}" + (f",{lower}:{rate / 10:g}" if lower < self.steps else "")
        return Job(self.model, self.batch, self.image_size, training.optimizer, lr_schedule=schedule, seed=seed)


def of_trainings(tables: Mapping[str, Table]) -> tuple[Check, ...]:
    """Judge what trainings decide, with or without the `tables` of the trainings, by name."""
    lenet, relu, resnet, mixed = (_drops(tables[name]) if name in tables else {} for name in ("lenet", "factors", "resnet", "hybrid"))
    small = {f"{2 * len(placement) + 2} stages": (drop,) for (name, placement), drop in lenet.items() if name == "stale"}
    deepest = {2 * len(placement) + 2: drop for (name, placement), drop in relu.items() if name == "stale" and placement[:1] == (1,)}
    stale = {placement: drop for (name, placement), drop in resnet.items() if name == "stale"}
    increasing = {placement[-1]: drop for placement, drop in stale.items() if placement[:1] == (3,)}
    alike = {f"after layer {last}": (drop, stale[last,], abs(drop - stale[last,])) for last, drop in increasing.items() if (last,) in stale}
    hybrid = {str(where): (drop, mixed.get(("stale", where))) for (name, where), drop in mixed.items() if name == "hybrid"}
    by_stages = PAPER.claim("drop by stages")
    return (
        PAPER.claim("small network").each(small, relu=_stages(deepest)),
        by_stages.trend([*increasing.items()]) if increasing else by_stages.unjudged(),
        PAPER.claim("share decides").each(alike),
        PAPER.claim("hybrid").each(hybrid),
    )


def _stages(drops: Mapping[int, float]) -> str:
    """Drops of accuracy by the number of stages, in words."""
    return ", ".join(f"{count} stages {drop:.1%}" for count, drop in sorted(drops.items())) or "was not trained"


def _drops(table: Table) -> dict[tuple[str, tuple[int, ...]], float]:
    """The drop of accuracy by training and placement. Rows without one are skipped."""
    placements = [tuple(map(int, re.findall(r"\d+", row.labels["pairs after"]))) for row in table.rows]
    rows = ((row.labels["training"], placement, row.predicted("drop")) for row, placement in zip(table.rows, placements, strict=True))
    return {(training, placement): drop for training, placement, drop in rows if drop is not None}


@dataclass(frozen=True)
class Timed:
    """A training whose iterations have a time. `labels`: as in `Trained.labels`. `accuracies`: after so many iterations."""

    labels: Mapping[str, str]
    step_s: float
    accuracies: tuple[tuple[int, float], ...]

    def until_s(self, level: float) -> float | None:
        """The seconds until the accuracy is at least `level`, None if it never is."""
        return next((step * self.step_s for step, accuracy in self.accuracies if accuracy >= level), None)


def timed(tables: Mapping[str, Table]) -> list[Timed]:
    """The trainings whose iterations are predicted, if their curves have been measured."""
    curves, steps = (tables[name].rows if name in tables else () for name in ("curves", "training-steps"))
    trainings = []
    for row in steps:
        own = [each for each in curves if row.labels.items() <= each.labels.items()]
        step_s = row.predicted("iteration")
        if own and step_s is not None:
            accuracies = tuple((int(each.labels["after"]), each.predicted("accuracy") or 0.0) for each in own)
            trainings.append(Timed(row.labels, step_s, accuracies))
    return trainings


def time_rows(of: Sequence[Timed], levels: Mapping[str, float]) -> Iterator[tuple]:
    """Yield how long trainings take. `levels`: an accuracy to reach, by network."""
    for each in of:
        last, accuracy = each.accuracies[-1]
        level = levels[each.labels["network"]]
        yield {**each.labels, "to reach": f"{level:.0%}"}, (each.until_s(level), last * each.step_s, accuracy)


def accuracy_chart(of: Sequence[Timed]) -> Chart:
    """Accuracy over predicted seconds, with a panel for each task."""
    panels: dict[str, list] = {}
    for each in of:
        name = "plain" if each.labels["training"] == "plain" else f"pair after {each.labels['pairs after'].strip('()')}"
        points = ((step * each.step_s, 100 * accuracy) for step, accuracy in each.accuracies)
        panels.setdefault(f"{each.labels['network']}, {each.labels['trained']}", []).append(line(name, points))
    return PAPER.chart("accuracy", [Panel(title=title, series=tuple(series)) for title, series in panels.items()])
