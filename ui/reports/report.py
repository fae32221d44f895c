"""A report folder: a page with a table, timelines and pictures, and the documents, timelines, plans and traces that it shows.

    index.html                    the page; needs no network
    report.json                   which file is what; the app reads it
    validation.json               (validation-2.json, ...) the document of `stepcast validate`
    summary.png                   every strategy's predicted and measured step time
    NAME/predicted.json.gz        for each compared strategy: both timelines, their picture, a trace for ui.perfetto.dev and the plan
        /measured.json.gz  timelines.png  timelines.svg  waterfall.png  memory.png  perfetto.json.gz  plan.json.gz

The report is written into a temporary folder and moved to its place when it is complete. Files of an earlier report are replaced one by
one, `report.json` last.
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

from pydantic import BaseModel, ValidationError

from traces.comparison import Comparison, Validation
from traces.errors import StepcastError, UnusableFileError
from traces.files import first_fault, read_document, write_atomic, write_json
from traces.perfetto import export
from traces.timeline import Timeline
from ui.figures.memory_picture import memory_picture
from ui.figures.timeline_canvas.page import head, timelines_html
from ui.figures.timeline_picture import timelines_picture
from ui.figures.validation_picture import validation_picture
from ui.figures.waterfall_picture import waterfall_picture
from ui.reports.page import first_and_last, render
from ui.text import sentences, tables, verdicts, waterfalls
from ui.text.labels import headline, row_labels

SCHEMA = "stepcast.report/1"
#: Characters of a comparison's folder name at most; file systems allow 255, and a label may hold any option's text.
LONGEST_NAME = 80
#: Files in the folder of every comparison, and the text of the links to them.
FILES = (
    ("timelines.svg", "picture (SVG)"),
    ("perfetto.json.gz", "trace for ui.perfetto.dev"),
    ("predicted.json.gz", "predicted timeline"),
    ("measured.json.gz", "measured timeline"),
)


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

    Each comparison's result must be a row of one of the validations. `plans` holds the plans of the comparisons, in the same order, as
    `simulator.plan.json.dump` returns them; a missing plan or None is not written.
    Raises StepcastError if the folder cannot be written. Every file in it is then either unchanged or complete.
    """
    rows = [row for validation in validations for row in validation.results]
    for comparison in comparisons:
        if comparison.result not in rows:
            raise ValueError(f"the comparison of {comparison.strategy} matches no row of these validations; pass its validation too")
    place, folder = Path(folder), Path(folder).resolve()  # the folder that a link points to
    stage = folder.with_name(f".{folder.name[:100]}.{secrets.token_hex(4)}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        stage.mkdir()
    except OSError as error:
        raise StepcastError(f"cannot write {folder}: {error.strerror or error}; choose another place") from error
    try:
        _fill(stage, validations, list(zip_longest(comparisons, plans)))
        _publish(stage, folder)
    except OSError as error:
        raise StepcastError(f"cannot write {folder}: {error.strerror or error}; choose another place") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return place / "index.html"


def _fill(stage: Path, validations: Sequence[Validation], compared: list[tuple[Comparison, Mapping[str, Any] | None]]) -> None:
    """Write every file of the report into `stage`. `compared`: comparisons with their plans."""
    sections, shown, taken = [], [], set()
    for number, validation in enumerate(validations, start=1):
        suffix = "" if len(validations) == 1 else f"-{number}"
        section = _Section(file=f"validation{suffix}.json", picture=f"summary{suffix}.png", comparisons=[])
        validation.save(stage / section.file)
        validation_picture(stage / section.picture, validation)
        comparisons = []
        for comparison, plan in compared:
            if comparison.result not in validation.results:
                continue
            row = validation.results.index(comparison.result)
            label = row_labels(validation.results)[row]
            folder = _free_name(label + suffix, taken)
            pictures = _write_comparison(stage / folder, comparison, f"{validation.model}, {label}", plan)
            section.comparisons.append(_Entry(row=row, folder=folder))
            comparisons.append(_comparison_values(comparison, folder, plan is not None, pictures))
        sections.append(section)
        shown.append(_section_values(validation, section, comparisons))
    rows = [row for values in shown for row in values["rows"][:1]]
    drawing = head() if any(section.comparisons for section in sections) else ""
    page = render("validations.html", sections=shown, text_columns=first_and_last(rows), head=drawing)
    write_atomic(stage / "index.html", page)
    write_json(stage / "report.json", {"schema": SCHEMA, **_Index(sections=sections).model_dump(mode="json")}, indent=1)


def _section_values(validation: Validation, section: _Section, comparisons: list[dict[str, Any]]) -> dict[str, Any]:
    """What the page shows of one validation."""
    return {
        "heading": sentences.job_words(validation),
        "headline": verdicts.headline(validation),
        "words": " ".join(sentences.validation_words(validation)),
        "picture": section.picture,
        "rows": [tables.folded(cells) for cells in tables.validation_cells(validation)],
        "file": section.file,
        "comparisons": comparisons,
    }


def _comparison_values(comparison: Comparison, folder: str, has_plan: bool, pictures: list[tuple[str, str]]) -> dict[str, Any]:
    """What the page shows of one comparison, and which files of its folder it links to."""
    result = comparison.result
    words = [*sentences.result_words(result), *sentences.memory_words(result), sentences.phase_words(comparison)]
    words += waterfalls.measured_words(result)
    return {
        "heading": f"{comparison.strategy}: {headline(comparison.predicted.step_s, comparison.measured.step_s)}",
        "words": " ".join(words),
        "folder": folder,
        "timelines": timelines_html([comparison.predicted, comparison.measured], "", fallback=f"{folder}/timelines.png"),
        "pictures": pictures,
        "files": [*FILES, *([("plan.json.gz", "plan")] if has_plan else [])],
    }


def _write_comparison(folder: Path, comparison: Comparison, title: str, plan: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Write a comparison's files. Returns the names of the pictures below the timelines, each with what it shows."""
    comparison.predicted.save(folder / "predicted.json.gz")
    comparison.measured.save(folder / "measured.json.gz")
    export(folder / "perfetto.json.gz", {"predicted": comparison.predicted, "measured": comparison.measured})
    for kind in ("png", "svg"):
        timelines_picture(folder / f"timelines.{kind}", comparison.predicted, comparison.measured, title)
    if plan is not None:
        write_json(folder / "plan.json.gz", plan)
    pictures = []
    if comparison.result.waterfall:
        waterfall_picture(folder / "waterfall.png", waterfalls.measured_bars(comparison.result), f"{title}: from predicted to measured")
        pictures.append(("waterfall.png", "from the predicted to the measured step, part by part"))
    if memory_picture(folder / "memory.png", comparison.predicted, comparison.measured, title) is not None:
        pictures.append(("memory.png", "memory of every device"))
    return pictures


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
    if not os.path.exists(path / "report.json") and os.path.exists(path / "validation.json"):
        path /= "validation.json"
    if os.path.isfile(path):
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
