"""Nests the operators of a trace, and joins them to the launches that they made."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from traces.formats.operators import Operator, Operators, Shape
from traces.formats.recording import Call, CallKind

CATEGORIES = frozenset({"cpu_op", "operator", "user_annotation"})
#: Operators of a recording at most: a step of a large model has some 50,000.
MOST_OPERATORS = 2_000_000
#: Shapes of an operator, and extents of a shape, at most; longer lists are those of no tensor op.
_MOST_SHAPES, _MOST_EXTENTS = 4096, 16
#: Starts and lengths are rounded to microseconds each, so that an operator may seem to outlast its caller.
_ROUNDED_NS = 2000


class RawOperator(NamedTuple):
    """An operator as the trace has it. `shapes`: None if they were not recorded. `external`: the id that its launches may name."""

    name: str
    thread: tuple[int | str, int | str]
    start_ns: int
    end_ns: int
    shapes: tuple[Shape, ...] | None
    external: int


def shapes_of(argument: Any) -> tuple[Shape, ...] | None:
    """The shapes in "Input Dims"; None if there are none. Lists of tensors, as foreach ops take them, count as no tensor."""
    if not isinstance(argument, list) or len(argument) > _MOST_SHAPES:
        return None
    return tuple(tuple(shape) if _is_shape(shape) else () for shape in argument)


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) <= _MOST_EXTENTS and all(isinstance(x, int) and 0 <= x < 2**63 for x in shape)


def operator_tree(
    raw: list[RawOperator],
    threads: dict[tuple[int | str, int | str], int],
    calls: Sequence[Call],
    external_of_call: Sequence[int],
    origin_ns: int,
    properties: Mapping[int, Mapping[str, Any]],
) -> Operators:
    """Nest the operators, and find the one that made each launch: the innermost around it, else the one that it names by its id."""
    raw.sort(key=lambda operator: (operator.start_ns, -operator.end_ns))
    open_by_thread: dict[int, list[int]] = {}
    operators: list[Operator] = []
    events = [(operator.start_ns, 0, index) for index, operator in enumerate(raw)]
    events += [(round(call.start_s * 1e9) + origin_ns, 1, n) for n, call in enumerate(calls) if call.kind is CallKind.LAUNCH]
    by_external = {operator.external: index for index, operator in reversed([*enumerate(raw)]) if operator.external > 0}
    of_call: dict[int, int] = {}
    for start_ns, is_call, index in sorted(events):
        thread = calls[index].thread if is_call else threads.setdefault(raw[index].thread, len(threads))
        opened = open_by_thread.setdefault(thread, [])
        while opened and raw[opened[-1]].end_ns <= start_ns and not (is_call and raw[opened[-1]].end_ns == start_ns):
            opened.pop()
        while not is_call and opened and raw[index].end_ns > raw[opened[-1]].end_ns + _ROUNDED_NS:
            opened.pop()  # it overlaps, but is not inside
        if is_call:
            around = opened[-1] if opened else by_external.get(external_of_call[index], -1)
            if around >= 0:
                of_call[index] = around
            continue
        one = raw[index]
        span = ((one.start_ns - origin_ns) / 1e9, (one.end_ns - origin_ns) / 1e9)
        operators.append(Operator(one.name, thread, *span, one.shapes, opened[-1] if opened else -1))
        opened.append(index)
    return Operators(tuple(operators), of_call, properties)
