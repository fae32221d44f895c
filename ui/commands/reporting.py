"""`schedcast report`: one page of report folders, and of documents by their schema."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from traces.documents.comparison import Prediction
from traces.documents.predictions import Predictions
from traces.documents.replay_result import Diff, ReplayResult
from traces.documents.reproduction import Reproduction
from traces.documents.search_result import SearchResult
from traces.documents.timeline import Timeline
from traces.documents.training import TrainingRun
from traces.errors import UnusableFileError
from traces.files import kind_at, starts_with_schema, write_atomic
from traces.outputs import check_outputs
from ui.commands.output import DIFF, REPRODUCTION, TRAINING, print_then_write
from ui.present import diffs, predictions, replays, reproductions, searches, trainings, validations
from ui.present.blocks import Section
from ui.present.page import page
from ui.present.report import read_report


def _validation_sections(place: Path) -> list[Section]:
    report = read_report(place)
    return validations.sections(report.validations, report.comparisons)


#: By the schema of a file: the command that writes it with --json, if one does, and what its sections are made of.
DOCUMENTS: Mapping[str, tuple[str, Callable[[Path], list[Section]]]] = MappingProxyType({
    "schedcast.validation": ("validate", _validation_sections),
    "schedcast.search": ("search", lambda path: [searches.section(SearchResult.load(path))]),
    "schedcast.replay": ("replay", lambda path: [replays.section(ReplayResult.load(path))]),
    "schedcast.diff": ("diff", lambda path: [diffs.section(Diff.load(path))]),
    "schedcast.prediction": ("predict", lambda path: [predictions.section(Prediction.load(path))]),
    "schedcast.predictions": ("predict", lambda path: predictions.sections(Predictions.load(path))),
    "schedcast.timeline": ("", lambda path: [predictions.timeline_section(Timeline.load(path), path.name)]),
    "schedcast.run": ("run", lambda path: [trainings.section(TrainingRun.load(path))]),
    "schedcast.reproduction": ("reproduce", lambda path: reproductions.sections(Reproduction.load(path))),
})  # fmt: skip


def sections_of(path: Path | str) -> list[Section]:
    """The sections of a folder or a file. Raises UnusableFileError for one that no command wrote, or that is damaged."""
    path = Path(path)
    if not kind_at(path):
        raise UnusableFileError(f"no result at {str(path)!r}; check the name")
    if kind_at(path) == "folder":
        return _folder_sections(path)
    for schema, (_, read) in DOCUMENTS.items():
        if starts_with_schema(path, f"{schema}/"):
            return read(path)
    *commands, last = dict.fromkeys(command for command, _ in DOCUMENTS.values() if command)
    raise UnusableFileError(
        f"{path} is no result of Schedcast; expected a folder that --out wrote, or a JSON document of {', '.join(commands)} or {last}, or a"
        " timeline (schedcast diff A B --out DIR makes a folder of two recorded traces)"
    )


def _folder_sections(folder: Path) -> list[Section]:
    if kind_at(folder / DIFF.document):
        return [diffs.read(folder)]
    for kind in (TRAINING, REPRODUCTION):
        if kind_at(folder / kind.document):
            _, read = DOCUMENTS[kind.schema]
            return read(folder / kind.document)
    return _validation_sections(folder)


SCHEMA = "schedcast.page/1"


def report(places: Sequence[Path], out: Path, title: str, as_json: bool) -> None:
    """Write one page about everything in `places`, in their order, and say what is in it."""
    check_outputs({"--out": out}, [("PLACE", place) for place in places if kind_at(place) != "folder"])
    sections = [section for place in places for section in sections_of(place)]
    content = page(title, sections)
    entries = [{"title": section.title, "summary": section.summary} for section in sections]
    document = {"schema": SCHEMA, "page": str(out), "bytes": len(content.encode()), "sections": entries}

    def show() -> None:
        for entry in entries:
            print(f"- {entry['title']}: {entry['summary']}" if entry["summary"] else f"- {entry['title']}")

    print_then_write(as_json, lambda: document, show, lambda: print(f"report: {write_atomic(out, content)}", file=sys.stderr))
