"""The documents of several predictions (batches, machines, strategies), and of a predicted step next to measured and published ones."""

from typing import ClassVar, Literal

from pydantic import Field, computed_field

from traces.documents.base import Data, Document, Duration
from traces.documents.comparison import Prediction
from traces.documents.scoreboard import Group
from traces.documents.step import Step


class PlacedPrediction(Prediction):
    """A prediction with the model, the batch size and the machine that it is about."""

    model: str
    batch: int = Field(gt=0)
    machine: str


class RefusedPrediction(Data):
    """A strategy that has no prediction for a batch on a machine, and why."""

    model: str
    batch: int = Field(gt=0)
    machine: str
    strategy: str
    why: str


class Predictions(Document):
    """All predictions, machine by machine and batch by batch, and what was refused. Document `schedcast.predictions/1`."""

    schema_name: ClassVar[str] = "schedcast.predictions/1"
    kind: ClassVar[str] = "set of predictions"

    predictions: tuple[PlacedPrediction, ...]
    refused: tuple[RefusedPrediction, ...] = ()


class NearStep(Data):
    """A published step and its prediction, both in seconds. `batch`: samples of a step on all `devices`. `source`: who published it."""

    source: str
    machine: str
    model: str
    batch: int = Field(gt=0)
    devices: int = Field(gt=0)
    precision: str
    strategy: str
    published_s: Duration
    predicted_s: Duration


class Normal(Document, Step):
    """A predicted step, one that was measured (None: none was), and what is known of similar ones. Document `schedcast.normal/1`.

    `near`: the published steps nearest to the job, the nearest first. `groups`: how accurate predictions are on published steps of its
    family of models on its card.
    """

    schema_name = "schedcast.normal/1"
    kind = "comparison with published steps"

    measured_s: Duration | None = None
    near: tuple[NearStep, ...] = ()
    groups: tuple[Group, ...] = ()

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorator above @property
    @property
    def verdict(self) -> Literal["normal", "slower", "faster"] | None:
        """Where the measured step lies: in the interval, above or below it; None if none was measured, or without an interval."""
        if self.measured_s is None or self.interval_s is None:
            return None
        low, high = self.interval_s
        return "slower" if self.measured_s > high else "faster" if self.measured_s < low else "normal"
