"""The document of `schedcast reproduce`: figures that papers published, next to predicted ones.

A paper has tables, checks of its claims, and charts. A table has rows of figures; a figure is a predicted quantity with the published one
if the paper prints it. Floats are finite or null; a quantity that neither the paper nor the model gives is null.
"""

from typing import Any, Literal

from pydantic import Field, computed_field, field_validator

from traces.documents.base import Data, Document
from traces.documents.comparison import Shares, Validation

#: Seconds, a speed-up, a share of 1, bytes, a count.
Unit = Literal["s", "x", "share", "bytes", "count"]
OK = "ok"
#: The prefix of notes about a measurement.
MEASURED = "Measured on this machine"


class Figure(Data):
    """One quantity, in SI units. `interval` is the 90 % interval, if the model gives one."""

    name: str
    unit: Unit
    predicted: float | None = None
    published: float | None = None
    interval: tuple[float, float] | None = None

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorator above @property
    @property
    def ratio(self) -> float | None:
        return self.predicted / self.published if self.published and self.predicted is not None else None


class PaperCase(Data):
    """One case: its labels by column, and its figures. `status` is "ok" or says in words what is wrong with the case.

    `asks`: options of `schedcast predict`, without dashes, that ask for the same step; empty if none do.
    """

    labels: dict[str, str]
    figures: tuple[Figure, ...]
    status: str = OK
    asks: dict[str, tuple[str, ...]] = {}

    def predicted(self, name: str) -> float | None:
        """The predicted value of the figure called `name`, or None."""
        return next((figure.predicted for figure in self.figures if figure.name == name), None)


#: The name of the table of a small job that shows a paper's mechanism.
DEMONSTRATION = "demonstration"


class Table(Data):
    """Rows of one kind. `about` says what the figures are and where in the paper the published ones are."""

    name: str
    title: str
    about: str
    rows: tuple[PaperCase, ...]


#: What a claim is found to be. `other`: it holds as well without the mechanism that the paper credits. `identity`: it follows from counting
#: alone, so that it cannot fail, and is not counted among the claims that hold.
Verdict = Literal["holds", "other", "refuted", "open", "identity"]


class Check(Data):
    """A claim of the paper, judged by the predictions alone.

    `holds` is None if too little could be predicted to judge. `said` states the figures in a sentence. `reason` says why the claim may not
    have been reproduced. `published`: the paper's figures, and where they are. `mechanism`: what the paper credits. `without`: the same
    figures with that mechanism off, "" if it cannot be switched off, and `holds_without` the same judgment of them. `identity`: whether the
    claim follows from counting alone. `executed`: what of it ran, and where.
    """

    name: str
    claim: str
    holds: bool | None
    said: str
    figures: dict[str, float]
    reason: str = ""
    published: str = ""
    mechanism: str = ""
    without: str = ""
    holds_without: bool | None = None
    identity: bool = False
    executed: str = ""

    @property
    def verdict(self) -> Verdict:
        """What the claim is found to be."""
        if self.holds is None:
            return "open"
        if not self.holds:
            return "refuted"
        return "identity" if self.identity else "other" if self.holds_without else "holds"


class Series(Data):
    """One line of a chart. `published`: whether these are the paper's own figures. `names`: labels of points that x does not identify."""

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
    """Panels in a row that show the same quantities.

    `level`: y of a horizontal line, such as a speed-up of 1. `ticks`: labels of x = 1, 2, ... in place of numbers.
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


class DividedLayer(Data):
    """A layer that is divided among workers.

    `kind`: the name of its main op. `degrees`: in image, channel, height and width. `inputs`: the numbers of the layers that it reads.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    degrees: tuple[int, int, int, int]
    inputs: tuple[int, ...] = ()


class DividedNetwork(Data):
    """The layers of a network in forward order, to be drawn."""

    name: str
    title: str
    layers: tuple[DividedLayer, ...]


class Paper(Data):
    """The reproduction of one paper.

    `finding`: what gives the paper's gains here, in a sentence or two. `shares`: the origin of the predicted costs. `fitted`: what of the
    machine is fitted to the paper, if anything. `measured`: documents of validations on this machine.
    """

    name: str
    title: str
    reference: str
    machine: str
    setting: str
    finding: str = ""
    shares: Shares | None
    fitted: str = ""
    tables: tuple[Table, ...]
    checks: tuple[Check, ...] = ()
    charts: tuple[Chart, ...] = ()
    networks: tuple[DividedNetwork, ...] = ()
    notes: tuple[str, ...] = ()
    measured: tuple[dict[str, Any], ...] = ()

    @field_validator("measured")
    @classmethod
    def _are_validations(cls, measured: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for document in measured:
            Validation.model_validate(document)
        return measured

    def table(self, name: str) -> Table:
        return next(table for table in self.tables if table.name == name)


class Claim(Data):
    """A claim of a paper in the list of all: what it says, what is predicted of it, its verdict, and the cause if it is not reproduced.

    `executed`: what of the claim ran, or else the jobs of the paper that did; "" if none did. `mechanism`, `without`: as in `Check`.
    """

    paper: str
    claim: str
    published: str = ""
    predicted: str
    executed: str = ""
    mechanism: str = ""
    without: str = ""
    verdict: Verdict
    cause: str = ""


class Reproduction(Document):
    """All papers that `schedcast reproduce` reproduced. `claims` lists their checks. Document `schedcast.reproduction/1`."""

    schema_name = "schedcast.reproduction/1"
    kind = "reproduction"

    papers: tuple[Paper, ...] = Field(min_length=1)

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorator above @property
    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(
            Claim(
                paper=paper.name,
                claim=check.claim,
                published=check.published,
                predicted=check.said,
                executed=check.executed or ", ".join(f"{own['model']}, batch {own['batch_size']}" for own in paper.measured),
                mechanism=check.mechanism,
                without=check.without,
                verdict=check.verdict,
                cause=check.reason,
            )
            for paper in self.papers
            for check in paper.checks
        )


class RnnEpoch(Data):
    """Predicted seconds of one epoch of an RNN: sequences of `T` steps, mini-batches of `B`. All totals include the forward pass."""

    T: int
    B: int
    forward_s: float
    baseline_s: float
    bppsa_s: float


class GruEpoch(Data):
    """Predicted seconds of one epoch of a GRU, by set of features. `forward_overhead_s`: the forward pass with what BPPSA adds to it."""

    set: str
    B: int
    forward_s: float
    forward_overhead_s: float
    baseline_s: float
    bppsa_s: float


class BppsaReproduction(Reproduction):
    """The document of the BPPSA paper alone, with its epochs as flat lists. `fitted_on`: the data behind the fitted constants."""

    paper: Literal["bppsa"] = "bppsa"
    fitted_on: str
    rnn: tuple[RnnEpoch, ...]
    gru: tuple[GruEpoch, ...]
