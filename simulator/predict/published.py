"""How accurate predictions from a preset are known to be: steps and speed-ups that others published, beside what is predicted for them.

`published.json` holds them, each with its source; python -m tests.benchmarks published predicts them anew. No cost was fitted on them. Its
"left_out" sums up the errors of many more steps that do not wait for the host (tests/benchmarks/fit_steps.py): those of each GPU,
predicted with costs that were fitted without it. An accuracy is the root mean square of the logarithms of predicted over published, so that
bias counts as error.
"""

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from pydantic import BaseModel, ConfigDict, Field

from simulator.strategies.registry import family

DATA = Path(__file__).with_name("published.json")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    source: str
    machine: str
    model: str
    batch: int
    strategy: str
    devices: int | None = None
    published: float = Field(gt=0)
    predicted: float = Field(gt=0)

    @property
    def error(self) -> float:
        """The logarithm of predicted over published."""
        return math.log(self.predicted / self.published)


class Step(_Entry):
    """A step time in seconds."""

    precision: str = "fp32"
    optimizer: str = "momentum"
    form: str = "foreach"


class Speedup(_Entry):
    """A speed-up over the strategy `over`. On several devices: throughput over that of one device, which trains its part of the batch.

    `job`: other fields of the job, as in `Step`.
    """

    over: str = "baseline"
    job: dict[str, str] = {}


class LeftOut(BaseModel):
    """The root mean square `rms` of the logarithms of predicted over published steps of a GPU that costs were fitted without."""

    model_config = ConfigDict(extra="forbid")

    gpu: str
    rows: int = Field(gt=0)
    rms: float = Field(gt=0)


class Published(BaseModel):
    """The whole of `published.json`. `sources`: what the names of sources mean."""

    model_config = ConfigDict(extra="forbid")

    sources: dict[str, str]
    steps: tuple[Step, ...]
    left_out: tuple[LeftOut, ...]
    speedups: tuple[Speedup, ...]


@cache
def published() -> Published:
    """The committed figures."""
    return Published.model_validate(json.loads(DATA.read_text()))


def step_accuracy() -> float:
    """One standard deviation of the logarithm of a step that is predicted from a preset, over `steps` and `left_out`."""
    squares = [(1, step.error**2) for step in published().steps] + [(item.rows, item.rms**2) for item in published().left_out]
    return math.sqrt(sum(rows * square for rows, square in squares) / sum(rows for rows, _ in squares))


def speedup_accuracy(strategy: str) -> float:
    """The same of a speed-up: that of the published ones of the strategy's family, or of all of them if it has none."""
    speedups = published().speedups
    own = [speedup.error for speedup in speedups if family(speedup.strategy) == family(strategy)]
    return _rms(own or [speedup.error for speedup in speedups])


def _rms(errors: Sequence[float]) -> float:
    return math.sqrt(fmean(error * error for error in errors))
