"""Golden texts: what a document says, as a person reads it, in a file of its own. SCHEDCAST_GOLDEN=write makes them anew.

SCHEDCAST_GOLDEN=write pytest tests/ui/test_golden.py && git diff tests/ui/golden
"""

import os
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path

from tests.support.places import ROOT

#: Elements that carry no words, and those that begin a line.
_SILENT = {"title", "script", "style", "noscript", "svg"}
_LINES = {"h1", "h2", "h3", "h4", "p", "li", "tr", "summary", "figcaption", "div", "section", "dt", "dd", "caption"}

#: How the formulas of a page's quantities begin, which are the same on many pages; they are left out.
FORMULAS = "How is this computed?"


def check_golden(text: str, path: Path) -> None:
    """A text is that of the file. With SCHEDCAST_GOLDEN=write the file becomes the text; then read its diff before you commit it."""
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    if os.environ.get("SCHEDCAST_GOLDEN") == "write":
        path.write_text(text)
    assert text.splitlines() == path.read_text().splitlines(), f"{path.name}: SCHEDCAST_GOLDEN=write pytest writes it anew; read the diff"


def check_words(name: str, cases: Mapping[str, str | Sequence[str]]) -> None:
    """What is said in each of some cases is that of `tests/ui/golden/NAME.txt`: a line or several below the case."""
    listed = {case: [said] if isinstance(said, str) else said for case, said in cases.items()}
    lines = (line for case, said in listed.items() for line in (f"{case}:", *(f"  {each}" for each in said)))
    check_golden("\n".join(lines), words_file(name))


def words_file(name: str) -> Path:
    """The golden text of the app, of pages or of the terminal that is called so."""
    return ROOT / "tests" / "ui" / "golden" / f"{name.replace(' ', '-')}.txt"


class _Words(HTMLParser):
    def __init__(self):
        super().__init__()
        self.parts: list[str] = []
        self._silent = 0
        self._details: list[int] = []

    def handle_starttag(self, tag, attrs):
        self._silent += tag in _SILENT
        if tag == "details":
            self._details.append(len(self.parts))
        if tag in _LINES:
            self.parts.append("\n")
        elif tag in ("td", "th"):
            self.parts.append(" | ")

    def handle_endtag(self, tag):
        self._silent -= tag in _SILENT
        if tag == "details" and "".join(self.parts[(begin := self._details.pop()) :]).lstrip().startswith(FORMULAS):
            self.parts[begin:] = [f"\n{FORMULAS}\n"]
        if tag in _LINES:
            self.parts.append("\n")

    def handle_data(self, data):
        if not self._silent:
            self.parts.append(re.sub(r"\s+", " ", data))


def words_of_page(page: str) -> str:
    """The words of an HTML page: a line for each sentence, heading, item of a list and row of a table, whose cells are divided by "|"."""
    reader = _Words()
    reader.feed(page)
    text = re.sub(r"(?<=\.) (?=[A-Z])", "\n", "".join(reader.parts))
    lines = (line.strip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line.strip("| "))
