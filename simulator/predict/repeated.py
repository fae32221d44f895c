"""The step of a plan that omits microbatches (`Repeat`), computed from one group of microbatches that repeats.

Two groups of p microbatches precede the last microbatch in such a plan. If every lane runs the same in the second group as in the first
one, later by one time s, the engine is in the same state as one group earlier, p microbatches further on. It then continues in the same way
for every omitted group. With k omitted groups of s seconds each, the step takes k · s longer than the plan, and its parts, busy times and
sources of error are those of the plan plus k times those of the group.

If transfers of stages meet at different moments each time, no group is exactly like another. Then it is enough that every device begins its
microbatches at the same intervals as the first device, within a thousandth, in each of the two groups: the step may be wrong by that much.

This is true of lanes that wait for each other. What runs ahead of them (inputs that are fetched, a host that issues tasks) must not take
longer for a group than the group does, because the others would wait for it in the end. If it does, or if no group repeats another, the
plan with all microbatches has to be predicted.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise, product

from simulator.engine.steady import EQUAL
from simulator.engine.summary import summarize
from simulator.plan.plan import Plan
from simulator.plan.repeat import fetches_input
from simulator.plan.task import FORWARD, Repeat
from traces.documents.timeline import Span, Timeline

#: How much the times of two groups may differ, as a share of a group's, where none repeats another exactly.
NEARLY = 1e-3


@dataclass(frozen=True)
class Group:
    """The last group of microbatches before the last one. `timeline`: of the step, with the group as its window and the group's spans.

    `count`: the number of omitted groups.
    """

    plan: Plan
    timeline: Timeline
    count: float

    @property
    def seconds(self) -> float:
        """Seconds of the group."""
        return self.timeline.step_s

    @cached_property
    def begun(self) -> Timeline:
        """The timeline with the spans that begin in the group: every task of a group once."""
        start_s, end_s = self.timeline.window_s
        return replace(self.timeline, spans=tuple(span for span in self.timeline.spans if start_s <= span.start_s < end_s))

    @cached_property
    def tasks(self) -> frozenset[str]:
        """The names of the tasks of the group."""
        return frozenset(span.task for span in self.begun.spans)

    def whole(self, shown: Timeline) -> Timeline:
        """The timeline that is `shown`, with the step time, busy shares, bubble and exposed transfers of the whole step."""
        group = summarize(self.plan, self.timeline.spans, self.timeline.window_s, 1, {})
        own = summarize(self.plan, shown.spans, shown.window_s, _steps(shown), {})
        exposed_s = {name: own.exposed_s.get(name, 0.0) + self.count * group.exposed_s.get(name, 0.0) for name in self.plan.devices}
        step_s = shown.step_s + self.count * self.seconds
        busy_s = {use.name: self.count * self.seconds * use.busy_share for use in group.devices}
        uses = [replace(use, busy_share=(use.busy_share * shown.step_s + busy_s[use.name]) / step_s) for use in shown.devices]
        return replace(
            shown,
            step_s=step_s,
            devices=tuple(uses),
            bubble_share=1.0 - sum(use.busy_share for use in uses) / len(uses),
            exposed_transfer_s=max(exposed_s.values()),
        )


def repeated_group(plan: Plan, timeline: Timeline, issue_s: Sequence[Mapping[str, float]]) -> Group | None:
    """The group of a plan that omits microbatches, in its timeline; None if nothing is known to repeat itself.

    `issue_s`: by host, what it spends on each task, by name.
    """
    repeat = plan.repeat
    if repeat is None:
        return None
    by_device = _starts(repeat, timeline)
    starts_s = by_device.get(plan.devices[0], [])
    if _is_periodic(timeline) and len(starts_s) == repeat.shown:
        spans = _by_lane(plan, timeline, starts_s)
        periods = [period for period in range(1, repeat.period + 1) if repeat.period % period == 0]
        exactly, nearly = partial(_repeats, spans), partial(_nearly_repeats, by_device.values())
        for repeats, period in product((exactly, nearly), periods):
            times_s = [starts_s[repeat.shown - 1 - back * period] for back in (2, 1, 0)]
            if times_s[0] >= timeline.window_s[0] and repeats(times_s, period):
                group = _group(plan, timeline, repeat, times_s, period)
                if _keeps_up(group, repeat, timeline, issue_s, period):
                    return group
    return None


def _steps(timeline: Timeline) -> int:
    """How many steps the window has."""
    begin_s, end_s = timeline.window_s
    return max(1, round((end_s - begin_s) / timeline.step_s)) if timeline.step_s else 1


def _is_periodic(timeline: Timeline) -> bool:
    """Whether the steps of the window repeat themselves, so that one of them says how long all are: not so if a long run says it."""
    (begin_s, end_s), steps = timeline.window_s, _steps(timeline)
    return timeline.settled and abs(end_s - begin_s - steps * timeline.step_s) <= 4 * steps * EQUAL * end_s


def _starts(repeat: Repeat, timeline: Timeline) -> dict[str, list[float]]:
    """By device, when it begins each microbatch in the last step of the window."""
    end_s = timeline.window_s[1]
    last = max(span.period for span in timeline.spans if abs(span.end_s - end_s) <= EQUAL * end_s)
    starts_s: dict[str, dict[int, float]] = defaultdict(dict)
    for span in timeline.spans:
        if span.period == last and span.phase == FORWARD:
            starts_s[span.device].setdefault(span.microbatch, span.start_s)
    return {device: [own[number] for number in sorted(own)] for device, own in starts_s.items()}


def _nearly_repeats(by_device: Iterable[Sequence[float]], times_s: Sequence[float], period: int) -> bool:
    """Whether each device begins its last microbatches as far apart as the first device, whose `times_s` these are."""
    group_s = times_s[2] - times_s[1]
    return all(
        len(own) > 2 * period
        and all(abs(later_s - start_s - group_s) <= NEARLY * group_s for start_s, later_s in pairwise(own[-1 - 2 * period :: period]))
        for own in by_device
    )


def _by_lane(plan: Plan, timeline: Timeline, starts_s: Sequence[float]) -> dict[tuple[str, str], list[Span]]:
    """The spans of each lane near the last microbatches, but for those that fetch inputs, of all microbatches one after another."""
    fetching = _fetching(plan)
    lanes: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if span.end_s >= starts_s[0] and span.start_s <= starts_s[-1] and span.task not in fetching:
            lanes[span.device, span.lane].append(span)
    return lanes


def _fetching(plan: Plan) -> frozenset[str]:
    """The tasks that copy inputs to devices."""
    return frozenset(task.name for task in plan.tasks if fetches_input(plan, task))


def _repeats(lanes: Mapping[tuple[str, str], Sequence[Span]], times_s: Sequence[float], period: int) -> bool:
    """Whether every lane does between the second and the third of `times_s` what it does between the first and the second, on later
    microbatches.
    """
    first_s, second_s, third_s = times_s
    later_s, equal_s = third_s - second_s, 2 * EQUAL * third_s
    if abs(second_s - first_s - later_s) > equal_s:
        return False
    for spans in lanes.values():
        before, after = (
            [span for span in spans if span.end_s > begin_s + equal_s and span.start_s < end_s - equal_s]
            for begin_s, end_s in ((first_s, second_s), (second_s, third_s))
        )
        if len(before) != len(after):
            return False
        for one, other in zip(before, after, strict=True):
            alike = (one.phase, one.layer) == (other.phase, other.layer) and other.microbatch - one.microbatch in (0, period)
            if not alike or any(abs(b - a - later_s) > equal_s for a, b in ((one.start_s, other.start_s), (one.end_s, other.end_s))):
                return False
    return True


def _group(plan: Plan, timeline: Timeline, repeat: Repeat, times_s: Sequence[float], period: int) -> Group:
    _, start_s, end_s = times_s
    within = replace(
        timeline,
        window_s=(start_s, end_s),
        step_s=end_s - start_s,
        spans=tuple(span for span in timeline.spans if span.end_s > start_s and span.start_s < end_s),
    )
    return Group(plan, within, repeat.count / period)


def _keeps_up(group: Group, repeat: Repeat, timeline: Timeline, issue_s: Sequence[Mapping[str, float]], period: int) -> bool:
    """Whether what runs ahead of the others takes no longer for a group than the group does."""
    most_s = group.seconds * (1 + EQUAL)
    if any(sum(own.get(task, 0.0) for task in group.tasks) > most_s for own in issue_s):
        return False
    fetching = _fetching(group.plan)
    copying_s: dict[tuple[str, str], float] = defaultdict(float)
    for span in {span.task: span for span in timeline.spans if span.task in fetching}.values():
        copying_s[span.device, span.lane] += (span.end_s - span.start_s) * period / (repeat.shown + repeat.count)
    return all(seconds <= most_s for seconds in copying_s.values())
