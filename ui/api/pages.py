"""`report`: answers, and what commands wrote, as one page."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traces.files import write_atomic
from ui.api.shown import Shown
from ui.commands.reporting import sections_of
from ui.present.page import page


def report(path: Path, answers: Sequence[Any], title: str) -> Path:
    """See `schedcast.report`."""
    sections = []
    with tempfile.TemporaryDirectory() as folder:
        for number, answer in enumerate(answers):
            place = answer.save(Path(folder) / f"{number}.json") if isinstance(answer, Shown) else Path(answer)
            sections += sections_of(place)
    write_atomic(path, page(title, sections))
    return path
