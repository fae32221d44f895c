"""The unrolled sequential program: every execution of a task has a number, and other executions that it waits for.

Execution t is task `t % size` of period `t // size`. Numbers follow the sequential program, so they break ties.
"""

from simulator.plan.dependencies import Dependencies, Edge

#: Edges of each task of one period.
Row = list[tuple[Edge, ...]]


class Unrolled:
    """Which executions there are, and which of them wait for each other. Periods of one kind share their tables."""

    def __init__(self, dependencies: Dependencies, iterations: int | None, launched: list[bool]):
        """`iterations` as in `plan.program`; None if the program does not end. `launched`: by task, whether it waits for a launch too."""
        self.tasks = dependencies.tasks
        self.size = len(self.tasks)
        self.iterations = iterations
        self._dependencies = dependencies
        self._lags = [task.lag for task in self.tasks]
        self._largest_lag = dependencies.largest_lag
        self._launched = launched
        self._waits: dict[int, list[int]] = {}
        self._by_delta: dict[int, dict[int, list[tuple[int, int]]]] = {}
        self._successors: dict[tuple[int, ...], list[list[int]]] = {}
        self._no_edges: Row = [()] * self.size
        #: Periods that hold tasks, prologue and drain included; None if the program does not end.
        self.periods = None if iterations is None else iterations + self._largest_lag
        #: The largest number of periods between an execution and one that waits for it.
        self.reach = max((edge.delta for period in self._distinct_periods() for edges in self._row(period) for edge in edges), default=0)

    def _distinct_periods(self) -> list[int]:
        """Periods that show every kind of row: prologue, a steady one, drain."""
        steady = self._dependencies.steady
        if self.iterations is None:
            return list(range(steady + 1))
        return [*range(min(self.iterations, steady + 1)), *range(self.iterations, self.periods)]

    def exists(self, period: int, index: int) -> bool:
        """Whether the task runs in this period: not before its first iteration, nor after its last."""
        iteration = period - self._lags[index]
        return iteration >= 0 and (self.iterations is None or iteration < self.iterations)

    def complete(self, period: int) -> bool:
        """Whether every task runs in this period."""
        return period >= self._largest_lag and (self.iterations is None or period < self.iterations)

    def existing(self, period: int, indices: list[int]) -> list[int]:
        """Those of the tasks `indices` that run in this period."""
        return indices if self.complete(period) else [index for index in indices if self.exists(period, index)]

    def executions(self, period: int) -> int:
        """How many tasks run in this period."""
        return self.size if self.complete(period) else sum(self.exists(period, index) for index in range(self.size))

    def waits(self, period: int) -> list[int]:
        """By task of `period`, how many executions of other lanes, and launches, it waits for."""
        row = self._row(period)
        counts = self._waits.get(id(row))
        if counts is None:
            counts = self._waits[id(row)] = [len(edges) + launched for edges, launched in zip(row, self._launched, strict=True)]
        return counts

    def successors(self, period: int) -> list[list[int]]:
        """By task of `period`, how much further on in the numbering the executions are that wait for it."""
        rows = [self._row(later) for later in range(period, period + self.reach + 1)]
        key = tuple(map(id, rows))
        successors = self._successors.get(key)
        if successors is None:
            successors = self._successors[key] = [[] for _ in range(self.size)]
            for delta, row in enumerate(rows):
                for producer, consumer in self._edges_by_delta(row).get(delta, ()):
                    successors[producer].append(delta * self.size + consumer - producer)
        return successors

    def _row(self, period: int) -> Row:
        if self.periods is not None and period >= self.periods:
            return self._no_edges
        return self._dependencies.waits(period, self.iterations)

    def _edges_by_delta(self, row: Row) -> dict[int, list[tuple[int, int]]]:
        """(producer, consumer) of the row's edges, by the number of periods between them."""
        edges = self._by_delta.get(id(row))
        if edges is None:
            edges = self._by_delta[id(row)] = {}
            for consumer, waits in enumerate(row):
                for edge in waits:
                    edges.setdefault(edge.delta, []).append((edge.index, consumer))
        return edges
