"""The document of `schedcast predict` about several batches, machines or strategies."""

from typing import ClassVar

from pydantic import Field

from traces.documents.base import Data, Document
from traces.documents.comparison import Prediction


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
