"""A timeline as a run to compare: the tasks of its steady period, and the time between them.

A timeline does not say what a task waited for. A task that starts later than the end of the task before it in its lane waited for the task
of another lane that was the last to end by then, if any ended in between. What is left is time between tasks: launches, the executor, or
something that is not in the timeline.
"""

from bisect import bisect_right

from simulator.predict.parts import LAUNCHES, part_of
from simulator.predict.waterfall import WAITING
from simulator.replay.diff.run import PYTHON, Node, Run
from simulator.replay.replay import LAUNCHING
from simulator.replay.replay import PYTHON as PYTHON_PHASE
from traces.documents.critical import TOLERANCE_S
from traces.documents.timeline import Span, Timeline

#: Terms of host threads' spans, which the timeline of a replay has.
_HOST_TERMS = {PYTHON_PHASE: PYTHON, LAUNCHING: LAUNCHES}


def run_of_timeline(timeline: Timeline, name: str) -> Run:
    """Return the steady period of a timeline; it counts from the begin of its window to the end."""
    begin_s, end_s = timeline.window_s
    spans = sorted(
        (span for span in timeline.window() if span.end_s > span.start_s or span.start_s >= begin_s),
        key=lambda span: (max(span.start_s, begin_s), span.end_s),
    )
    builder = _Builder(begin_s)
    for span in spans:
        builder.add(span, min(span.end_s, end_s))
    builder.close(end_s)
    steps = max(1, round((end_s - begin_s) / timeline.step_s))
    return Run(name, tuple(builder.nodes), steps, timeline.step_s, timeline, whole=True)


class _Builder:
    def __init__(self, begin_s: float):
        self.nodes: list[Node] = []
        self._begin_s = begin_s
        self._lane_end_s: dict[tuple[str, str], float] = {}
        self._ends: list[tuple[float, int]] = []  # of the spans so far, in order of their ends

    def add(self, span: Span, end_s: float) -> None:
        """Add a span, clipped to the period, and the time for which it waited."""
        lane = (span.device, span.lane)
        reached_s = self._lane_end_s.get(lane, self._begin_s)
        start_s = max(span.start_s, reached_s)
        if start_s > reached_s + TOLERANCE_S:
            source, ended_s = self._last_ended(start_s)
            waits = (source,) if ended_s > reached_s else ()
            self._wait(f"before {span.task}", lane, start_s - max(reached_s, ended_s), waits)
        label = f"{span.layer}, {span.phase}" if span.layer else span.task
        names = (span.task, f"{span.phase} {span.layer}", span.phase)
        term = _HOST_TERMS.get(span.phase) or part_of(span.phase)
        end_s = max(start_s, end_s)
        self.nodes.append(Node(names, label, term, lane, end_s - start_s))
        self._lane_end_s[lane] = end_s
        at = bisect_right(self._ends, (end_s, len(self.nodes)))
        self._ends.insert(at, (end_s, len(self.nodes) - 1))

    def close(self, end_s: float) -> None:
        """Add the time from the end of the last task to the end of the period."""
        last_s = max(self._lane_end_s.values(), default=self._begin_s)
        after = tuple({node.lane: index for index, node in enumerate(self.nodes)}.values())
        self._wait("the end of the period", ("", "period"), end_s - last_s, after)

    def _wait(self, name: str, lane: tuple[str, str], seconds: float, after: tuple[int, ...]) -> None:
        self.nodes.append(Node((name,), name, WAITING, lane, max(0.0, seconds), after))

    def _last_ended(self, by_s: float) -> tuple[int, float]:
        at = bisect_right(self._ends, (by_s + TOLERANCE_S, len(self.nodes)))
        if not at:
            return -1, float("-inf")
        ended_s, index = self._ends[at - 1]
        return index, min(ended_s, by_s)
