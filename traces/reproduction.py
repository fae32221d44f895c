"""What papers published beside what is predicted: the document of `stepcast reproduce`.

A paper has tables of rows of figures, each a predicted quantity with, where the paper prints it, the published one; checks of what the
paper claims; and charts. Floats are finite or null; a quantity that neither the paper nor the model gives is null.
"""

from typing import Any, Literal

from pydantic import Field, computed_field

from traces.comparison import Shares
from traces.documents import Data, Document

#: Seconds, a speed-up, a share of 1, bytes, a number of things.
Unit = Literal["s", "x", "share", "bytes", "count"]
OK = "ok"


class Figure(Data):
    """One quantity, in SI units. `interval`: of 90 %, where the model gives one."""

    name: str
    unit: Unit
    predicted: float | None = None
    published: float | None = None
    interval: tuple[float, float] | None = None

    @computed_field
    @property
    def ratio(self) -> float | None:
        """predicted / published."""
        return self.predicted / self.published if self.published and self.predicted is not None else None


class Row(Data):
    """One case: what it is called, column by column, and its figures. `status`: "ok", or what is wrong with the case, in words."""

    labels: dict[str, str]
    figures: tuple[Figure, ...]
    status: str = OK

    def predicted(self, name: str) -> float | None:
        """The predicted value of the figure called `name`, or None."""
        return next((figure.predicted for figure in self.figures if figure.name == name), None)


class Table(Data):
    """Rows of one kind. `about` says what the figures are and where the published ones stand."""

    name: str
    title: str
    about: str
    rows: tuple[Row, ...]


class Check(Data):
    """A claim of the paper, judged from the predictions alone. `said`: its figures in a sentence; `reason`: why it may not have come out.

    `holds` is None where too little could be predicted to judge.
    """

    name: str
    claim: str
    holds: bool | None
    said: str
    figures: dict[str, float]
    reason: str = ""


class Series(Data):
    """One line of a chart. `published`: the paper's own figures. `names`: what each point is, where x does not say it."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    published: bool = False
    names: tuple[str, ...] = ()


class Panel(Data):
    """One pair of axes."""

    title: str
    series: tuple[Series, ...]


class Chart(Data):
    """Panels side by side with the same quantities.

    `level`: where a line is drawn across, such as a speed-up of 1. `ticks`: what stands at x = 1, 2, ... in place of numbers.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    panels: tuple[Panel, ...]
    level: float | None = None
    log_x: bool = False
    log_y: bool = False
    joined: bool = True
    ticks: tuple[str, ...] = ()


class Paper(Data):
    """One paper's reproduction. `shares`: on what the predicted costs rest; `measured`: documents of validations on this machine."""

    name: str
    title: str
    reference: str
    machine: str
    setting: str
    shares: Shares | None
    tables: tuple[Table, ...]
    checks: tuple[Check, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()
    measured: tuple[dict[str, Any], ...] = ()

    def table(self, name: str) -> Table:
        """The table called `name`."""
        return next(table for table in self.tables if table.name == name)


class Reproduction(Document):
    """Everything that `stepcast reproduce` found. Document `stepcast.reproduction/1`."""

    schema_name = "stepcast.reproduction/1"
    kind = "reproduction"

    papers: tuple[Paper, ...] = Field(min_length=1)


class RnnEpoch(Data):
    """Predicted seconds of one epoch of an RNN: sequences of `T` steps, mini-batches of `B`. All are totals, the forward included."""

    T: int
    B: int
    forward_s: float
    baseline_s: float
    bppsa_s: float


class GruEpoch(Data):
    """The same of a GRU, by set of features. `forward_overhead_s`: the forward together with what BPPSA adds to it."""

    set: str
    B: int
    forward_s: float
    forward_overhead_s: float
    baseline_s: float
    bppsa_s: float


class BppsaReproduction(Reproduction):
    """The document of the BPPSA paper alone: its epochs as flat lists beside `papers`. `fitted_on`: what the model's constants rest on."""

    paper: Literal["bppsa"] = "bppsa"
    fitted_on: str
    rnn: tuple[RnnEpoch, ...]
    gru: tuple[GruEpoch, ...]
