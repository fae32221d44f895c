"""The operators of a recording: calls of PyTorch's ops on the host, as a tree, and the launches that each of them made.

PyTorch writes them as events of the category `cpu_op` (`Operator` before 1.12), and named ranges as `user_annotation`. An operator is the
child of the innermost operator of its thread that encloses it. Shapes are recorded with `record_shapes=True` only.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

Shape = tuple[int, ...]
#: An operator covers a stretch of time if it lasts for at least this share of it.
COVERED = 0.5
#: What the profiler calls its steps, which cover everything.
_STEP = "ProfilerStep#"


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

    @cached_property
    def _outermost(self) -> dict[int, list[int]]:
        """The operators of each thread that were called by none, in order of start."""
        by_thread: dict[int, list[int]] = {}
        for index in self.children.get(-1, ()):
            by_thread.setdefault(self.all[index].thread, []).append(index)
        return by_thread

    def launching(self, call: int) -> str:
        """The name of the innermost operator that made a launch, by the launch's index among the calls; "" if there is none."""
        return self.all[self.of_call[call]].name if call in self.of_call else ""

    def covering(self, thread: int, start_s: float, end_s: float) -> str:
        """The name of the innermost operator that covers a thread's time from `start_s` to `end_s`; "" if none but a profiler step does."""
        name, inside = "", self._outermost.get(thread, [])
        while inside:
            first = max(0, bisect_right(inside, start_s, key=lambda index: self.all[index].start_s) - 1)
            last = bisect_right(inside, end_s, key=lambda index: self.all[index].start_s)
            shares = {i: min(end_s, self.all[i].end_s) - max(start_s, self.all[i].start_s) for i in inside[first:last]}
            longest = max(shares, key=shares.__getitem__, default=-1)
            if longest < 0 or shares[longest] < COVERED * (end_s - start_s):
                break
            name = name if self.all[longest].name.startswith(_STEP) else self.all[longest].name
            inside = self.children.get(longest, [])
        return name

    def ancestors(self, index: int) -> Iterable[int]:
        """The operator, its caller, and so on outward."""
        while index >= 0:
            yield index
            index = self.all[index].parent
