"""A report folder: a static page with table and pictures, beside the documents, timelines, plans and traces it shows.

    index.html                    the page; needs no network
    report.json                   which file is what; read by the app
    validation.json               (validation-2.json, ...) the document of `stepcast validate`
    summary.png                   every strategy's predicted and measured step time
    NAME/predicted.json.gz        per compared strategy: both timelines, their picture, a trace for ui.perfetto.dev and the plan
        /measured.json.gz  timelines.png  timelines.svg  memory.png  perfetto.json.gz  plan.json.gz

The folder is made beside its place and moved there when complete. Files of an earlier report are replaced one by one, `report.json` last.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from traces.comparison import Comparison, Validation
from traces.errors import StepcastError, UnusableFileError
from traces.files import read_document, write_atomic, write_json
from traces.perfetto import export
from traces.timeline import Timeline
from ui.figures import pictures
from ui.figures.memory_picture import memory_picture
from ui.reports.page import Compared, Part, page
from ui.text.labels import row_labels

SCHEMA = "stepcast.report/1"


class _Entry(BaseModel):
    """One compared strategy: row number in its validation, and its folder."""

    row: int
    folder: str


class _Section(BaseModel):
    """One validation: its file, its summary picture and what was compared."""

    file: str
    picture: str
    comparisons: list[_Entry]


class _Index(BaseModel):
    sections: list[_Section]


@dataclass(frozen=True)
class Report:
    """What a report folder holds: validations, and for each of them its comparisons and their folders."""

    folder: Path
    validations: tuple[Validation, ...]
    comparisons: tuple[tuple[Comparison, ...], ...]
    folders: tuple[tuple[Path, ...], ...]


def write_report(
    folder: Path | str,
    validations: Sequence[Validation],
    comparisons: Sequence[Comparison] = (),
    plans: Sequence[Mapping[str, Any] | None] = (),
) -> Path:
    """Write the report of `validations` into `folder` and return the path of its page.

    Each comparison's result must be a row of one of the validations. `plans` holds the plan of each comparison, in the same order, as
    `simulator.plan.json.dump` gives it (none, or None, where it is not to be kept).
    Raises StepcastError when the folder cannot be written; then nothing of it has changed, or all files are whole.
    """
    rows = [row for validation in validations for row in validation.results]
    for comparison in comparisons:
        if comparison.result not in rows:
            raise ValueError(f"the comparison of {comparison.strategy} is of no row of these validations; pass its validation too")
    folder = Path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise StepcastError(f"cannot write {folder}: {error.strerror or error}; choose another place") from error
    try:
        _fill(stage, validations, list(zip_longest(comparisons, plans)))
        os.chmod(stage, 0o755)
        _publish(stage, folder)
    except OSError as error:
        raise StepcastError(f"cannot write {folder}: {error.strerror or error}; choose another place") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return folder / "index.html"


def _fill(stage: Path, validations: Sequence[Validation], compared: list[tuple[Comparison, Mapping[str, Any] | None]]) -> None:
    sections, parts, taken = [], [], set()
    for number, validation in enumerate(validations, start=1):
        suffix = "" if len(validations) == 1 else f"-{number}"
        section = _Section(file=f"validation{suffix}.json", picture=f"summary{suffix}.png", comparisons=[])
        part = Part(validation, section.file, section.picture, [])
        validation.save(stage / section.file)
        pictures.validation_picture(stage / section.picture, validation)
        for comparison, plan in compared:
            if comparison.result not in validation.results:
                continue
            row = validation.results.index(comparison.result)
            label = row_labels(validation.results)[row]
            folder = _free_name(label + suffix, taken)
            drawn = _write_comparison(stage / folder, comparison, f"{validation.model}, {label}", plan)
            section.comparisons.append(_Entry(row=row, folder=folder))
            part.comparisons.append(Compared(comparison, folder, plan is not None, drawn))
        sections.append(section)
        parts.append(part)
    write_atomic(stage / "index.html", page(parts))
    write_json(stage / "report.json", {"schema": SCHEMA, **_Index(sections=sections).model_dump(mode="json")}, indent=1)


def _write_comparison(folder: Path, comparison: Comparison, title: str, plan: Mapping[str, Any] | None) -> bool:
    """Write a comparison's files; whether there is a picture of memory among them."""
    comparison.predicted.save(folder / "predicted.json.gz")
    comparison.measured.save(folder / "measured.json.gz")
    export(folder / "perfetto.json.gz", {"predicted": comparison.predicted, "measured": comparison.measured})
    for kind in ("png", "svg"):
        pictures.timelines_picture(folder / f"timelines.{kind}", comparison.predicted, comparison.measured, title)
    if plan is not None:
        write_json(folder / "plan.json.gz", plan)
    return memory_picture(folder / "memory.png", comparison.predicted, comparison.measured, title) is not None


def _free_name(label: str, taken: set[str]) -> str:
    """A folder name made of `label` that no other comparison has."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "strategy"
    name, number = base, 1
    while name.lower() in taken:
        number += 1
        name = f"{base}-{number}"
    taken.add(name.lower())
    return name


def _publish(stage: Path, folder: Path) -> None:
    if not folder.exists():
        os.rename(stage, folder)
        return
    files = [path for path in stage.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: path.name == "report.json"):
        target = folder / path.relative_to(stage)
        target.parent.mkdir(exist_ok=True)
        os.replace(path, target)


def read_report(path: Path | str) -> Report:
    """Read a report folder, or a validation alone, given as a file or as a folder's `validation.json`: it has no timelines.

    Raises UnusableFileError for anything else.
    """
    path = Path(path)
    if not (path / "report.json").exists() and (path / "validation.json").exists():
        path /= "validation.json"
    if path.is_file():
        return Report(path.parent, (Validation.load(path),), ((),), ((),))
    document = read_document(path / "report.json", "report", SCHEMA)
    try:
        sections = _Index.model_validate(document).sections
    except ValidationError as error:
        raise UnusableFileError(f"report {path} is damaged at {error.errors()[0]['loc']}; make it again") from error
    validations = tuple(Validation.load(_inside(path, section.file)) for section in sections)
    comparisons = tuple(
        tuple(_read_comparison(path, entry, validation) for entry in section.comparisons)
        for section, validation in zip(sections, validations, strict=True)
    )
    folders = tuple(tuple(_inside(path, entry.folder) for entry in section.comparisons) for section in sections)
    return Report(path, validations, comparisons, folders)


def _read_comparison(folder: Path, entry: _Entry, validation: Validation) -> Comparison:
    if not 0 <= entry.row < len(validation.results):
        raise UnusableFileError(f"report {folder} names row {entry.row} of {len(validation.results)}; make it again")
    place = _inside(folder, entry.folder)
    return Comparison(Timeline.load(place / "predicted.json.gz"), Timeline.load(place / "measured.json.gz"), validation.results[entry.row])


def _inside(folder: Path, name: str) -> Path:
    """`folder / name`, which must not lead out of the folder."""
    place = (folder / name).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise UnusableFileError(f"report {folder} names a file outside of itself ({name}); make it again")
    return place
