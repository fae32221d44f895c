"""The documents of what `predict` answers, and of a predicted step next to measured and published ones."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, computed_field

from traces.documents.base import Data, Document, Duration
from traces.documents.comparison import Prediction
from traces.documents.scoreboard import Group
from traces.documents.step import Step
from traces.errors import Refusal


class Place(Data):
    """What a prediction is about: a model, a batch size and a machine."""

    model: str
    batch: int = Field(gt=0)
    machine: str


class PlacedPrediction(Prediction, Place):
    """A prediction and what it is about. `plan`: its plan as text, if that was asked for."""

    plan: str = ""


class RefusedPrediction(Place):
    """A strategy that has no prediction for a batch on a machine, and why."""

    strategy: str
    why: str


class Predictions(Document):
    """All predictions, machine by machine and batch by batch, and what was refused. Document `schedcast.predictions/2`.

    Of a single answer, the fields of the prediction also stand at the top level of the JSON object, where documents of one strategy had
    them (`schedcast.prediction/1`, which `Prediction` loads).
    """

    schema_name: ClassVar[str] = "schedcast.predictions/2"
    kind: ClassVar[str] = "set of predictions"

    predictions: tuple[PlacedPrediction, ...]
    refused: tuple[RefusedPrediction, ...] = ()

    @classmethod
    def of(cls, answers: Iterable[tuple[Place, str, Prediction | Refusal, str]]) -> Self:
        """The document of answers, each with the strategy as it was asked for, its prediction or why there is none, and its plan or ""."""
        predicted, refused = [], []
        for place, text, answer, plan in answers:
            if isinstance(answer, Refusal):
                refused.append(RefusedPrediction(**dict(place), strategy=text, why=answer.words))
            else:
                predicted.append(PlacedPrediction(**dict(place), **dict(answer), plan=plan))
        return cls(predictions=tuple(predicted), refused=tuple(refused))

    def document(self) -> dict[str, Any]:
        """The JSON object that `--json` prints."""
        document = super().document()
        single = document["predictions"][0] if len(self.predictions) == 1 and not self.refused else {}
        return {"schema": self.schema_name, **single, **document}


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
