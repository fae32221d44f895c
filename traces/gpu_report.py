"""The document of `stepcast gpu-report`: what was measured on one GPU, part by part, and how well it was predicted.

A folder of `data` beside this file, or any other, holds it as `report.json` beside the profiles, `facts.json` and `validations/NAME.json`.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import Field

from traces.comparison import Validation, ValidationResult
from traces.documents import Data, Document

REPORT, FACTS, README, VALIDATIONS = "report.json", "facts.json", "README.md", "validations"
#: A result is good whose error is at most this, or twice the spread of the baseline interleaved with itself.
GOOD_ERROR, GOOD_SPREADS = 0.05, 2.0

Status = Literal["done", "failed", "left", "skipped", "unsuited"]


class PartRecord(Data):
    """What became of one part: `skipped` was there from an earlier run, `left` did not fit or was cut short, and `why` says so.

    `unsuited`: the GPU cannot do what it is about, `why` says what it lacks.

    `where` names the innermost functions of an error that is none of the user's. `same_numbers`: whether plans computed what PyTorch does.
    """

    name: str
    title: str
    priority: int
    status: Status
    seconds: float | None = None
    file: str | None = None
    why: str = ""
    where: str = ""
    same_numbers: bool | None = None
    flags: tuple[str, ...] = ()

    @property
    def there(self) -> bool:
        """Whether it was measured, now or earlier."""
        return self.status in ("done", "skipped")


class ModeSummary(Data):
    """Predicted against measured step times of one mode. Shares and errors are None where nothing ran."""

    mode: str
    results: int = Field(ge=0)
    median_abs_error: float | None
    worst_error: float | None
    worst: str | None
    good_share: float | None
    signs_right: int
    signs_asked: int


class GpuReport(Document):
    """Everything that `stepcast gpu-report` measured on one GPU. Document `stepcast.gpu-report/1`.

    `seconds` is this run's duration, `minutes` what it was given; `parts` are in the order of their priority.
    """

    schema_name = "stepcast.gpu-report/1"
    kind = "GPU report"

    date: str
    versions: dict[str, str]
    device: dict[str, Any]
    identity: dict[str, Any]
    minutes: float
    seconds: float
    parts: tuple[PartRecord, ...]
    summary: tuple[ModeSummary, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def same_numbers(self) -> bool:
        """Whether no part found numbers that differ from plain PyTorch's."""
        return all(part.same_numbers is not False for part in self.parts)

    @property
    def validations(self) -> tuple[PartRecord, ...]:
        """The parts whose file is a validation that is there."""
        return tuple(part for part in self.parts if part.there and (part.file or "").startswith(f"{VALIDATIONS}/"))

    def read_validations(self, folder: Path | str) -> dict[str, Validation]:
        """The validations by their part's name. Raises UnusableFileError for one that is missing or damaged."""
        return {part.name: Validation.load(Path(folder) / part.file) for part in self.validations}


def good(result: ValidationResult, aa_spread: float | None) -> bool:
    """Whether the error of a strategy that ran is small, or no larger than the noise explains."""
    return abs(result.scored_error) <= max(GOOD_ERROR, GOOD_SPREADS * (aa_spread or 0.0))


def summarise(validations: Iterable[tuple[str, Validation]]) -> tuple[ModeSummary, ...]:
    """One summary per mode, of every strategy that ran in the named validations, by the errors that count (`scored_error`)."""
    validations = list(validations)
    return tuple(_summary(mode, validations) for mode in ("eager", "graph") if any(v.mode == mode and v.ran for _, v in validations))


def _summary(mode: str, validations: list[tuple[str, Validation]]) -> ModeSummary:
    chosen = [(name, validation) for name, validation in validations if validation.mode == mode]
    rows = [(f"{name} {row.strategy}", row, validation.aa_spread) for name, validation in chosen for row in validation.ran]
    worst, row, _ = max(rows, key=lambda item: abs(item[1].scored_error))
    signs = [validation.signs for _, validation in chosen]
    return ModeSummary(
        mode=mode,
        results=len(rows),
        median_abs_error=median(abs(row.scored_error) for _, row, _ in rows),
        worst_error=row.scored_error,
        worst=worst,
        good_share=sum(good(row, spread) for _, row, spread in rows) / len(rows),
        signs_right=sum(right for right, _ in signs),
        signs_asked=sum(asked for _, asked in signs),
    )


def find_reports(folder: Path) -> list[tuple[Path, GpuReport]]:
    """The reports in the folders of `folder`, by name; none where there is no such folder. Raises UnusableFileError for a damaged one."""
    places = sorted(entry for entry in os.listdir(folder)) if folder.is_dir() else []
    return [(folder / name, GpuReport.load(folder / name / REPORT)) for name in places if (folder / name / REPORT).is_file()]
