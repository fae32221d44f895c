"""A plan as text that a person can read.

`render` writes everything there is, a line per task. `outline` writes the tasks alone, for the
screen. Plans are read from JSON (`simulator.plan.json`). A full text looks like this:

    schedcast.plan-text/1
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

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.plan import json
from simulator.plan.plan import Plan
from simulator.plan.task import Operand, Task, Value
from simulator.plan.text_lines import (
    COLUMNS,
    abridged_lines,
    aligned,
    field_text,
    full_operand_text,
    geometry_text,
    task_cells,
    word,
)

SCHEMA = "schedcast.plan-text/1"


def render(plan: Plan) -> str:
    """The whole plan as text. Raises SchedcastError if options or semantics are not JSON data."""
    document = json.dump(plan)
    together = plan.together
    own = {name: value.operand() for name, value in together.values.items()}
    headers = [["strategy", word(plan.strategy)], ["options", field_text(document["options"])]]
    headers.append(["semantics", field_text(document["semantics"])])
    headers += [[name, field_text(document[name])] for name in ("classes", "repeat") if name in document]
    if together.losses:
        headers.append(["losses", ", ".join(map(word, together.losses))])
    storages = [[word(storage.name), str(storage.bytes), word(storage.device)] for storage in together.storages.values()]
    gradients = [[word(name), full_operand_text(operand, own.get(operand.value))] for name, operand in plan.gradients.items()]
    blocks = [
        [SCHEMA, *(f"{name:<9}  {content}" for name, content in headers)],
        _section("storages", ("# storage", "bytes", "device"), storages),
        _section(
            "values", ("# value", "kind", "device", "geometry", "storage and source"), [_value_cells(v) for v in together.values.values()]
        ),
        _section("gradients", ("# parameter", "operand"), gradients),
    ]
    for each, entry in zip(plan.sequence, document["segments"], strict=True):
        title = "segment" if each.iterations is None else f"segment repeat={each.iterations}"
        rows = [_task_cells(task, data["body"], own) for task, data in zip(each.tasks, entry["tasks"], strict=True)]
        blocks.append(_section(title, COLUMNS, rows))
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def outline(plan: Plan) -> str:
    """The tasks of a plan for people, a line each. Values, geometry, arguments and the ends of long lists are omitted."""
    blocks = [[f"plan {plan.strategy}"]]
    differing = {name: content for name, content in plan.semantics.items() if content}  # a staleness of 0 is plain training
    for title, contents in (("options", plan.options), ("semantics", differing)):
        if contents:
            blocks[0].append(f"  {title:<9}  {', '.join(f'{name}={content}' for name, content in contents.items())}")
    for each in plan.sequence:
        count = f"{len(each.tasks)} tasks a period"
        title = count if each.iterations is None else f"{count}, {each.iterations} periods"
        blocks.append([title, *(f"  {line}" for line in abridged_lines(each.tasks))])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


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
