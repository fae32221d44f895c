"""Papers whose published figures are predicted. Each is a JSON file here and a module of the same name.

The file has what the paper published and where, the cases that are predicted, and the words of its tables, claims and charts. Titles and
descriptions are formats of what differs between runs, such as the name of the machine.

The module has `predictions()`: how many predictions it makes, for the progress bar; and `reproduce(steps) -> Paper`, where `steps` is a
`predicting.Steps` of the paper's machine. It may have `measurements(gpu) -> list[Measurement]`: what this machine can run of the paper; and
`document(paper) -> Reproduction`: the document of the paper alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain, repeat
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from simulator.model.job import Job
from simulator.papers.claims import Claim
from simulator.papers.predicting import Steps
from traces.documents.base import Data
from traces.documents.reproduction import OK, Chart, Check, Figure, Panel, Paper, Reproduction, Row, Series, Table, Unit
from traces.errors import UnknownNameError, UnusableFileError
from traces.files import first_fault, read_document

#: Stands for every paper, instead of a name.
ALL = "all"
SCHEMA = "schedcast.paper/1"
FOLDER = Path(__file__).parent
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Measurement:
    """A job to validate on this machine under some strategies. `about` says how it differs from the paper's job."""

    job: Job
    strategies: tuple[str, ...]
    about: str


class Published(Data, extra="forbid"):
    """Figures that the paper printed. `source`: its table, figure or section. `values`: by case or by name, in the unit of the key."""

    source: str = Field(min_length=1)
    values: dict[str, float | tuple[float, ...] | dict[str, float]]


class TableForm(Data, extra="forbid"):
    """The words of a table. `figures`: the units of its figures by name, in the order of the columns."""

    name: str
    title: str
    about: str
    figures: dict[str, Unit]


class ChartForm(Chart, extra="forbid"):
    """The words of a chart, and its axes."""

    y_label: str = "speed-up"
    panels: tuple[Panel, ...] = ()


class Source(Data):
    """A paper. `machine`: the preset to predict for. `fitted`: what of the machine is fitted to the paper. `cases`: what is predicted."""

    name: str
    about: str
    machine: str
    title: str
    reference: str
    setting: str
    fitted: str = ""
    notes: tuple[str, ...]
    cases: dict[str, Any]
    published: dict[str, Published]
    tables: tuple[TableForm, ...]
    claims: tuple[Claim, ...]
    charts: tuple[ChartForm, ...]

    @property
    def module(self) -> ModuleType:
        """The paper's module."""
        return import_module(f"{__package__}.{self.name}")

    def predictions(self) -> int:
        """Return how many predictions `reproduce` makes."""
        return self.module.predictions()

    def reproduce(self, steps: Steps) -> Paper:
        """Predict the paper's figures."""
        return self.module.reproduce(steps)

    def measurements(self, gpu: bool) -> list[Measurement]:
        """Return what this machine can run."""
        return self.module.measurements(gpu) if hasattr(self.module, "measurements") else []

    def document(self, paper: Paper) -> Reproduction:
        """Return the document of this paper alone."""
        return self.module.document(paper) if hasattr(self.module, "document") else Reproduction(papers=(paper,))

    def scope(self, model: type[Model]) -> Model:
        """Return the cases. Raises UnusableFileError if they are not those of `model`."""
        return _checked(model, self.cases, f"the file of paper {self.name}, in its cases,")

    def values(self, name: str) -> dict[str, Any]:
        """Return published figures."""
        return self.published[name].values

    def table(self, name: str, rows: Iterable[tuple], **words: object) -> Table:
        """Return a table.

        A row is its labels, the values of its first figures, what the paper prints of them, its status, and the intervals of the values.
        All but the labels may be left out, and the published figures and the intervals may be fewer than the values.
        """
        form = _named(self.tables, name)
        figures = [(figure.format(**words), unit) for figure, unit in form.figures.items()]
        title, about = (text.format(**words) for text in (form.title, form.about))
        return Table(name=name, title=title, about=about, rows=tuple(_row(figures, *parts) for parts in rows))

    def claim(self, name: str) -> Claim:
        """Return a claim."""
        return _named(self.claims, name)

    def chart(self, name: str, panels: Iterable[Panel], ticks: Sequence[str] = (), **words: object) -> Chart:
        """Return a chart."""
        form = _named(self.charts, name).model_dump()
        texts = {key: value.format(**words) for key, value in form.items() if isinstance(value, str)}
        return Chart(**{**form, **texts, "panels": tuple(panels), "ticks": tuple(ticks)})

    def paper(self, steps: Steps, tables: Iterable[Table], checks: Iterable[Check], charts: Iterable[Chart], **more) -> Paper:
        """Return the reproduction. `steps`: the predictions; `more`: other fields of the paper."""
        same = {name: getattr(self, name) for name in ("name", "title", "reference", "fitted", "notes")}
        parts = {"tables": tuple(tables), "checks": tuple(checks), "charts": tuple(charts)}
        setting = self.setting.format(machine=steps.machine_name)
        return Paper(**same, machine=steps.machine_name, setting=setting, shares=steps.shares, **parts, **more)


def _row(
    figures: Sequence[tuple[str, Unit]],
    labels: Mapping[str, object],
    values: Iterable[float | None] = (),
    published: Iterable[float | None] = (),
    status: str = OK,
    intervals: Iterable[tuple[float, float] | None] = (),
) -> Row:
    columns = zip(figures, values, chain(published, repeat(None)), chain(intervals, repeat(None)), strict=False)
    shown = (Figure(name=name, unit=unit, predicted=value, published=printed, interval=i) for (name, unit), value, printed, i in columns)
    return Row(labels={name: str(label) for name, label in labels.items()}, figures=tuple(shown), status=status)


def _named(forms, name: str):
    return next(form for form in forms if form.name == name)


def line(name: str, points: Iterable[tuple[float, float]], published: bool = False, names: Sequence[str] = ()) -> Series:
    """Return a line of a chart. `points`: x and y; `names`: labels of the points."""
    shown = tuple(points)
    return Series(name=name, x=tuple(x for x, _ in shown), y=tuple(y for _, y in shown), published=published, names=tuple(names))


def names() -> list[str]:
    """Return every paper's name, in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@cache
def get(name: str) -> Source:
    """Return the paper called `name`. Raises UnknownNameError, and UnusableFileError if its file is damaged."""
    if name not in names():
        raise UnknownNameError("paper", name, [*names(), ALL], "schedcast reproduce lists them")
    path = FOLDER / f"{name}.json"
    return _checked(Source, read_document(path, "paper", SCHEMA), f"paper {path}")


def _checked(model: type[Model], content: Any, what: str) -> Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UnusableFileError(f"{what} is damaged {first_fault(error)}; install schedcast again") from error
