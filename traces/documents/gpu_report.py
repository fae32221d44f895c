"""The document of `schedcast gpu-report`: what probes found out about one GPU, and how well it is predicted.

The document is `report.json` in a folder with its page, the output of every probe in `probes/`, the profiles and
`validations/NAME.json`. Committed reports are folders of `traces/data`.
"""

from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, JsonValue

from traces.documents.base import Data, Document
from traces.documents.comparison import Validation
from traces.files import starts_with_schema

REPORT, README, VALIDATIONS, OUTPUTS = "report.json", "README.md", "validations", "probes"
#: Files that older versions wrote: the document of gpu-first, and figures that are now those of the probes.
FIRST, FACTS = "first.json", "facts.json"
#: A result is good if its error is at most GOOD_ERROR, or at most GOOD_SPREADS times the A/A spread.
GOOD_ERROR, GOOD_SPREADS = 0.05, 2.0

Status = Literal["running", "done", "failed", "left", "skipped", "unsuited"]


def _status(value: Any) -> Any:
    """The status that a verdict of an older gpu-first means."""
    return "done" if value in ("ok", "differs") else value


class Fix(Data):
    """Something that a person should fix.

    `worth`: 1 if nothing can be measured before it is fixed, 2 if figures are wrong until then, 3 if they are uncertain, 4 if a feature
    is missing that has a substitute.
    """

    worth: int = Field(ge=1, le=4)
    text: str


class PartRecord(Data):
    """The answer of one probe: of a quick one, which writes no `file`, or of a long one.

    `status`: `running` while it runs, and for ever if the call was killed meanwhile; `skipped` if an earlier call measured it, `left` if it
    did not fit in the time or was cut short, `unsuited` if the GPU lacks a feature that the probe needs. `why` says what the answer means,
    or why there is none. `where` names the innermost functions of an error that the user did not cause. `same_numbers`: whether the plans
    computed the same numbers as PyTorch. `figures` have their units in their names. `fixes`: what to fix if the GPU behaves differently
    than Schedcast assumes.
    """

    name: str
    title: str = Field(validation_alias=AliasChoices("title", "asks"))
    priority: int = 0
    status: Annotated[Status, BeforeValidator(_status)] = Field(validation_alias=AliasChoices("status", "verdict"))
    seconds: float | None = None
    file: str | None = None
    why: str = Field(default="", validation_alias=AliasChoices("why", "means"))
    where: str = ""
    same_numbers: bool | None = None
    flags: tuple[str, ...] = ()
    figures: dict[str, JsonValue] = {}
    fixes: tuple[Fix, ...] = Field(default=(), validation_alias=AliasChoices("fixes", "mend"))

    @property
    def measured(self) -> bool:
        """Whether this call or an earlier one measured it."""
        return self.status in ("done", "skipped")

    @property
    def verdict(self) -> str:
        """The status of a long probe; of a quick one "ok", "differs" if it found something to fix, "failed", "left" or "unsuited"."""
        return self.status if self.file is not None or not self.measured else "differs" if self.fixes else "ok"


class ModeSummary(Data):
    """Predicted against measured step times of one mode. Shares and errors are None if no strategy ran."""

    mode: str
    results: int = Field(ge=0)
    median_abs_error: float | None
    worst_error: float | None
    worst: str | None
    good_share: float | None
    signs_right: int
    signs_asked: int


class GpuReport(Document):
    """All that the probes found out about one GPU. Document `schedcast.gpu-report/1`.

    `fix_first`: what to fix, in order of worth. `seconds` is the duration of this call, `minutes` its limit. `parts` are in the order in
    which the probes run. `complete`: False while the call runs, and for ever if it was killed.
    """

    schema_name = "schedcast.gpu-report/1"
    kind = "GPU report"

    fix_first: tuple[str, ...] = ()
    date: str
    versions: dict[str, str]
    device: dict[str, Any]
    identity: dict[str, Any] = {}
    minutes: float
    seconds: float
    parts: tuple[PartRecord, ...] = Field(validation_alias=AliasChoices("parts", "checks"))
    summary: tuple[ModeSummary, ...] = ()
    flags: tuple[str, ...] = ()
    complete: bool = True

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a report, also the document `schedcast.gpu_first/1` of an older gpu-first. Raises UnusableFileError for any other file."""
        if cls is GpuReport and starts_with_schema(path, _First.schema_name):
            return cls(**_First.load(path).model_dump())
        return super().load(path)

    @property
    def quick(self) -> tuple[PartRecord, ...]:
        return tuple(part for part in self.parts if part.file is None)

    @property
    def well(self) -> bool:
        """Whether every quick probe that got an answer found what Schedcast assumes, and none failed."""
        return all(part.verdict in ("ok", "left") for part in self.quick)

    @property
    def same_numbers(self) -> bool:
        """False if any part found numbers that differ from plain PyTorch's."""
        return all(part.same_numbers is not False for part in self.parts)

    @property
    def validations(self) -> tuple[PartRecord, ...]:
        """The measured parts whose file is a validation."""
        return tuple(part for part in self.parts if part.measured and (part.file or "").startswith(f"{VALIDATIONS}/"))

    def read_validations(self, folder: Path | str) -> dict[str, Validation]:
        """The validations by the name of their part. Raises UnusableFileError if one is missing or damaged."""
        return {part.name: Validation.load(Path(folder) / part.file) for part in self.validations if part.file is not None}


def good(error: float, aa_spread: float | None) -> bool:
    """Whether the error of a strategy that ran is small, or no larger than the noise explains."""
    return abs(error) <= max(GOOD_ERROR, GOOD_SPREADS * (aa_spread or 0.0))


def summarize(validations: Iterable[tuple[str, Validation]]) -> tuple[ModeSummary, ...]:
    """One summary per mode, of every strategy that ran in the named validations, by the errors that count (`scored_error`)."""
    validations = list(validations)
    return tuple(
        _summary(mode, validations) for mode in ("eager", "graph") if any(v.mode == mode and v.scored_errors for _, v in validations)
    )


def _summary(mode: str, validations: list[tuple[str, Validation]]) -> ModeSummary:
    chosen = [(name, validation) for name, validation in validations if validation.mode == mode]
    rows = [
        (f"{name} {row.strategy}", row.scored_error, validation.aa_spread)
        for name, validation in chosen
        for row in validation.ran
        if row.scored_error is not None
    ]
    worst, worst_error, _ = max(rows, key=lambda item: abs(item[1]))
    signs = [validation.signs for _, validation in chosen]
    return ModeSummary(
        mode=mode,
        results=len(rows),
        median_abs_error=median(abs(error) for _, error, _ in rows),
        worst_error=worst_error,
        worst=worst,
        good_share=sum(good(error, spread) for _, error, spread in rows) / len(rows),
        signs_right=sum(right for right, _ in signs),
        signs_asked=sum(asked for _, asked in signs),
    )


def fix_first(parts: Iterable[PartRecord]) -> tuple[str, ...]:
    """What to fix, in order of worth; of equal worth, in the order of the probes."""
    fixes = [(fix.worth, f"{fix.text} ({part.name})") for part in parts for fix in part.fixes]
    return tuple(dict.fromkeys(text for _, text in sorted(fixes, key=lambda item: item[0])))


class _First(GpuReport):
    """The document of an older gpu-first, whose checks are quick probes."""

    schema_name = "schedcast.gpu_first/1"
    kind = "first look at a GPU"
