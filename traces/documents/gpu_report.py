"""The document of `schedcast gpu-report`: the measurements made on one GPU, part by part, and how well they were predicted.

The document is `report.json` in a folder that also holds the profiles, `facts.json` and `validations/NAME.json`. Committed reports are
folders of `data` beside this file.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import Field

from traces.documents.base import Data, Document
from traces.documents.comparison import Validation, ValidationResult

REPORT, FACTS, README, VALIDATIONS = "report.json", "facts.json", "README.md", "validations"
#: A result is good if its error is at most GOOD_ERROR, or at most GOOD_SPREADS times the A/A spread.
GOOD_ERROR, GOOD_SPREADS = 0.05, 2.0

Status = Literal["done", "failed", "left", "skipped", "unsuited"]


class PartRecord(Data):
    """The outcome of one part of the report.

    `status`: `skipped` if an earlier run measured it, `left` if it did not fit in the time or was cut short, `unsuited` if the GPU lacks a
    feature that the part needs. `why` gives the reason. `where` names the innermost functions of an error that the user did not cause.
    `same_numbers`: whether the plans computed the same numbers as PyTorch.
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
    def measured(self) -> bool:
        """Whether this run or an earlier one measured it."""
        return self.status in ("done", "skipped")


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
    """All measurements of `schedcast gpu-report` on one GPU. Document `schedcast.gpu-report/1`.

    `seconds` is the duration of this run, `minutes` its limit. `parts` are in the order of their priority.
    """

    schema_name = "schedcast.gpu-report/1"
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
        """False if any part found numbers that differ from plain PyTorch's."""
        return all(part.same_numbers is not False for part in self.parts)

    @property
    def validations(self) -> tuple[PartRecord, ...]:
        """The measured parts whose file is a validation."""
        return tuple(part for part in self.parts if part.measured and (part.file or "").startswith(f"{VALIDATIONS}/"))

    def read_validations(self, folder: Path | str) -> dict[str, Validation]:
        """The validations by the name of their part. Raises UnusableFileError if one is missing or damaged."""
        return {part.name: Validation.load(Path(folder) / part.file) for part in self.validations}


def good(result: ValidationResult, aa_spread: float | None) -> bool:
    """Whether the error of a strategy that ran is small, or no larger than the noise explains."""
    return abs(result.scored_error) <= max(GOOD_ERROR, GOOD_SPREADS * (aa_spread or 0.0))


def summarise(validations: Iterable[tuple[str, Validation]]) -> tuple[ModeSummary, ...]:
    """One summary per mode, of every strategy that ran in the named validations, by the errors that count (`scored_error`)."""
    validations = list(validations)
    return tuple(
        _summary(mode, validations) for mode in ("eager", "graph") if any(v.mode == mode and v.scored_errors for _, v in validations)
    )


def _summary(mode: str, validations: list[tuple[str, Validation]]) -> ModeSummary:
    chosen = [(name, validation) for name, validation in validations if validation.mode == mode]
    rows = [
        (f"{name} {row.strategy}", row, validation.aa_spread)
        for name, validation in chosen
        for row in validation.ran
        if row.scored_error is not None
    ]
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
    """The reports in the subfolders of `folder`, by name; none if it does not exist. Raises UnusableFileError if one is damaged."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    return [(folder / name, GpuReport.load(folder / name / REPORT)) for name in names if (folder / name / REPORT).is_file()]
