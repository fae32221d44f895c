"""The order of a plan's tasks as a CSV file: a line for each task in issue order, with its lane and its priority.

task,device,stream,priority
conv1.forward,cuda:0,0,0
"""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

from simulator.machine.machine import Machine
from simulator.plan.editor.editor import ScheduleEditor
from simulator.plan.editor.order import Entry, Order, OrderError
from simulator.plan.plan import Plan
from traces.errors import UnusableFileError
from traces.files import read_text

HEADER = ",".join(Entry._fields)
#: Bytes of a file at most. 50,000 tasks with names of 60 characters take 4 MB.
_MOST_BYTES = 1 << 23
#: A stream and a priority.
_NUMBERS = (re.compile(r"[0-9]{1,6}"), re.compile(r"-?[0-9]{1,6}"))
_SHOWN = 60
#: Characters of the name of a task or a device at most: none that Schedcast gives has as many.
_LONGEST_NAME = 500


def read(path: Path | str) -> Order:
    """The order in a file. Raises UnusableFileError for a file that is not such a CSV."""
    try:
        return parse(read_text(path, "schedule", _MOST_BYTES))
    except OrderError as error:
        raise _located(path, error) from error


def names_tasks(path: Path | str) -> bool:
    """Whether a file is an order of tasks, by its first line; False for one that cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline(len(HEADER) + 3).rstrip() == HEADER
    except (OSError, ValueError):
        return False


def parse(text: str) -> Order:
    """The order in the text of a file. Raises OrderError for another text."""
    header, _, rest = text.removeprefix("\ufeff").rstrip().partition("\n")
    if header.rstrip() != HEADER:
        raise OrderError(f"it begins with {header.strip()[:_SHOWN]!r}; expected the line {HEADER}, and a line for each task in issue order")
    rows = csv.reader(io.StringIO(rest), strict=True)
    entries: list[Entry] = []
    try:
        entries.extend(_entry(row, len(entries)) for row in rows)
    except csv.Error as error:
        raise OrderError(f"cannot be read as CSV: {error}", len(entries)) from error
    return Order(tuple(entries))


def write(order: Order) -> str:
    """The text of a file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([Entry._fields, *order.entries])
    return text.getvalue()


def followed(plan: Plan, machine: Machine, order: Order, path: Path | str) -> Plan:
    """`plan` in an order that was read from the file at `path`, which its options name then.

    Raises UnusableFileError if the order's tasks are not those of the plan, or if it breaks a hazard.
    """
    try:
        edited = order.applied(plan)
        for fault in ScheduleEditor(plan, machine).faults(order)[:1]:
            raise OrderError(fault.words, fault.position)
    except OrderError as error:
        raise _located(path, error) from error
    return replace(edited, options={**plan.options, "schedule": str(path)})


def _entry(row: list[str], position: int) -> Entry:
    if len(row) != len(Entry._fields):
        raise OrderError(f"{','.join(row)[:_SHOWN]!r} has {len(row)} cells; expected {HEADER}", position)
    task, device, *numbers = (cell.strip() for cell in row)
    for name, text in zip(Entry._fields, (task, device), strict=False):
        if len(text) > _LONGEST_NAME:
            raise OrderError(f"the {name} {text[:_SHOWN]!r}... has {len(text)} characters; expected at most {_LONGEST_NAME}", position)
    for name, number, pattern, example in zip(Entry._fields[2:], numbers, _NUMBERS, ("0 or 1", "0 or -1"), strict=True):
        if not pattern.fullmatch(number):
            raise OrderError(f"the {name} of {task[:_SHOWN]!r} is {number[:_SHOWN]!r}; expected a whole number such as {example}", position)
    return Entry(task, device, *map(int, numbers))


def _located(path: Path | str, error: OrderError) -> UnusableFileError:
    return UnusableFileError(f"schedule {path}: {line_words(error)}")


def line_words(error: OrderError) -> str:
    """The words of an error with the line at fault, if there is one. The header is line 1."""
    return str(error) if error.position is None else f"line {error.position + 2}: {error}"
