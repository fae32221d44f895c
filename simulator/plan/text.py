"""A plan as text that a person can read.

`render` writes everything there is, a line per task, and `parse` reads it back: `parse(render(plan)) == plan`. `outline` writes the tasks
alone, for the screen. A full text looks like this; blank lines and lines that begin with `#` are left out when it is read:

    stepcast.plan-text/1
    strategy   forward-fusion
    options    {"form":"fused"}
    semantics  {}
    losses     y

    storages
      # storage  bytes  device
      w          1280   cuda:0

    values
      # value  kind        device  geometry       storage and source
      w        parameter   cuda:0  float32[32,10]
      y        activation  cuda:0  float32[8,10]  on pool from data[0:8] as float32[8,10]

    gradients
      # parameter  operand
      w            g.t() as float32[32,10](1,32)

    segment repeat=3
      # task   lane      phase    layer  settings  body                                      operands
      forward  cuda:0/0  forward  1                op target=aten.mm.default args=`[$0,$1]`  reads x, w  writes y
      update   cuda:0/1  update   1      lag=1     update optimizer=sgd form=fused           reads g  mutates w  after forward

Names with unusual characters are quoted as in JSON. `on` names a value's storage if it is not the value's own name. `as` gives an operand's
geometry (dtype, shape, and strides unless contiguous) if it is not that of its value. View steps: `w[0:8]` and `w[:,3]` if
their arguments are spelled as `json.dumps` does, `w.slice(0,0,8)` if not, `w.t()`, `w.view([5])` and others of `METHODS`, and in general
`w|aten.split.Tensor[2]->1`, the result at position 1. Back quotes hold text in which `$0` stands for `{"$":0}`.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

from simulator.plan import json
from simulator.plan.plan import Plan
from simulator.plan.task import Operand, Task, Value
from simulator.plan.text_lines import (
    CLAUSES,
    COLUMNS,
    SETTINGS,
    abridged_lines,
    aligned,
    field_text,
    full_operand_text,
    geometry_text,
    task_cells,
    word,
)
from simulator.plan.text_scanner import Line
from traces.errors import UnusableFileError

SCHEMA = "stepcast.plan-text/1"
HEADERS = ("strategy", "options", "semantics", "losses")
#: In characters; names in a damaged text can be long.
_LONGEST_MESSAGE = 500
SECTIONS = ("storages", "values", "gradients", "segment")


def render(plan: Plan) -> str:
    """The whole plan as text. Raises StepcastError if options or semantics are not JSON data."""
    document = json.dump(plan)
    own = {name: value.operand() for name, value in plan.values.items()}
    headers = [["strategy", word(plan.strategy)], ["options", field_text(document["options"])]]
    headers.append(["semantics", field_text(document["semantics"])])
    if plan.losses:
        headers.append(["losses", ", ".join(map(word, plan.losses))])
    storages = [[word(storage.name), str(storage.bytes), word(storage.device)] for storage in plan.storages.values()]
    gradients = [[word(name), full_operand_text(operand, own.get(operand.value))] for name, operand in plan.gradients.items()]
    blocks = [
        [SCHEMA, *(f"{name:<9}  {content}" for name, content in headers)],
        _section("storages", ("# storage", "bytes", "device"), storages),
        _section(
            "values", ("# value", "kind", "device", "geometry", "storage and source"), [_value_cells(v) for v in plan.values.values()]
        ),
        _section("gradients", ("# parameter", "operand"), gradients),
    ]
    for segment, entry in zip(plan.segments, document["segments"], strict=True):
        title = "segment" if segment.repeat is None else f"segment repeat={segment.repeat}"
        rows = [_task_cells(task, data["body"], own) for task, data in zip(segment.tasks, entry["tasks"], strict=True)]
        blocks.append(_section(title, COLUMNS, rows))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def outline(plan: Plan) -> str:
    """The tasks of a plan for people, a line each. Values, geometry, arguments and the ends of long lists are left out."""
    blocks = [[f"plan {plan.strategy}"]]
    differing = {name: content for name, content in plan.semantics.items() if content}  # a staleness of 0 is plain training
    for title, contents in (("options", plan.options), ("semantics", differing)):
        if contents:
            blocks[0].append(f"  {title:<9}  {', '.join(f'{name}={content}' for name, content in contents.items())}")
    for segment in plan.segments:
        count = f"{len(segment.tasks)} tasks a period"
        title = count if segment.repeat is None else f"{count}, {segment.repeat} periods"
        blocks.append([title, *(f"  {line}" for line in abridged_lines(segment.tasks))])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def parse(text: str, source: str = "the plan's text") -> Plan:
    """The plan that `render` wrote. `source` names the text in messages.

    Raises UnusableFileError with the number of the first line that cannot be read, or with which the plan is no longer a plan.
    """
    reader = _Reader(source)
    lines = text.split("\n")
    for number, content in enumerate(lines, 1):
        line = Line(content.removesuffix("\r"), number, source)
        if not line.done and not content.lstrip(" ").startswith("#"):
            reader.read(line, indented=content.startswith(" "))
    if not reader.segments:
        Line("", len(lines), source).fail("a segment of tasks")
    return reader.plan()


def _section(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a section; none if it is empty, except for a segment."""
    if not rows:
        return [title] if title.startswith("segment") else []
    return [title, *(f"  {line}" for line in aligned([columns, *rows]))]


def _value_cells(value: Value) -> list[str]:
    own = value.operand()
    origin = [] if value.storage == value.name else [f"on {word(value.storage)}"]
    if value.source is not None:
        origin.append(f"from {full_operand_text(value.source, own)}")
    return [word(value.name), value.kind, word(value.device), geometry_text(own), " ".join(origin)]


def _task_cells(task: Task, body: Mapping[str, Any], own: Mapping[str, Operand]) -> list[str]:
    """The cells of a task's line, with everything in it. `body` is its JSON form, `own` every value's own operand."""
    texts = [[full_operand_text(o, own.get(o.value)) for o in operands] for operands in (task.reads, task.writes, task.mutates)]
    contents = [f"{name}={field_text(content)}" for name, content in body.items() if name != "kind"]
    return task_cells(task, contents, [*texts, [word(name) for name in task.after]])


class _Reader:
    """Collects the JSON form of a plan, line by line, and remembers which line each entry comes from."""

    def __init__(self, source: str):
        self.source = source
        self.segments: list[dict[str, Any]] = []
        self._headers: dict[str, Any] = {}
        self._geometries: dict[str, dict[str, Any]] = {}
        self._entries: list[tuple[int, str, Any]] = []  # (line, list of the document, what goes there)
        self._parameters: set[str] = set()
        self._section = ""

    def read(self, line: Line, indented: bool) -> None:
        """Take in a line that is neither blank nor a comment."""
        if "schema" not in self._headers:
            if line.name(SCHEMA) != SCHEMA:
                line.fail(f"{SCHEMA} at the start of a plan's text", 0)
            self._headers["schema"] = SCHEMA
        elif not indented:
            self._read_title(line)
        elif self._section == "storages":
            name, size = line.name("a storage"), line.integer("its bytes")
            self._add(line, {"name": name, "bytes": size, "device": line.name("its device")})
        elif self._section == "values":
            self._read_value(line)
        elif self._section == "gradients":
            parameter = line.name("a parameter")
            if parameter in self._parameters:
                line.fail("a parameter that has no gradient yet", 0)
            self._parameters.add(parameter)
            self._add(line, (parameter, line.operand(self._geometries.get)))
        elif self._section == "segment":
            self._read_task(line)
        else:
            line.fail(f"one of {', '.join((*HEADERS, *SECTIONS))} at the start of the line")
        line.end()

    def plan(self) -> Plan:
        """The plan of all lines. Raises UnusableFileError for the first line with which `simulator.plan.json` refuses it."""
        # References point backward in this order, so that the entries before a line are a plan by themselves.
        order = ("storages", "values", "losses", "gradients", "segments")
        self._entries.sort(key=lambda entry: order.index(entry[1]))
        try:
            return json.load(self._document(len(self._entries)))
        except UnusableFileError:
            pass
        count = bisect_left(range(len(self._entries)), True, key=lambda count: self._flaw(count) is not None)
        number = self._entries[count - 1][0] if count else 1
        raise UnusableFileError(f"{self.source}, line {number}: {self._flaw(count)}")

    def _flaw(self, count: int) -> str | None:
        """Why the first `count` entries are no plan; None if they are one."""
        try:
            json.load(self._document(count))
        except UnusableFileError as error:
            return shorten(str(error), _LONGEST_MESSAGE, placeholder="...")
        return None

    def _document(self, count: int) -> dict[str, Any]:
        headers = {"strategy": self._headers.get("strategy"), "options": self._headers.get("options", {})}
        document = {"schema": json.SCHEMA, **headers, "semantics": self._headers.get("semantics", {}), "gradients": {}}
        document |= {name: [] for name in ("storages", "values", "losses")}
        document["segments"] = [{**segment, "tasks": []} for segment in self.segments]
        for _, name, content in self._entries[:count]:
            if name == "segments":
                index, task = content
                document["segments"][index]["tasks"].append(task)
            elif name == "gradients":
                document["gradients"][content[0]] = content[1]
            else:
                document[name].append(content)
        return document

    def _add(self, line: Line, content: Any) -> None:
        self._entries.append((line.number, "segments" if self._section == "segment" else self._section, content))

    def _read_title(self, line: Line) -> None:
        title = line.keyword(*HEADERS, *SECTIONS)
        if title is None or (title != "segment" and title in self._headers):
            line.fail(f"one of {', '.join((*HEADERS, *SECTIONS))}, each once but for segment", 0)
        self._section = title if title in SECTIONS else ""
        self._headers.setdefault(title, None)
        if title == "strategy":
            self._headers[title] = line.name("the strategy")
        elif title in ("options", "semantics"):
            self._headers[title] = line.json_object()
        elif title == "losses":
            self._entries += [(line.number, "losses", name) for name in line.listed(lambda: line.name("a value"))]
        elif title == "segment":
            self.segments.append({"repeat": line.repeat()})

    def _read_value(self, line: Line) -> None:
        value = {"name": line.name("a value"), "kind": line.name("its kind"), "device": line.name("its device")}
        geometry = line.geometry()
        value |= {**geometry, "storage": line.name("a storage") if line.keyword("on") else value["name"]}
        if line.keyword("from"):
            value["source"] = line.operand(lambda _: geometry)
        self._geometries[value["name"]] = geometry
        self._add(line, value)

    def _read_task(self, line: Line) -> None:
        name, (device, stream), phase, layer = line.name("a task"), line.lane(), line.name("a phase"), line.layer()
        task = {"name": name, "device": device, "stream": stream, "phase": phase, "layer": layer}
        for setting, number in line.fields().items():
            if setting not in SETTINGS:
                line.fail(f"settings among {', '.join(SETTINGS)}, then the kind of the body")
            task[setting.replace("-", "_")] = number
        task["body"] = {"kind": line.name("the kind of the body"), **line.fields("kind")}
        for clause in CLAUSES:
            if line.keyword(clause):
                names = clause == "after"
                task[clause] = line.listed(lambda names=names: line.name("a task") if names else line.operand(self._geometries.get))
        self._add(line, (len(self.segments) - 1, task))
