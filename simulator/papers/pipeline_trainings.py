"""What is trained for the paper on pipelined training with stale weights, and the claims that trainings decide."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simulator.model.job import Job
from simulator.papers import registry
from traces.documents.reproduction import Check, Table

PAPER = registry.get("pipeline")


@dataclass(frozen=True)
class Training:
    """A training: pairs of registers as in `Network.placement`, none for plain training, and what differs from the others.

    `pipelined`: the share of the iterations in the pipeline, before it drains and trains plainly. `inputs`: "framed" like those of MNIST.
    """

    placement: tuple[int, ...] = ()
    name: str = ""
    pipelined: float = 1.0
    rate: float = 0.0
    optimizer: str = "momentum"
    backward_weights: Literal["current", "stashed"] = "current"
    activation: Literal["relu", "tanh"] = "relu"
    inputs: Literal["standard", "framed"] = "standard"

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

    def job(self, seed: int, training: Training = Training()) -> Job:
        """The job of a training."""
        rate, lower = training.rate or self.rate, int(self.decay * self.steps)
        schedule = f"0:{rate:g}" + (f",{lower}:{rate / 10:g}" if lower < self.steps else "")
        return Job(self.model, self.batch, self.image_size, training.optimizer, lr_schedule=schedule, seed=seed)


def of_trainings(tables: Mapping[str, Table]) -> tuple[Check, ...]:
    """Judge what trainings decide, with or without the `tables` of the trainings, by name."""
    lenet, resnet, mixed = (_drops(tables[name]) if name in tables else {} for name in ("lenet", "resnet", "hybrid"))
    small = {f"{2 * len(placement) + 2} stages": (drop,) for (name, placement), drop in lenet.items() if name == "stale"}
    stale = {placement: drop for (name, placement), drop in resnet.items() if name == "stale"}
    increasing = {placement[-1]: drop for placement, drop in stale.items() if placement[:1] == (3,)}
    alike = {f"after layer {last}": (drop, stale[last,], abs(drop - stale[last,])) for last, drop in increasing.items() if (last,) in stale}
    hybrid = {str(placement): (drop, mixed["stale", placement]) for (name, placement), drop in mixed.items() if name == "hybrid"}
    by_stages = PAPER.claim("drop by stages")
    return (
        PAPER.claim("small network").each(small),
        by_stages.trend(list(increasing.items())) if increasing else by_stages.unjudged(),
        PAPER.claim("share decides").each(alike),
        PAPER.claim("hybrid").each(hybrid),
    )


def _drops(table: Table) -> dict[tuple[str, tuple[int, ...]], float | None]:
    """The drop of accuracy by training and placement."""
    placements = [tuple(map(int, re.findall(r"\d+", row.labels["pairs after"]))) for row in table.rows]
    return {(row.labels["training"], placement): row.predicted("drop") for row, placement in zip(table.rows, placements, strict=True)}
