"""A plan as a JSON document and back, without loss. Fields at their defaults are omitted.

The document has a segment for each plan of the run (`Plan.sequence`): its tasks, and the number of its iterations. The other fields are
those of all plans together.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import chain
from typing import Any

from pydantic import ConfigDict, JsonValue, TypeAdapter, ValidationError

from simulator.plan.dependencies import box
from simulator.plan.plan import Plan
from simulator.plan.task import DTYPE_BYTES, KINDS, PHASES, DeviceClass, HasOperands, Operand, Repeat, Storage, Task, Value
from traces.errors import SchedcastError, UnusableFileError
from traces.files import first_fault

SCHEMA = "schedcast.plan/1"
#: A file with a task of more kernels, or of more FLOPs or bytes, is damaged.
_MOST_LAUNCHES, _MOST_WORK, _LARGEST_EXTENT = 2**40, 1e30, 2**63
#: A petabyte: no tensor is larger, and sums of bytes stay within 64 bits.
LARGEST_STORAGE = 2**50
#: The largest lag of a plan, alone and times its tasks: this many periods and executions pass before the steady state.
_LARGEST_LAG, _MOST_LAGGING = 1000, 1_000_000


def dump(plan: Plan) -> dict[str, Any]:
    """The plan as JSON data: `load(json.loads(json.dumps(dump(plan)))) == plan`.

    Raises SchedcastError if options or semantics contain anything that JSON cannot express (a tuple, an object, NaN).
    """
    for field in ("options", "semantics"):
        content = dict(getattr(plan, field))
        if not _is_json(content):
            raise SchedcastError(f"the plan's {field} are not JSON data ({content!r}); use lists, strings, numbers and dictionaries")
    together = plan.together
    only_predicted = {} if not plan.classes else {"classes": [_plain(each) for each in plan.classes]}
    only_predicted |= {} if plan.repeat is None else {"repeat": _plain(plan.repeat)}
    return {
        "schema": SCHEMA,
        "strategy": plan.strategy,
        "segments": [{"tasks": [_plain(task) for task in own.tasks], "repeat": own.iterations} for own in plan.sequence],
        "values": [_plain(value) for value in together.values.values()],
        "storages": [_plain(storage) for storage in together.storages.values()],
        "losses": list(together.losses),
        "gradients": {name: _plain(operand) for name, operand in plan.gradients.items()},
        "options": dict(plan.options),
        "semantics": dict(plan.semantics),
        **only_predicted,
    }


def load(document: Any) -> Plan:
    """The plan that `dump` wrote. Raises UnusableFileError for any other document."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise UnusableFileError(f"this is not a plan (expected schema {SCHEMA}, found {str(schema)[:60]!r}); check the file")
    contents: dict[str, Any] = {}
    document = {"classes": [], **document}
    for name, adapter in _adapters().items():
        try:
            contents[name] = adapter.validate_python(document.get(name))
        except ValidationError as error:
            raise UnusableFileError(f"the plan's {name} are damaged {first_fault(error)}; make the plan again") from error
    for name in ("values", "storages"):
        contents[name] = {item.name: item for item in contents[name]}
    segments = contents.pop("segments")
    if not segments:
        raise UnusableFileError("the plan is damaged: it has no segments; make the plan again")
    plan = Plan.of_run([(segment.tasks, segment.repeat) for segment in segments], **contents)
    for fault in chain(_doubled(contents, document), *map(_faults, plan.sequence)):
        raise UnusableFileError(f"the plan is damaged: {' '.join(fault.split())}; make the plan again")
    return plan


@dataclass(frozen=True)
class _Segment:
    """A plan of the run, in the document."""

    tasks: tuple[Task, ...]
    repeat: int | None = None


@cache
def _adapters() -> dict[str, TypeAdapter]:
    """How each field of the document is read. Bodies are read by `Body`, which discovers their kinds."""
    return {
        "strategy": TypeAdapter(str),
        "segments": TypeAdapter(tuple[_Segment, ...], config=ConfigDict(allow_inf_nan=False)),
        "values": TypeAdapter(tuple[Value, ...]),
        "storages": TypeAdapter(tuple[Storage, ...]),
        "losses": TypeAdapter(tuple[str, ...]),
        "gradients": TypeAdapter(dict[str, Operand]),
        "options": TypeAdapter(dict[str, JsonValue]),
        "semantics": TypeAdapter(dict[str, JsonValue]),
        "classes": TypeAdapter(tuple[DeviceClass, ...]),
        "repeat": TypeAdapter(Repeat | None),
    }


def _is_json(content: dict) -> bool:
    try:
        TypeAdapter(dict[str, JsonValue]).validate_python(content)
        json.dumps(content, allow_nan=False)
    except (ValidationError, ValueError):
        return False
    return True


def _plain(item: Any) -> Any:
    """Turn dataclasses into dictionaries without fields at their defaults (but with the tags `kind` and `of`), and tuples into lists."""
    if is_dataclass(item):
        written = {}
        for field in fields(item):
            content = getattr(item, field.name)
            if field.default is MISSING or content != field.default or field.name in ("kind", "of"):
                written[field.name] = _plain(content)
        return written
    if isinstance(item, tuple | list):
        return [_plain(inner) for inner in item]
    if isinstance(item, Mapping):
        return {name: _plain(inner) for name, inner in item.items()}
    return item


def _doubled(contents: Mapping[str, Any], document: dict) -> Iterator[str]:
    for name in ("values", "storages"):
        if len(contents[name]) != len(document[name]):
            yield f"two {name} have the same name"


def _faults(plan: Plan) -> Iterator[str]:
    """Faults that the types alone do not exclude, in everything that the rest of the program assumes about a plan."""
    for storage in plan.storages.values():
        if not 0 <= storage.bytes <= LARGEST_STORAGE:
            yield f"storage {storage.name} has {storage.bytes} bytes"
    for value in plan.values.values():
        if value.kind not in KINDS:
            yield f"value {value.name} has kind {value.kind!r}, expected one of {', '.join(KINDS)}"
        if value.storage not in plan.storages:
            yield f"value {value.name} lies on an unknown storage {value.storage!r}"
        yield from geometry_faults(value, f"value {value.name}")
        if value.source is not None:
            yield from geometry_faults(value.source, f"the source of {value.name}")
    yield from (f"the loss {name!r} is not among its values" for name in plan.losses if name not in plan.values)
    for name, operand in plan.gradients.items():
        yield from operand_faults(plan.values, operand, f"the gradient of {name}")
    members = [name for each in plan.classes for name in each.members]
    if len(set(members)) < len(members) or any(each.members[:1] != (each.device,) for each in plan.classes):
        yield "its classes of devices have a device twice, or do not begin with the one that is planned"
    if (repeat := plan.repeat) is not None:
        if min(repeat.times, repeat.shown, repeat.period) < 1 or not repeat.inputs.keys() <= plan.storages.keys():
            yield "what repeats is not of its microbatches"
        if not {*repeat.tasks} <= {task.name for task in plan.tasks}:
            yield "tasks that it does not have repeat"
        if any(name not in plan.storages for names in repeat.inputs.values() for name in names):
            yield "it omits inputs without a storage"
    if plan.largest_lag > _LARGEST_LAG or plan.largest_lag * len(plan.tasks) > _MOST_LAGGING:
        yield f"a segment of {len(plan.tasks)} tasks has too large a lag"
    for task in plan.tasks:
        yield from _task_faults(plan, task)


def _task_faults(plan: Plan, task: Task) -> Iterator[str]:
    if task.phase not in PHASES:
        yield f"task {task.name} has phase {task.phase!r}, expected one of {', '.join(PHASES)}"
    if task.lag < 0 or task.stream < 0 or task.microbatch < 0:
        yield f"task {task.name} has a negative lag, stream or microbatch"
    for operand in (*task.reads, *task.writes, *task.mutates):
        yield from operand_faults(plan.values, operand, f"task {task.name}")
    yield from body_faults(task, f"task {task.name}")


def body_faults(task: HasOperands, owner: str) -> Iterator[str]:
    """Why a body does not fit the operands of its task, or of anything with fields of the same names; `owner` names it."""
    try:
        key, work = task.body.key(task), task.body.work(task)
        if not 0 <= task.body.launches <= _MOST_LAUNCHES:
            yield f"{owner} has {str(task.body.launches)[:20]} launches"
        if not (key and 0 <= work.flops <= _MOST_WORK and 0 <= work.bytes <= _MOST_WORK):
            yield f"{owner} has {work.flops} FLOPs and {work.bytes} bytes"
    except Exception as error:  # whatever a body raises here, the document is at fault
        yield f"the body of {owner} does not fit its operands ({type(error).__name__}: {error})"


def operand_faults(values: Mapping[str, Value], operand: Operand, owner: str) -> Iterator[str]:
    """Why an operand is none of `values`; `owner` names who has it."""
    value = values.get(operand.value)
    if value is None:
        yield f"{owner} names an unknown value {operand.value!r}"
        return
    yield from geometry_faults(operand, f"{owner}, operand {operand.value}")
    if operand.views:
        try:
            box(operand, value.shape)
        except (ValueError, TypeError, IndexError, ArithmeticError, RecursionError):
            yield f"{owner} takes view steps of {operand.value} that do not fit its shape"


def geometry_faults(item: Operand | Value, owner: str) -> Iterator[str]:
    """Why dtype, shape and strides are not those of a tensor; `owner` names whose they are."""
    if item.dtype not in DTYPE_BYTES:
        yield f"{owner} has an unknown dtype {item.dtype!r}"
    if len(item.shape) != len(item.strides):
        yield f"{owner} has {len(item.shape)} dimensions and {len(item.strides)} strides"
    if max(map(abs, (*item.shape, *item.strides)), default=0) > _LARGEST_EXTENT:
        yield f"{owner} has an extent or a stride beyond 64 bits"
    if min(item.shape, default=0) < 0:
        yield f"{owner} has a negative extent"
