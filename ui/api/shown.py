"""The base of answers, which print themselves in a terminal and in a notebook, and have their data as JSON."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from traces.arguments import check_type
from traces.files import write_atomic
from ui.api.arguments import asked

#: Columns of a terminal whose width is not known, and those of a card in a notebook.
WIDTH, CARD_WIDTH = 100, 120
_CARD = '<pre style="font-family:monospace;line-height:1.25;overflow-x:auto">{code}</pre>'


class Shown(ABC):
    """An answer. `repr` is what the command line would print; in a notebook, the same is a card that needs no network."""

    @abstractmethod
    def _print(self, console: Console) -> None:
        """Print the answer."""

    @abstractmethod
    def json(self) -> dict[str, Any]:
        """The document that the command line prints with `--json`."""

    @asked
    def save(self, path: str | Path) -> Path:
        """Write the document to a file, which other functions and commands read; the file is complete or absent. Returns its path."""
        write_atomic(Path(path), json.dumps(self.json(), allow_nan=False).encode())
        return Path(path)

    def __repr__(self) -> str:
        """The answer as text, without colors.

        Characters that cannot be encoded, such as half of a surrogate pair in a rule, become question marks.
        """
        text = StringIO()
        self._print(Console(file=text, width=max(WIDTH, Console().width), color_system=None))
        return text.getvalue().rstrip().encode(errors="replace").decode()

    def _repr_html_(self) -> str:
        console = Console(file=StringIO(), width=CARD_WIDTH, record=True, force_jupyter=False)
        self._print(console)
        return console.export_html(inline_styles=True, code_format=_CARD).encode(errors="replace").decode()


def report(path: Path, answers: Sequence[Any], title: str) -> Path:
    """See `schedcast.report`."""
    from ui.commands.reporting import sections_of  # here, because these load what draws charts
    from ui.present.page import page

    sections = []
    with TemporaryDirectory() as folder:
        for number, answer in enumerate(answers):
            check_type("an answer", answer, Shown | str | Path)
            place = answer.save(Path(folder) / f"{number}.json") if isinstance(answer, Shown) else Path(answer)
            sections += sections_of(place)
    return write_atomic(path, page(title, sections))
