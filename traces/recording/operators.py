"""The operators of a recording: calls of PyTorch's ops on the host, as a tree, and the launches that each of them made.

PyTorch writes them as events of the category `cpu_op` (`Operator` before 1.12), and named ranges as `user_annotation`. An operator is the
child of the innermost operator of its thread that encloses it. Shapes are recorded with `record_shapes=True` only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

Shape = tuple[int, ...]


class Operator(NamedTuple):
    """One call of an op on the host, in seconds since the recording's origin.

    `shapes`: those of its arguments, () for an argument that is no tensor or a scalar; None if not recorded. `parent`: the index of the
    operator that called it, -1 if there is none.
    """

    name: str
    thread: int
    start_s: float
    end_s: float
    shapes: tuple[Shape, ...] | None
    parent: int


@dataclass(frozen=True)
class Operators:
    """The operators of a recording: parents before children, otherwise in order of start. `of_call`: the operator of each launching call.

    `properties`: what the trace says of each GPU, by number.
    """

    all: tuple[Operator, ...] = ()
    of_call: Mapping[int, int] = field(default_factory=dict)
    properties: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """The operators that an operator called, in order of start; those of -1 were called by none."""
        children: dict[int, list[int]] = {}
        for index, operator in enumerate(self.all):
            children.setdefault(operator.parent, []).append(index)
        return children

    def ancestors(self, index: int) -> Iterable[int]:
        """The operator, its caller, and so on outward."""
        while index >= 0:
            yield index
            index = self.all[index].parent
