"""What commands wrote, as sections of one page: report folders, and documents by their schema."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from traces.documents.comparison import Prediction
from traces.documents.diff_result import Diff
from traces.documents.predictions import Predictions
from traces.documents.reproduction import Reproduction
from traces.documents.search_result import SearchResult
from traces.documents.timeline import Timeline
from traces.documents.training import TrainingRun
from traces.errors import UnusableFileError
from traces.files import starts_with_schema
from ui.present.reports import diff
from ui.present.reports.folders import DIFF, REPRODUCTION, TRAINING
from ui.present.reports.page import Section
from ui.present.reports.predictions import prediction_section, predictions_sections
from ui.present.reports.report import read_report, report_sections
from ui.present.reports.reproduction import reproduction_sections
from ui.present.reports.search import search_section
from ui.present.reports.timelines import timeline_section
from ui.present.reports.training import training_section

#: By the schema of a file: what its sections are made of.
DOCUMENTS: Mapping[str, Callable[[Path], list[Section]]] = MappingProxyType({
    "schedcast.validation": lambda path: report_sections(read_report(path)),
    "schedcast.search": lambda path: [search_section(SearchResult.load(path))],
    "schedcast.diff": lambda path: [diff.diff_section(Diff.load(path))],
    "schedcast.prediction": lambda path: [prediction_section(Prediction.load(path))],
    "schedcast.predictions": lambda path: predictions_sections(Predictions.load(path)),
    "schedcast.timeline": lambda path: [timeline_section(Timeline.load(path), path.name)],
    "schedcast.run": lambda path: [training_section(TrainingRun.load(path))],
    "schedcast.reproduction": lambda path: reproduction_sections(Reproduction.load(path)),
})  # fmt: skip


def sections_of(path: Path | str) -> list[Section]:
    """The sections of a folder or a file. Raises UnusableFileError for one that no command wrote, or that is damaged."""
    path = Path(path)
    if not os.path.exists(path):
        raise UnusableFileError(f"no result at {str(path)!r}; check the name")
    if os.path.isdir(path):
        return _folder_sections(path)
    for schema, read in DOCUMENTS.items():
        if starts_with_schema(path, f"{schema}/"):
            return read(path)
    raise UnusableFileError(
        f"{path} is no result of Schedcast; expected a folder that --out wrote, or a JSON document of validate, search, diff, predict, run"
        " or reproduce, or a timeline (schedcast diff A B --out DIR makes a folder of two recorded traces)"
    )


def _folder_sections(folder: Path) -> list[Section]:
    if os.path.exists(folder / DIFF.document):
        return [diff.read(folder)]
    for kind in (TRAINING, REPRODUCTION):
        if os.path.exists(folder / kind.document):
            return DOCUMENTS[kind.schema](folder / kind.document)
    return report_sections(read_report(folder))
