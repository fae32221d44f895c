"""The document of `schedcast judge` for steps: how accurate predictions are on measured steps, by source, GPU and family of models."""

from collections.abc import Sequence
from statistics import median
from typing import Self

from pydantic import Field

from traces.documents.base import Data, Document, Duration

#: What the coverage of intervals of 90 % should lie in.
WANTED = (0.85, 0.95)


class ScoredStep(Data):
    """A measured step and its prediction, with the 90 % interval. `file` and `row` say where it is, counted from 0."""

    file: str
    row: int
    source: str
    gpu: str
    machine: str
    model: str
    family: str
    batch: int
    precision: str
    layout: str
    measured_s: Duration
    predicted_s: Duration
    interval_s: tuple[float, float]
    waits_for_host: bool = False

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def covered(self) -> bool:
        """Whether the measured step lies in the interval."""
        return self.interval_s[0] <= self.measured_s <= self.interval_s[1]


class Score(Data):
    """The errors (predicted over measured, less 1) of some steps: the median of their sizes, the largest, and the median with its sign.

    `covered`: the share of the steps that are in their 90 % intervals; `within_30`: those with an error of 30 % at most.
    """

    rows: int = Field(gt=0)
    median_error: float
    worst_error: float
    bias: float
    covered: float
    within_30: float

    @classmethod
    def of(cls, steps: Sequence[ScoredStep]) -> Self:
        """The score of one step or more, to a tenth of a percent."""
        errors = [step.error for step in steps]
        figures = {
            "median_error": median(map(abs, errors)),
            "worst_error": max(errors, key=abs),
            "bias": median(errors),
            "covered": sum(step.covered for step in steps) / len(steps),
            "within_30": sum(abs(error) <= 0.3 for error in errors) / len(errors),
        }
        return cls(rows=len(steps), **{name: round(value, 3) for name, value in figures.items()})


class Group(Data):
    """The score of a source's steps on one GPU with one family of models."""

    source: str
    gpu: str
    family: str
    score: Score


class Unpredicted(Data):
    """Why some rows were not predicted, and how many."""

    why: str
    rows: int


class Correction(Data):
    """The factor by which predicted steps of a GPU in a precision would have to be multiplied, with its 90 % interval.

    It is the median of measured over predicted. `error_without`, `error_with`: the median size of the errors without it, and with a factor
    that is estimated without the models whose steps it is applied to.
    """

    gpu: str
    precision: str
    rows: int
    factor: float
    interval: tuple[float, float]
    error_without: float
    error_with: float


class PeerScore(Data):
    """The errors of another predictor's steps, as published by itself or by others (`note`)."""

    peer: str
    gpu: str
    rows: int
    median_error: float
    worst_error: float
    bias: float
    note: str = ""


class Scoreboard(Document):
    """Document `schedcast.scoreboard/1`: the score of all steps, of those that wait for the host and of the others, and by name.

    None: there are no such steps. `groups` has the finest division. `steps` is empty in the document that comes with the package.
    """

    schema_name = "schedcast.scoreboard/1"
    kind = "scoreboard"

    total: Score | None
    waiting_for_host: Score | None
    others: Score | None
    by_source: dict[str, Score]
    by_gpu: dict[str, Score]
    by_family: dict[str, Score]
    by_precision: dict[str, Score]
    groups: tuple[Group, ...]
    unpredicted: tuple[Unpredicted, ...]
    peers: tuple[PeerScore, ...] = ()
    corrections: tuple[Correction, ...] = ()
    steps: tuple[ScoredStep, ...] = ()
