"""The first look at a GPU as text and as Markdown: what to mend first, then every answer."""

import json

from pydantic import JsonValue

from traces.documents.gpu_first import CHECKS, FIRST, REPORT_FOLDER, CheckRecord, GpuFirst

#: Characters of a figure that the page shows; all of it is in the document.
_SHOWN = 400


def mend_words(first: GpuFirst) -> list[str]:
    """What to mend, numbered, in order of worth."""
    return [f"{number}. {text}" for number, text in enumerate(first.fix_first, 1)] or ["Nothing: every answer is as Schedcast assumes."]


def check_line(check: CheckRecord) -> str:
    """One line on a check: seconds, verdict, name, and what the answer means."""
    took = f"{check.seconds:6.1f} s" if check.seconds is not None else " " * 8
    earlier = " (earlier)" if check.earlier else ""
    return f"{took}  {check.verdict:7}  {check.name}{earlier}: {check.means}"


def readme(first: GpuFirst) -> str:
    """The README of the folder. It starts with what to mend first."""
    name = str(first.device.get("name", "a GPU"))
    versions = ", ".join(f"{of} {version}" for of, version in first.versions.items() if version != "not installed")
    state = "" if first.complete else " The call that wrote this had not ended: it still runs, or it was killed."
    counts = {verdict: sum(check.verdict == verdict for check in first.checks) for verdict in ("ok", "differs", "failed", "left")}
    sections = [
        f"# First minutes on {_plain(name)}",
        "## What to fix first\n\n" + "\n".join(map(_plain, mend_words(first))),
        f"Of {len(first.checks)} checks, {counts['ok']} are as Schedcast assumes, {counts['differs']} differ, {counts['failed']} failed and"
        f" {counts['left']} are left. Measured by `schedcast gpu-first` until {first.date}, within {first.seconds:.0f} s.{state}",
        f"Versions: {_plain(versions)}.",
        "\n".join(f"- {_plain(flag)}" for flag in first.flags),
        "## Answers\n\n" + "\n\n".join(_answer(check) for check in first.checks),
        f"## The GPU report\n\n{_plain(first.report)}" if first.report else "",
        f"## The files\n\n`{FIRST}` (`{first.schema_name}`), `{CHECKS}/` (the output of every check) and `{REPORT_FOLDER}/`. Run the same"
        " command with this folder for what is left, or with `--only NAME` to make one check again.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _answer(check: CheckRecord) -> str:
    lines = [f"### {check.name}: {check.verdict}", "", f"{_plain(check.asks)} {_plain(check.means)}"]
    lines += ["", *(f"- {_plain(name)}: `{_figure(value)}`" for name, value in check.figures.items())] if check.figures else []
    return "\n".join(lines)


def _figure(value: JsonValue) -> str:
    text = json.dumps(value).replace("`", "'")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _plain(text: str) -> str:
    """Text escaped for Markdown."""
    return "".join(f"\\{letter}" if letter in "\\`*<>|[]" else letter for letter in text)
