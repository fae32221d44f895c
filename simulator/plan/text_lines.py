"""How one line of a plan's text is written: names, operands, bodies and tasks. `simulator.plan.text` joins them to a text."""

import json
import re
from collections.abc import Sequence
from dataclasses import Field, fields

from simulator.plan.task import Operand, Task, ViewStep

#: Names that need no quotes.
BARE = re.compile(r"[\w./:@#>'+-]+")
#: Written for an empty layer.
NO_LAYER = "-"
#: View ops written as `value.NAME(arguments)`.
METHODS = {
    "expand": "aten.expand.default",
    "permute": "aten.permute.default",
    "select": "aten.select.int",
    "slice": "aten.slice.Tensor",
    "squeeze": "aten.squeeze.dim",
    "t": "aten.t.default",
    "transpose": "aten.transpose.int",
    "unsqueeze": "aten.unsqueeze.default",
    "view": "aten.view.default",
}
SLICE, SELECT = METHODS["slice"], METHODS["select"]
#: Settings of a task that are written only if they are not 0 or empty.
SETTINGS = ("priority", "lag", "microbatch", "action")
#: What introduces a task's lists of operands and of earlier tasks.
CLAUSES = ("reads", "writes", "mutates", "after")
#: Names of the columns of a task.
COLUMNS = ("# task", "lane", "phase", "layer", "settings", "body", "operands")

_METHOD_OF = {target: name for name, target in METHODS.items()}
_NUMBER = r"(?:0|-?[1-9]\d{0,18})"
#: Arguments as `json.dumps` spells them; other spellings are written as methods.
_SLICE_ARGS = re.compile(rf"\[([0-3]), ({_NUMBER}), ({_NUMBER})\]")
_SELECT_ARGS = re.compile(rf"\[([0-3]), ({_NUMBER})\]")
#: A wider cell stands out of its column.
_WIDEST_CELL = 48
#: An abridged line names this many operands of a kind.
_MOST_OPERANDS = 4


def word(text: str) -> str:
    """A name as it is, or in quotes (as JSON) if it has other characters than names usually have."""
    usual = BARE.fullmatch(text) and text != NO_LAYER and not text.startswith("#")
    return text if usual else json.dumps(text)


def json_list_end(text: str) -> int:
    """Where the JSON list at the start of `text` ends; 0 if there is none."""
    if not text.startswith("["):
        return 0
    try:
        return json.JSONDecoder().raw_decode(text)[1]
    except (ValueError, RecursionError):
        return 0


def view_text(step: ViewStep) -> str:
    """A view step as a suffix: `[0:8]`, `[:,3]`, `.t()`, or in general `|aten.split.Tensor[2]->1` (the result at position 1)."""
    args = step.args
    readable = json_list_end(args) == len(args) and args.isprintable()
    if step.output is None and readable:
        if step.target == SLICE and (match := _SLICE_ARGS.fullmatch(args)):
            return f"[{':,' * int(match[1])}{match[2]}:{match[3]}]"
        if step.target == SELECT and (match := _SELECT_ARGS.fullmatch(args)):
            return f"[{':,' * int(match[1])}{match[2]}]"
        if step.target in _METHOD_OF:
            return f".{_METHOD_OF[step.target]}({args[1:-1]})"
    result = "" if step.output is None else f"->{step.output}"
    return f"|{word(step.target)}{args if readable else json.dumps(args)}{result}"


def geometry_text(item: Operand) -> str:
    """Dtype, shape and, if not contiguous, strides: `float32[4,5](1,4)`."""
    text = f"{word(item.dtype)}[{','.join(map(str, item.shape))}]"
    return text if item.strides == contiguous_strides(item.shape) else f"{text}({','.join(map(str, item.strides))})"


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor of `shape`."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def operand_text(operand: Operand) -> str:
    """An operand with its view steps, without its geometry."""
    return word(operand.value) + "".join(map(view_text, operand.views))


def full_operand_text(operand: Operand, own: Operand | None) -> str:
    """An operand with its view steps, and `as` its geometry if that differs from its value's `own`."""
    text = operand_text(operand)
    if own is not None and (operand.shape, operand.strides, operand.dtype) == (own.shape, own.strides, own.dtype):
        return text
    return f"{text} as {geometry_text(operand)}"


def field_text(content: object) -> str:
    """The content of a body's field, from JSON data: a name, `` `text` `` in which `$0` stands for `{"$":0}`, or JSON."""
    if not isinstance(content, str):
        return json.dumps(content, separators=(",", ":"))
    if BARE.fullmatch(content) and content[0] not in "-0123456789" and content not in ("true", "false", "null"):
        return content
    shortened = re.sub(r'\{"\$":(\d+)\}', r"$\1", content)
    if "`" in content or not content.isprintable() or expanded(shortened) != content:
        return json.dumps(content)
    return f"`{shortened}`"


def expanded(text: str) -> str:
    """The text between back quotes with `{"$":0}` for `$0`."""
    return re.sub(r"\$(\d+)", r'{"$":\1}', text)


def task_cells(task: Task, body: Sequence[str], operands: Sequence[Sequence[str]]) -> list[str]:
    """The cells of a task's line. `body`: texts of its body's fields. `operands`: texts of its reads, writes, mutates and `after`."""
    settings = zip(SETTINGS, (task.priority, task.lag, task.microbatch, task.action), strict=True)
    nonzero = [f"{name}={field_text(content)}" for name, content in settings if content]
    lists = [f"{verb} {', '.join(texts)}" for verb, texts in zip(CLAUSES, operands, strict=True) if texts]
    lane, layer = f"{word(task.device)}/{task.stream}", word(task.layer) if task.layer else NO_LAYER
    return [word(task.name), lane, task.phase, layer, " ".join(nonzero), " ".join([task.body.kind, *body]), "  ".join(lists)]


def abridged_cells(task: Task) -> list[str]:
    """The cells of a task's line for people: no geometry, only body fields with a name or a number, and some operands of a kind."""
    body = {field.name: content for field in fields(task.body) if _is_short(content := getattr(task.body, field.name), field)}
    first = fields(task.body)[0].name
    texts = [content if name == first and isinstance(content, str) else f"{name}={field_text(content)}" for name, content in body.items()]
    names = [[operand_text(operand) for operand in operands] for operands in (task.reads, task.writes, task.mutates)]
    return task_cells(task, texts, [_first(items) for items in (*names, [word(name) for name in task.after])])


def abridged_lines(tasks: Sequence[Task]) -> list[str]:
    """A line for people per task, below the names of the columns."""
    return aligned([COLUMNS, *map(abridged_cells, tasks)])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines whose columns line up, the first row being the columns' names. A column without content is omitted."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max((len(cell) for cell in column if len(cell) <= _WIDEST_CELL), default=0) for column in columns]
    lines = zip(*columns, strict=True)
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in lines]


def _is_short(content: object, field: Field) -> bool:
    if field.name == "kind" or content == field.default:
        return False
    return isinstance(content, bool | int | float) or (isinstance(content, str) and BARE.fullmatch(content) is not None)


def _first(texts: list[str]) -> list[str]:
    excess = len(texts) - _MOST_OPERANDS
    return texts if excess <= 1 else [*texts[:_MOST_OPERANDS], f"... ({excess} more)"]
