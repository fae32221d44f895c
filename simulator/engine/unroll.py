"""The unrolled sequential program: every execution of a task by number, what it still waits for, and when it ran.

Execution t is task `t % size` of period `t // size`. Numbers follow the sequential program, so they break ties.
"""

from array import array

from simulator.plan.dependencies import Dependencies

NAN = float("nan")


class Unrolled:
    """Flat tables by execution number, grown period by period as lanes reach them.

    `tokens`: per task, how many other permissions (a launch by the host) it needs beside its dependencies.
    """

    def __init__(self, dependencies: Dependencies, iterations: int | None, tokens: list[int]):
        """`iterations` as in `plan.program`; None: the program does not end."""
        self.tasks = dependencies.tasks
        self.size = len(self.tasks)
        self.iterations = iterations
        #: Executions that `waiting[t]` still counts: dependencies on other lanes and tokens.
        self.waiting: list[int] = []
        #: Not before this time, once nothing is waited for: the launch, or a gap between graph nodes.
        self.earliest_s = array("d")
        self.start_s = array("d")
        self.end_s = array("d")
        #: Why it started when it did (a code of `critical_path.CAUSES`), and the execution that released it (-1: none).
        self.cause = bytearray()
        self.released_by = array("q")
        #: Executions of each period that have not ended.
        self.unfinished: list[int] = []
        self._dependencies = dependencies
        self._lags = [task.lag for task in self.tasks]
        self._largest_lag = dependencies.largest_lag
        self._tokens = tokens
        self._templates: dict[int, list[int]] = {}
        self._by_delta: dict[int, dict[int, list[tuple[int, int]]]] = {}
        self._successors: dict[tuple[int, ...], list[list[int]]] = {}
        self._nothing = [()] * self.size
        #: Periods that hold tasks, prologue and drain included; None without end.
        self.periods = None if iterations is None else iterations + self._largest_lag
        #: The largest number of periods between an execution and one that waits for it.
        self.reach = max((edge.delta for period in self._kinds() for edges in self._row(period) for edge in edges), default=0)

    def _kinds(self) -> list[int]:
        """Periods that show every kind of row: prologue, a steady one, drain."""
        steady = self._dependencies.steady
        if self.iterations is None:
            return list(range(steady + 1))
        return [*range(min(self.iterations, steady + 1)), *range(self.iterations, self.periods)]

    def exists(self, period: int, index: int) -> bool:
        """Whether the task runs in this period: not before its first iteration, nor after its last."""
        iteration = period - self._lags[index]
        return iteration >= 0 and (self.iterations is None or iteration < self.iterations)

    def whole(self, period: int) -> bool:
        """Whether every task runs in this period."""
        return period >= self._largest_lag and (self.iterations is None or period < self.iterations)

    def enter(self, period: int) -> int:
        """Make the tables reach `period` and whatever its executions release. Returns the period's first number."""
        while len(self.unfinished) <= period + self.reach:
            self._grow(len(self.unfinished))
        return period * self.size

    def _grow(self, period: int) -> None:
        size = self.size
        row = self._row(period)
        template = self._templates.get(id(row))
        if template is None:
            template = self._templates[id(row)] = [len(edges) + token for edges, token in zip(row, self._tokens, strict=True)]
        self.waiting.extend(template)
        self.earliest_s.extend(array("d", bytes(8 * size)))
        blank = array("d", [NAN]) * size
        self.start_s.extend(blank)
        self.end_s.extend(blank)
        self.cause.extend(bytes(size))
        self.released_by.extend(array("q", [-1]) * size)
        self.unfinished.append(size if self.whole(period) else sum(self.exists(period, index) for index in range(size)))

    def _row(self, period: int):
        if self.periods is not None and period >= self.periods:
            return self._nothing
        return self._dependencies.waits(period, self.iterations)

    def successors(self, period: int) -> list[list[int]]:
        """Per task of `period`, how much further on in the numbering the executions lie that wait for it."""
        rows = [self._row(later) for later in range(period, period + self.reach + 1)]
        key = tuple(map(id, rows))
        found = self._successors.get(key)
        if found is None:
            found = self._successors[key] = [[] for _ in range(self.size)]
            for delta, row in enumerate(rows):
                for producer, consumer in self._edges_of(row).get(delta, ()):
                    found[producer].append(delta * self.size + consumer - producer)
        return found

    def _edges_of(self, row) -> dict[int, list[tuple[int, int]]]:
        found = self._by_delta.get(id(row))
        if found is None:
            found = self._by_delta[id(row)] = {}
            for consumer, edges in enumerate(row):
                for edge in edges:
                    found.setdefault(edge.delta, []).append((edge.index, consumer))
        return found
