"""The timeline and the step time of a run that goes from one plan to another, from simulations of each.

Let plan i be followed for n_i of the n iterations. Its steady period takes p_i seconds, and once its last iteration has begun, completing
all of them takes another d_i. So the first plan takes n_1 · p_1 + d_1, and the next one begins when it ends. The last plan counts to the
end of its last period only, as the plan of a run that has no other does. So

    step = (n_1 · p_1 + d_1 + n_2 · p_2) / n

The periods in which a pipeline fills count as whole ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from simulator.plan.plan import Plan
from traces.documents.timeline import CriticalSpan, DeviceUse, HeldByKind, Span, Timeline


@dataclass(frozen=True)
class Simulated:
    """A plan of the run. `steady`: its simulation to the steady state. `short`: that of `shown_iterations(plan)` iterations, which are then
    completed. `last`: whether the run ends with it.
    """

    plan: Plan
    steady: Timeline
    short: Timeline
    last: bool = False

    @property
    def iterations(self) -> int:
        """How many iterations the run follows the plan for; 1 if the plan does not say."""
        return self.plan.iterations or 1

    @property
    def drain_s(self) -> float:
        """Seconds from the end of the period in which the last iteration begins until all iterations are complete."""
        return 0.0 if self.last else sum(self.short.period_lengths_s[shown_iterations(self.plan) :])

    @property
    def seconds(self) -> float:
        """Seconds of all its iterations."""
        return self.iterations * self.steady.step_s + self.drain_s

    @property
    def at_switch(self) -> Timeline:
        """`short`, with its last period and the drain as the window; of the last plan the first period."""
        lengths = self.short.period_lengths_s
        window_s = (0.0, lengths[0]) if self.last else (sum(lengths[: shown_iterations(self.plan) - 1]), sum(lengths))
        return replace(self.short, window_s=window_s)


def phases(run: Sequence[Simulated]) -> tuple[tuple[int, float], ...]:
    """By plan: its first iteration, and the mean seconds of its iterations, the drain included."""
    firsts = accumulate((own.iterations for own in run[:-1]), initial=0)
    return tuple((first, own.seconds / own.iterations) for first, own in zip(firsts, run, strict=True))


def shown_iterations(plan: Plan) -> int:
    """Iterations of a plan that a timeline shows: enough for a full period and the one after it, if the run has that many of it."""
    return min(plan.iterations or 1, plan.largest_lag + 2)


def weights(run: Sequence[Simulated]) -> list[float]:
    """By plan, the number by which to multiply what belongs to a steady step of it, so that the sums are those of the run's step."""
    iterations = sum(own.iterations for own in run)
    return [own.seconds / own.steady.step_s / iterations if own.steady.step_s else 0.0 for own in run]


def switching(run: Sequence[Simulated], timelines: Sequence[Timeline]) -> Timeline:
    """The run's timeline: the last periods before each switch, the drain, and the first ones after it.

    It has the run's step time, and the busy shares, bubble and exposed transfers of the whole run. `timelines`: those `at_switch`.
    """
    iterations = sum(own.iterations for own in run)
    step_s = sum(own.seconds for own in run) / iterations
    names = list(dict.fromkeys(device for own in run for device in own.plan.devices))
    busy_s, peak_bytes = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    for own in run:
        for timeline in (own.steady, own.short):
            for use in timeline.devices:
                peak_bytes[use.name] = max(peak_bytes[use.name], use.peak_bytes)
        for use in own.steady.devices:
            busy_s[use.name] += own.iterations * use.busy_share * own.steady.step_s
    shares = {name: busy_s[name] / (iterations * step_s) if step_s else 0.0 for name in names}
    exposed_s = (weight * own.steady.exposed_transfer_s for weight, own in zip(weights(run), run, strict=True))
    return replace(
        one_after_another(timelines),
        step_s=step_s,
        devices=tuple(DeviceUse(name, shares[name], peak_bytes[name]) for name in names),
        bubble_share=1.0 - sum(shares.values()) / len(names) if step_s else 0.0,
        exposed_transfer_s=sum(exposed_s),
        settled=all(own.steady.settled for own in run),
    )


def one_after_another(timelines: Sequence[Timeline]) -> Timeline:
    """Timelines of the plans of one run as one: each begins, with new periods and iterations, when the one before has ended.

    The window reaches from the start of the first one's window to the end of the last one's. Other quantities are the first one's.
    """
    first, last = timelines[0], timelines[-1]
    spans: list[Span] = []
    path: list[CriticalSpan] = []
    lengths: list[float] = []
    memory: dict[str, list[tuple[float, int]]] = {}
    kinds: dict[str, list[tuple[float, HeldByKind]]] = {}
    start_s, period, iteration = 0.0, 0, 0
    for timeline in timelines:
        until_s = start_s + timeline.window_s[1]
        for span in timeline.spans:
            later = replace(span, start_s=span.start_s + start_s, end_s=span.end_s + start_s)
            spans.append(replace(later, iteration=span.iteration + iteration, period=span.period + period))
        within = [each for each in timeline.critical_path if each.end_s > timeline.window_s[0] and each.start_s < timeline.window_s[1]]
        path += [replace(each, start_s=each.start_s + start_s, end_s=each.end_s + start_s) for each in within]
        for device, steps in timeline.memory.items():
            memory.setdefault(device, []).extend((time_s + start_s, held) for time_s, held in steps)
        for device, held in timeline.memory_kinds.items():
            kinds.setdefault(device, []).append((start_s, held))
        lengths += timeline.period_lengths_s
        start_s = max([until_s, *(span.end_s for span in spans)])
        period = 1 + max((span.period for span in spans), default=-1)
        iteration = 1 + max((span.iteration for span in spans), default=-1)
    return replace(
        first,
        spans=tuple(spans),
        window_s=(first.window_s[0], until_s),
        critical_path=tuple(path),
        memory={device: tuple(steps) for device, steps in memory.items()},
        memory_kinds={device: _joined(held) for device, held in kinds.items()},
        limits_bytes=first.limits_bytes | last.limits_bytes,
        period_lengths_s=tuple(lengths),
    )


def _joined(parts: Sequence[tuple[float, HeldByKind]]) -> HeldByKind:
    """Bytes by kind of several timelines on one axis. `parts`: with the second at which each begins."""
    kinds = dict.fromkeys(kind for _, held in parts for kind in held.held_bytes)
    return HeldByKind(
        tuple(time_s + start_s for start_s, held in parts for time_s in held.time_s),
        {kind: tuple(n for _, held in parts for n in held.held_bytes.get(kind, (0,) * len(held.time_s))) for kind in kinds},
    )
