"""`schedcast report`."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from traces.files import write_atomic
from traces.outputs import check_outputs
from ui.commands.output import print_document, print_then_write
from ui.present.reports.page import page
from ui.present.reports.written import sections_of

SCHEMA = "schedcast.page/1"


def report(places: Sequence[Path], out: Path, title: str, as_json: bool) -> None:
    """Write one page about everything in `places`, in their order, and say what is in it."""
    check_outputs({"--out": out}, [("PLACE", place) for place in places if not os.path.isdir(place)])
    sections = [section for place in places for section in sections_of(place)]
    content = page(title, sections)
    entries = [{"title": section.title, "summary": section.summary} for section in sections]
    document = {"schema": SCHEMA, "page": str(out), "bytes": len(content.encode()), "sections": entries}

    def show() -> None:
        if as_json:
            print_document(document)
            return
        for entry in entries:
            print(f"- {entry['title']}: {entry['summary']}" if entry["summary"] else f"- {entry['title']}")

    def write() -> None:
        print(f"report: {write_atomic(out, content)}", file=sys.stderr)

    print_then_write(show, write)
