"""Papers whose published figures are predicted. Each is a JSON file here and a module of the same name.

The file has what the paper published and where, the cases that are predicted, and the words of its tables, claims and charts. Titles and
descriptions are formats of what differs between runs, such as the name of the machine.

The module has `predictions()`: how many predictions it makes, for the progress bar; and `reproduce(steps) -> Paper`, where `steps` is a
`predicting.Steps` of the paper's machine. It may have `measurements(gpu) -> list[Measurement]`: what this machine can run of the paper;
`judged(paper) -> Paper`: the paper with the claims judged that measured tables decide; and `document(paper) -> Reproduction`: the document
of the paper alone.

Other claims are judged by predictions alone: that figures rise or fall, have an order, or are within bounds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import chain, pairwise, repeat
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from simulator.machine.presets import PYTORCH
from simulator.model.job import Job
from simulator.papers.predicting import Steps, figure, speedup, status_of
from traces.documents.base import Data
from traces.documents.reproduction import (
    DEMONSTRATION,
    OK,
    Chart,
    Check,
    Figure,
    Panel,
    Paper,
    PaperCase,
    Reproduction,
    Series,
    Table,
    Unit,
)
from traces.errors import UnknownNameError, UnusableFileError
from traces.files import first_fault, read_document

#: A rank correlation of at least this much, with the claim's sign, is a trend.
LEAST_CORRELATION = 0.5
#: Speed-ups that differ by no more than this are equal.
EQUAL = 0.01

#: A predicted gain is that of the paper if it is within this share of it.
NEAR = 0.25

#: The least and the largest value of a figure; None: no bound.
Bounds = tuple[float | None, float | None]


def near(published: float) -> Bounds:
    """The speed-ups whose gain over 1 is within NEAR of the published one.

    >>> near(1.2)
    (1.15, 1.25)
    """
    gain = published - 1
    return round(1 + (1 - NEAR) * gain, 6), round(1 + (1 + NEAR) * gain, 6)


class Claim(Data, extra="forbid"):
    """A claim and how it is judged.

    `published`: the figures that the paper prints, and where. `mechanism`: what it credits; `off`: how that is switched off, if it can be
    (`beside`). `identity`, `executed`: as in `Check`. `reason`: why it may not have been reproduced. `undecided`: the words if there is no
    case. `said`: a format of one case, from the name `case` and the values by position, or the first words of a trend. `summary`: a format
    of all cases, from `cases`, `right` and `count`.

    A trend has a `sign`: y rises (1) or falls (-1) with x, by more than `least_range`, such as the noise between two runs.
    Other claims are about the figures of each case. `figures`: their names (formats of the values), which `label` combines with the case;
    with no names, a case has one figure. `order`: names of figures in rising order, each larger than the one before by more than `margin`.
    `within`: bounds by position, widened by the share `tolerance` and the amount `rounding`.
    """

    name: str
    claim: str
    published: str = Field(min_length=1)
    mechanism: str = Field(min_length=1)
    off: str = ""
    identity: bool = False
    executed: str = ""
    reason: str = ""
    undecided: str = ""
    said: str = ""
    summary: str = "{cases}"
    sign: Literal[-1, 1] = 1
    least_range: float = EQUAL
    figures: tuple[str, ...] = ()
    label: str = "{case}, {name}"
    order: tuple[str, ...] = ()
    margin: float = 0.0
    within: tuple[Bounds, ...] = ()
    tolerance: float = 0.0
    rounding: float = 0.0

    def because(self, *figures: object, **words: object) -> "Claim":
        """Return the claim with the result of an experiment in its reason, which is a format."""
        return self.model_copy(update={"reason": self.reason.format(*figures, **words)})

    def trend(self, points: Sequence[tuple[float, float]]) -> Check:
        """Judge that y rises or falls with x by rank, and that its range is larger than `least_range`. `points`: x and y."""
        if len(points) < 3:
            return self.unjudged(f"{len(points)} of at least 3 points could be predicted")
        x, y = zip(*points, strict=True)
        correlation = rank_correlation(x, y)
        said = f"{self.said} {span(y)}; rank correlation {'none: it never changes' if correlation is None else f'{correlation:+.2f}'}"
        holds = correlation is not None and self.sign * correlation >= LEAST_CORRELATION and max(y) - min(y) > self.least_range
        figures = {"least": min(y), "most": max(y), **({"rank_correlation": correlation} if correlation is not None else {})}
        return self.judged(holds, said, figures)

    def each(self, cases: Mapping[str, Sequence], within: Mapping[str, Sequence[Bounds]] | None = None, **words: object) -> Check:
        """Judge that every case has the order and the bounds. A case without one of its values (None) is skipped.

        `cases`: values by case; those beyond the figures are for formats. `within`: bounds of each case. `words`: more for the summary.

        >>> claim = Claim(
        ...     name="gains", claim="fusion gains 10 to 30 %", published="1.1x to 1.3x (table 1)", mechanism="locality",
        ...     within=((1.1, 1.3),), said="{case}: {0:.2f}x",
        ... )
        >>> check = claim.each({"batch 32": (1.25,), "batch 64": (1.05,)})
        >>> check.holds, check.said
        (False, 'batch 32: 1.25x; batch 64: 1.05x')
        """
        known = {case: values for case, values in cases.items() if None not in values}
        if not known:
            return self.unjudged()
        figures = {
            self.label.format(case=case, name=name.format(*values)) if name else case: value
            for case, values in known.items()
            for name, value in zip(self.figures or ("",), values, strict=False)
        }
        right = sum(self._right(values, self.within if within is None else within.get(case, ())) for case, values in known.items())
        phrases = "; ".join(self.said.format(*values, case=case) for case, values in known.items())
        return self.judged(right == len(known), self.summary.format(cases=phrases, right=right, count=len(known), **words), figures)

    def _right(self, values: Sequence[float], within: Sequence[Bounds]) -> bool:
        named = dict(zip(self.figures, values, strict=False))
        ordered = all(named[larger] > named[smaller] + self.margin for smaller, larger in pairwise(self.order))
        return ordered and all(self._inside(value, *bounds) for value, bounds in zip(values, within, strict=False))

    def _inside(self, value: float, least: float | None, most: float | None) -> bool:
        enough = least is None or value >= least - abs(least) * self.tolerance - self.rounding
        return enough and (most is None or value <= most + abs(most) * self.tolerance + self.rounding)

    def judged(self, holds: bool, said: str, figures: Mapping[str, float], reason: str = "") -> Check:
        """Return a check with a verdict; the reason (default: the claim's) is included only if the claim does not hold."""
        return self._check(holds, said, figures, "" if holds else reason or self.reason)

    def unjudged(self, why: str = "") -> Check:
        """Return a check that cannot be judged; `why`: default `undecided`."""
        return self._check(None, why or self.undecided, {}, "")

    def _check(self, holds: bool | None, said: str, figures: Mapping[str, float], reason: str) -> Check:
        return Check(
            name=self.name,
            claim=self.claim,
            holds=holds,
            said=said,
            figures=dict(figures),
            reason=reason,
            published=self.published,
            mechanism=self.mechanism,
            identity=self.identity,
            executed=self.executed,
        )

    def beside(self, check: Check, without: Check, *, more: Sequence[str] = ()) -> Check:
        """Return a check with the same judgment of figures that lack the mechanism, and with the figures of `more` experiments.

        >>> claim = Claim(
        ...     name="gains", claim="it gains", published="1.2x (table 1)", mechanism="overlap", off="overlap off",
        ...     within=((1.01, None),), said="{case} {0:.2f}x",
        ... )
        >>> check = claim.beside(claim.each({"batch 8": (1.2,)}), claim.each({"batch 8": (1.1,)}))
        >>> check.verdict, check.without
        ('other', 'overlap off: batch 8 1.10x')
        """
        words = "; ".join([f"{self.off}: {without.said}", *more])
        return check.model_copy(update={"without": words, "holds_without": without.holds})


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation: 1 if y always rises with x, -1 if it always falls.

    Returns None for fewer than three points, or if x or y is constant. Both are rounded to the three decimals that tables show, so that
    values that look equal in a table have no order.
    """
    shown = [[round(value, 3) for value in values] for values in (x, y)]
    if len(x) < 3 or any(len(set(values)) == 1 for values in shown):
        return None
    from scipy.stats import spearmanr  # here, because it takes a second to load

    return float(spearmanr(*shown).statistic)


def gain_words(gain: float | None) -> str:
    """Format a speed-up: 1.021x."""
    return "not predicted" if gain is None else f"{gain:.3f}x"


def span(values: Sequence[float]) -> str:
    """Format the range of speed-ups: 1.02x to 1.31x."""
    return f"{min(values):.3f}x to {max(values):.3f}x"


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


class Shown(Data, extra="forbid"):
    """A small job that shows a paper's mechanism: the strategies without it and with it. `job`: the fields of `Job`.

    `drawn`: whether a picture of its steps shows it.
    """

    job: dict[str, Any]
    machine: str
    host: str = PYTORCH
    strategies: tuple[str, ...] = Field(min_length=2)
    about: str
    drawn: bool = True


class Source(Data):
    """A paper. `machine`: the preset to predict for. `fitted`: what of the machine is fitted to the paper. `cases`: what is predicted.

    `finding`: a format of what gives the paper's gains. `shown`: a small job that shows them.
    """

    name: str
    about: str
    machine: str
    title: str
    reference: str
    setting: str
    finding: str
    shown: Shown
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
        return self.module.predictions() + 1

    def reproduce(self, steps: Steps) -> Paper:
        """Predict the paper's figures."""
        return self.module.reproduce(steps)

    def measurements(self, gpu: bool) -> list[Measurement]:
        """Return what this machine can run."""
        return self.module.measurements(gpu) if hasattr(self.module, "measurements") else []

    def judged(self, paper: Paper) -> Paper:
        """Return the paper with the claims judged that its measured tables decide."""
        return self.module.judged(paper) if hasattr(self.module, "judged") else paper

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

        A row is its labels, the values of its first figures, what the paper prints of them, its status, the intervals of the values, and
        the options of `PaperCase.asks`. All but the labels may be omitted, and the published figures and the intervals may be fewer than
        the values.
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

    def demonstration(self, steps: Steps) -> Table:
        """Return the table of the job that shows the mechanism."""
        shown, job = self.shown, Job(**self.shown.job)
        steps = steps.on(shown.machine).under(host=shown.host)
        first, *_ = shown.strategies
        predicted = steps.predict(job, shown.strategies, over=first)
        rows = [
            _row(
                [("step", "s"), ("speed-up", "x")],
                {"schedule": text},
                (figure(step), speedup(predicted, text, over=first)),
                status=status_of(step),
                asks=steps.asks(job, *shown.strategies),
            )
            for text, step in predicted.items()
        ]
        return Table(
            name=DEMONSTRATION, title=f"The idea on a small job: {job.model}, batch {job.batch}", about=shown.about, rows=tuple(rows)
        )

    def paper(
        self,
        steps: Steps,
        tables: Iterable[Table],
        checks: Iterable[Check],
        charts: Iterable[Chart],
        *,
        finding: Iterable[str],
        **more,
    ) -> Paper:
        """Return the reproduction. `steps`: the predictions; `finding`: the figures of the finding; `more`: other fields of the paper."""
        return Paper(
            finding=self.finding.format(*finding),
            name=self.name,
            title=self.title,
            reference=self.reference,
            fitted=self.fitted,
            notes=self.notes,
            machine=steps.machine_name,
            setting=self.setting.format(machine=steps.machine_name),
            shares=steps.shares,
            tables=(self.demonstration(steps), *tables),
            checks=tuple(checks),
            charts=tuple(charts),
            **more,
        )


def _row(
    figures: Sequence[tuple[str, Unit]],
    labels: Mapping[str, object],
    values: Iterable[float | None] = (),
    published: Iterable[float | None] = (),
    status: str = OK,
    intervals: Iterable[tuple[float, float] | None] = (),
    asks: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> PaperCase:
    columns = zip(figures, values, chain(published, repeat(None)), chain(intervals, repeat(None)), strict=False)
    shown = (Figure(name=name, unit=unit, predicted=value, published=printed, interval=i) for (name, unit), value, printed, i in columns)
    return PaperCase(labels={name: str(label) for name, label in labels.items()}, figures=tuple(shown), status=status, asks=dict(asks))


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
