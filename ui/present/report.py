"""A report folder: a page with tables, timelines and charts, and the documents, timelines, plans, traces and pictures of them.

    index.html                    the page; needs no network and no other file
    report.json                   which file is what; the app reads it
    validation.json               (validation-2.json, ...) the document of `schedcast validate`
    summary.svg                   every strategy's predicted and measured step time
    NAME/predicted.json.gz        for each compared strategy: both timelines, their picture, a trace for ui.perfetto.dev and the plan
        /measured.json.gz  timelines.svg  waterfall.svg  memory.svg  perfetto.json.gz  plan.json.gz

The report is written into a temporary folder and moved to its place when it is complete. Files of an earlier report are replaced one by
one, `report.json` last. Documents, traces and plans are made here and need none of the packages that draw the pictures and the page.
"""

import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel, ValidationError

from traces.documents.comparison import Comparison, Validation
from traces.documents.timeline import Timeline
from traces.errors import SchedcastError, UnusableFileError
from traces.files import first_fault, kind_at, read_document, write_json
from traces.formats.perfetto import export
from ui.present import validations
from ui.present.labels import model_name, row_labels

SCHEMA = "schedcast.report/1"
#: Characters of a comparison's folder name at most; file systems allow 255, and a label may contain any option's text.
LONGEST_NAME = 80


class _Entry(BaseModel):
    """One compared strategy: the number of its row in the validation, and its folder."""

    row: int
    folder: str


class _Section(BaseModel):
    """One validation: its file, its summary picture and its comparisons."""

    file: str
    picture: str
    comparisons: list[_Entry]


class _Index(BaseModel):
    sections: list[_Section]


@dataclass(frozen=True)
class Report:
    """The content of a report folder: validations, and for each of them its comparisons and the folders of these."""

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

    Each comparison's result must be a row of one of the validations. `plans` has the plans of the comparisons, in the same order, as
    `simulator.plan.json.dump` returns them; a missing plan or None is not written.
    Raises SchedcastError if the folder cannot be written. Every file in it is then either unchanged or complete. Raises
    ModuleNotFoundError if a package that draws is missing; everything else is then written.
    """
    rows = [row for validation in validations for row in validation.results]
    for comparison in comparisons:
        if comparison.result not in rows:
            raise ValueError(f"the comparison of {comparison.strategy} matches no row of these validations; pass its validation too")
    place, folder = Path(folder), Path(folder).resolve()  # the folder that a link points to
    stage = folder.with_name(f".{folder.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        stage.mkdir()
    except OSError as error:
        raise SchedcastError(f"cannot write {folder}: {error.strerror or error}; choose another place") from error
    try:
        parts = _write_documents(stage, validations, list(zip_longest(comparisons, plans)))
        missing = _draw(stage, parts)
        _publish(stage, folder)
        if missing is not None:
            (folder / "index.html").unlink(missing_ok=True)  # an earlier one shows other documents
            raise missing
    except OSError as error:
        raise SchedcastError(f"cannot write {folder}: {error.strerror or error}; choose another place") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return place / "index.html"


def _remove_leftovers(folder: Path) -> None:
    """Remove files next to `folder` from processes of this machine that were killed while they wrote it."""
    name = re.compile(rf"\.{re.escape(folder.name[:100])}\.(\d+)\.[0-9a-f]{{8}}")
    for other in folder.parent.iterdir():
        match = name.fullmatch(other.name)
        if match and not psutil.pid_exists(int(match[1])):
            shutil.rmtree(other, ignore_errors=True)


def _write_documents(
    stage: Path, validations: Sequence[Validation], compared: list[tuple[Comparison, Mapping[str, Any] | None]]
) -> list[tuple[Validation, str, list[tuple[str, str, Comparison]]]]:
    """Write every file of the report that is not drawn into `stage`. `compared`: comparisons with their plans.

    Returns what is to be drawn: validations, each with the name of its picture, and with the folder and the title of every comparison.
    """
    sections, parts = [], []
    taken: set[str] = set()
    for number, validation in enumerate(validations, start=1):
        suffix = "" if len(validations) == 1 else f"-{number}"
        section = _Section(file=f"validation{suffix}.json", picture=f"summary{suffix}.svg", comparisons=[])
        validation.save(stage / section.file)
        shown = []
        for comparison, plan in compared:
            if comparison.result not in validation.results:
                continue
            row = validation.results.index(comparison.result)
            label = row_labels(validation.results)[row]
            folder = _free_name(label + suffix, taken)
            _write_comparison(stage / folder, comparison, plan)
            section.comparisons.append(_Entry(row=row, folder=folder))
            shown.append((folder, f"{model_name(validation.model)}, {label}", comparison))
        sections.append(section)
        parts.append((validation, section.picture, shown))
    write_json(stage / "report.json", {"schema": SCHEMA, **_Index(sections=sections).model_dump(mode="json")}, indent=1)
    return parts


def _draw(stage: Path, parts: list[tuple[Validation, str, list[tuple[str, str, Comparison]]]]) -> ModuleNotFoundError | None:
    """Add the pictures and the page. Returns why nothing was drawn if a package is missing."""
    try:
        validations.write(stage, parts)
    except ModuleNotFoundError as error:
        return error
    return None


def _write_comparison(folder: Path, comparison: Comparison, plan: Mapping[str, Any] | None) -> None:
    comparison.predicted.save(folder / "predicted.json.gz")
    comparison.measured.save(folder / "measured.json.gz")
    export(folder / "perfetto.json.gz", {"predicted": comparison.predicted, "measured": comparison.measured})
    if plan is not None:
        write_json(folder / "plan.json.gz", plan)


def _free_name(label: str, taken: set[str]) -> str:
    """A folder name that is made of `label` and not yet in `taken`, which receives it."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", label)[:LONGEST_NAME].strip("-.") or "strategy"
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
    """Read a report folder. A validation alone, given as its file or as a folder with `validation.json`, is a report without timelines.

    Raises UnusableFileError for anything else.
    """
    path = Path(path)
    if not kind_at(path / "report.json") and kind_at(path / "validation.json"):
        path /= "validation.json"
    if kind_at(path) == "file":
        return Report(path.parent, (Validation.load(path),), ((),), ((),))
    document = read_document(path / "report.json", "report", SCHEMA)
    try:
        sections = _Index.model_validate(document).sections
    except ValidationError as error:
        raise UnusableFileError(f"report {path} is damaged {first_fault(error)}; make it again") from error
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
    """`folder / name`. Raises UnusableFileError if it lies outside the folder."""
    place = (folder / name.replace("\0", "\N{REPLACEMENT CHARACTER}")).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise UnusableFileError(f"report {folder} names a file outside of itself ({name}); make it again")
    return place
