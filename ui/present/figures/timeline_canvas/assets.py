"""The script and the style of the timeline, as texts that pages carry inside."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
#: Every module after those that it imports. Entry points import all of them.
MODULES = ("model", "tracks", "search", "view", "surfaces", "layout", "memory", "draw", "parts", "download", "control", "timeline")
_IMPORT = re.compile(r'^import \{[^}]*\} from "[./\w]+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)


@cache
def script(entry: str) -> str:
    """One JavaScript module made of all modules and an entry point, "streamlit" or "page". Top-level names are unique in all modules."""
    shared = ("embedded",) if entry == "page" else ()
    return joined([HERE / f"{name}.js" for name in (*shared, *MODULES, entry)])


def joined(files: Iterable[Path]) -> str:
    """One JavaScript module made of several files, each after those that it imports."""
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", file.read_text(encoding="utf-8"))) for file in files)


@cache
def style() -> str:
    """The style sheet."""
    return (HERE / "style.css").read_text(encoding="utf-8")
