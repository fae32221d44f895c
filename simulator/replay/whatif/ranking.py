"""A ranked list of the changes that apply to a recording, each with its gain, and bounds on what any change of a kind can gain."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simulator.plan.task import COLLECTIVE
from simulator.predict.rule_records import record_of
from simulator.replay.compare import boundaries, counted_steps
from simulator.replay.diagnosis import HOST_PARTS
from simulator.replay.replay import Replay, simulated_times
from simulator.replay.steady import pace_s
from simulator.replay.whatif.edit import device_work
from simulator.replay.whatif.loader import batches_made
from simulator.replay.whatif.matching import kernel_classes
from simulator.replay.whatif.registry import UnreadableRuleError, apply_rules, parse, rule_name, rules
from traces import units
from traces.documents.replay_result import Part, RuleAnswer, StepPart
from traces.errors import SchedcastError
from traces.process import gc_paused


class TriedRule(NamedTuple):
    """A rule that the ranking tries, what it means, and a short name if the rule is a long one."""

    rule: str
    about: str
    label: str = ""


#: The most classes of kernels that are tried, if they take at least this share of the kernels' time.
CLASSES, LEAST_CLASS_SHARE = 4, 0.03
#: Seconds that a ranking may take; changes that are left then are named without an answer.
RANKING_S = 20.0
#: Two runs of one job differ by this share: published steps of ResNet-50 on a V100 (batch 128) take 342.4, 343.0, 344.5 and 352.0 ms.
RERUN = 0.01
#: A change of the step time below this share is none.
NO_GAIN = 1e-3
#: The device waits for the host if it does so for at least this share of the step.
HOST_BOUND = 0.05


@dataclass(frozen=True)
class RankedChanges:
    """`rows`: the changes, first those that address the verdict, then the largest gain first, then those that do not apply with the reason.
    `bounds`: likewise.

    `left_out`: the rules that were skipped for lack of time.
    """

    rows: tuple[RuleAnswer, ...]
    bounds: tuple[RuleAnswer, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Before:
    """A replay before a change: the seconds of its step, where they go, and what all questions about it share."""

    replay: Replay
    step_s: float
    diagnosis: Sequence[StepPart] = ()

    @cached_property
    def pace_s(self) -> float | None:
        """Seconds of a step in the long run (`replay.steady`)."""
        return pace_s(self.replay)

    @cached_property
    def of_host(self) -> bool:
        """Whether the host alone, between its recorded calls, takes as long as a step: then faster kernels wait for their launches.

        A wait of the host that was not recorded counts as its own time.
        """
        if self.pace_s is None:
            return False
        try:
            free = pace_s(apply_rules(self.replay, ["host free"])[0])
        except SchedcastError:
            return False
        return free is not None and free < (1 - NO_GAIN) * self.pace_s

    @cached_property
    def by_workers(self) -> bool:
        """Whether worker processes of the data loader set the pace."""
        return bool(batches_made(self.replay))

    def step_after_s(self, changed: Replay) -> float:
        """The step time after a change: what it is before, times the ratio of the two paces in the long run.

        A replay of one step, or of steps that repeat in no time, has no pace: its step is that of the simulation.
        """
        after = pace_s(changed) if self.pace_s else None
        return changed_step_s(changed) if not self.pace_s or after is None else self.step_s * after / self.pace_s


def rank_changes(
    before: Before, seconds: float = RANKING_S, clock: Callable[[], float] = time.monotonic, named: Part | None = None
) -> RankedChanges:
    """Answer every change that may apply, in `seconds` by `clock`. `named`: the verdict's part."""
    start = clock()
    left_out: list[str] = []

    def answers(changes: Iterable[TriedRule]) -> tuple[RuleAnswer, ...]:
        rows = []
        for change in changes:
            if clock() - start > seconds:
                left_out.append(change.rule)
            else:
                rows.append(answer_rule(before, change.rule, change.about, change.label))
        return tuple(sorted(rows, key=lambda row: (row.step_s is None, not _addresses(row, named), row.step_s)))

    with gc_paused():
        tried = [TriedRule(*each) for rule in rules() for each in rule.tried.items()]
        bounds = [TriedRule(*each) for rule in rules() for each in rule.bounds.items()]
        return RankedChanges(answers((*_changes_of(before), *tried)), answers(bounds), tuple(left_out))


def _addresses(answer: RuleAnswer, named: Part | None) -> bool:
    """Whether a rule with a gain is one against what the verdict names."""
    return named is not None and answer.reason is None and parse(answer.rule)[0].addresses is named


def _changes_of(before: Before) -> Iterator[TriedRule]:
    """Yield the changes that depend on the recording: of the largest classes of kernels, of communication, of workers that set the pace."""
    work = device_work(before.replay)
    classes = kernel_classes(work)
    total_s = sum(each.seconds for each in classes)
    for each in classes[:CLASSES]:
        if each.seconds >= LEAST_CLASS_SHARE * total_s > 0:
            share = units.percent(each.seconds / total_s, signed=False)
            yield TriedRule(f"kernel:/{each.pattern}/ 2x faster", f"{share} of the kernels' time", f"{each.name} 2x faster")
    if any(task.phase == COLLECTIVE and "nccl" in task.body.name.lower() for task in work):
        yield TriedRule("priority:/(?i:nccl)/=-1", "streams of collectives before others", "collectives first")
    if before.by_workers:
        yield TriedRule("loader 2x faster", "twice as many worker processes, or each twice as fast")


def answer_rule(before: Before, text: str, about: str = "", label: str = "") -> RuleAnswer:
    """Return the step time under one rule; without effect, the reason instead of a gain."""
    try:
        changed, assumptions = apply_rules(before.replay, [text])
        after_s = before.step_after_s(changed)
        rule, request = parse(text)
        others_s = [before.step_after_s(other) for other in rule.extremes(before.replay, request)] if rule.extremes else []
    except SchedcastError as error:
        reason = str(error).rpartition(" changes nothing: ")[2]  # without the rule's own text
        readable = not isinstance(error, UnreadableRuleError)
        return RuleAnswer(rule=text, label=label, about=about, step_s=None, gain_s=None, speedup=None, reason=reason, readable=readable)
    gain_s = before.step_s - after_s
    return RuleAnswer(
        rule=text,
        label=label,
        about=about,
        step_s=after_s,
        gain_s=gain_s,
        speedup=before.step_s / after_s if after_s > 0 else None,
        step_interval_s=((1 - RERUN) * min(after_s, *others_s), (1 + RERUN) * max(after_s, *others_s)) if others_s else None,
        reason=no_gain_reason(text, before.diagnosis, lambda: before.of_host, before.by_workers)
        if abs(gain_s) <= NO_GAIN * before.step_s
        else None,
        assumptions=tuple(assumptions),
        record=record_of(rule_name(text)),
    )


def changed_step_s(replay: Replay) -> float:
    """The simulated step time: the mean length of the iterations that count (`replay.compare`). Raises SchedcastError without any."""
    if not replay.steps:
        raise SchedcastError("nothing is left of the recorded steps")
    begin_s, end_s, steps = counted_steps(boundaries(replay, simulated_times(replay)))
    return (end_s - begin_s) / steps


def no_gain_reason(text: str, diagnosis: Sequence[StepPart], host_bound: Callable[[], bool], by_workers: bool = False) -> str:
    """Say why the rule has no effect on the step time, from where the time of the step goes.

    `host_bound`, `by_workers`: as `Before.of_host` and `Before.by_workers`.
    """
    shares: Mapping[Part, float] = {each.part: each.share for each in diagnosis}
    waiting = sum(shares.get(part, 0.0) for part in HOST_PARTS)
    waits = f"{units.percent(waiting, signed=False)} of the step"
    loading = shares.get(Part.LOADER, 0.0)
    if by_workers and not text.startswith("loader"):
        return f"the data loader's workers set the pace: the GPU waits for them {units.percent(loading, signed=False)} of the step"
    if text.startswith("cuda-graph") and waiting >= HOST_BOUND:
        return "host time between steps and synchronizations stays"
    if text.startswith("loader"):
        return f"the GPU waits for the data loader {units.percent(loading, signed=False)} of the step"
    if text.startswith(("host", "cuda-graph")):
        return f"the GPU waits for the host {waits}"
    unhidden = shares.get(Part.COMMUNICATION, 0.0)
    if text.startswith("network") and unhidden < waiting:
        return f"{units.percent(unhidden, signed=False)} of the step is communication not hidden; the GPU waits for the host {waits}"
    if waiting >= HOST_BOUND:
        return f"the host sets the pace: the GPU waits for it {waits}"
    if shares.get(Part.OTHER_RANK, 0.0) >= HOST_BOUND:
        return f"the slowest rank sets the pace: others wait {units.percent(shares[Part.OTHER_RANK], signed=False)} of the step"
    if host_bound():
        return "the host sets the pace: what it does between its recorded calls takes as long as a step"
    return "what it shortens is too short to matter, or runs beside longer work"
