"""The interleaved rounds of a validation.

In each round, a few steps of every program, of a second baseline (for the A/A spread) and of plain PyTorch run in turn. On an interleaved
testbed a program's keys are sampled just before its steps and just after them. A machine that speeds up or slows down then does so for the
steps and for the samples. If its speed changes within a second, as that of shared machines does, only the number of samples helps.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from calibrate.numerics import Numerics
from calibrate.testbed import Progress, Testbed, TimedLoop, drained_periods, units_in_round
from executors.in_turn import sample
from executors.measured import Measured
from executors.program import WARM_UP, Executable
from simulator.plan.plan import Plan
from traces.documents.profile import Profile

#: Rounds that count, as a rule and in a quick validation; each gives every program some step times.
ROUNDS, QUICK_ROUNDS = 10, 4
#: Steps of plain PyTorch in a round that do not count: other programs' data is in the caches, and the system may have taken back memory
#: that was free while they ran. Executors retain theirs.
SETTLING = 2
#: Rounds of each process of plain PyTorch. How much fresh memory a step takes from the system depends on the layout of a process's heap:
#: lenet5 with 256 images takes 3,500 to 7,500 pages in one process, none in another, and its steps differ by a factor of up to 2.
PROCESS_ROUNDS = 2


@dataclass
class Candidate:
    """One strategy in a validation: its plan, its program, and what was measured of it.

    `steps_s` are step times and `chunks` task times, both by round. `peak_bytes` is by device.
    """

    plan: Plan
    program: Executable
    numerics: Numerics | None = None
    peak_bytes: dict[str, int] = field(default_factory=dict)
    steps_s: list[list[float]] = field(default_factory=list)
    chunks: list[list[Measured]] = field(default_factory=list)

    @property
    def checked(self) -> Numerics:
        """`numerics`. Raises ValueError for a strategy whose numbers were not compared."""
        if self.numerics is None:
            raise ValueError(f"the numbers of {self.plan.strategy} were not compared")
        return self.numerics

    @cached_property
    def _drains(self) -> int:
        return drained_periods(self.plan, self.program.unit)

    def run(self, steps: int) -> None:
        """Run a chunk of steps. Its first step does not count, since it starts with other programs' data in the caches.

        Nor does the last one, a period more, if a plan's lanes run side by side: no later period runs beside it.
        """
        chunk = sample(self.program, steps + self._drains)
        times, steps_s = list(chunk.times), list(chunk.steps_s)
        if self._drains:
            steps_s.pop()
            last = max((item.period for item in times), default=0)
            times = [item for item in times if item.period < last]
        self.chunks.append(times)
        self.steps_s.append(steps_s)

    def step_s(self, rounds: Sequence[int]) -> float:
        """Median step time over the given rounds."""
        return statistics.median(s for r in rounds for s in self.steps_s[r])

    def by_round(self, rounds: Sequence[int]) -> list[list[float]]:
        return [self.steps_s[r] for r in rounds]

    def typical_times(self, rounds: Sequence[int]) -> list[Measured]:
        """Task times of the chunk whose last step (the one that pictures show) is nearest to the median.

        Where chunks have no task times, they come from an extra run.
        """
        if not self.chunks[rounds[0]]:
            return self.program.trace()
        median_s = self.step_s(rounds)
        return self.chunks[min(rounds, key=lambda r: abs(self.steps_s[r][-1] - median_s))]


@dataclass(frozen=True)
class RoundTimes:
    """What the rounds measured.

    `counted` are the numbers of the rounds that count, and `key_samples` of the key samples taken in them (sample 0 belongs to the
    warm-up); `loop_samples` are those of the keys of PyTorch's own loop. `disturbed` is how many rounds were disturbed, and `busy_share`
    the share of the machine that others took in those that count, on average; None if unknown. Seconds are those
    of the counted rounds: `plain_s` of plain PyTorch's steps by round, `others_s` the same of each of the other loops,
    `reference_in_steps_s` and `reference_in_samples_s` of the reference kernel during the baseline's steps and during key samples.
    """

    counted: list[int]
    key_samples: list[int]
    loop_samples: list[int]
    disturbed: int
    busy_share: float | None
    plain_s: list[list[float]]
    reference_in_steps_s: list[float]
    reference_in_samples_s: list[float]
    others_s: Sequence[list[list[float]]] = ()


def run_rounds(
    candidates: Sequence[Candidate],
    testbed: Testbed,
    plain: TimedLoop,
    progress: Progress,
    rounds: int = ROUNDS,
    sampled_for: Profile | None = None,
    loop: Plan | None = None,
    others: Sequence[tuple[Plan, TimedLoop]] = (),
) -> RoundTimes:
    """Warm up, then run rounds until `rounds` of them were undisturbed, or half as many again were run.

    The last candidate's plan must be the baseline's. If fewer than half of `rounds` rounds were undisturbed, all rounds count.
    `sampled_for`: the profile for which the rounds also sample keys, those of `loop` (the plan of PyTorch's own loop) included, and
    interference; None: they do not. `others`: PyTorch's loops in several processes, with their plans, which run after the plain one.
    """
    for candidate in candidates:
        sample(candidate.program, WARM_UP + candidate.program.unit)
    loops, loop_plans = [plain, *(each for _, each in others)], [plan for plan, _ in others]
    for each in loops:
        each.train(WARM_UP)
    testbed.reference_kernel_s()  # it is made and warms up now, not within the first round
    plans = [plan for candidate in candidates[:-1] for plan in candidate.plan.sequence]

    def sample_all(number: int) -> None:
        if sampled_for is not None:
            testbed.sample_interference(plans, sampled_for, number)
            if loop is not None:
                testbed.sample_loop_keys(loop, number)

    if sampled_for is not None:
        testbed.sample_keys([*plans, *loop_plans], 0)
    sample_all(0)
    total = rounds + 2
    undisturbed: list[int] = []
    busy_shares: list[float | None] = []
    loops_s: list[list[list[float]]] = [[] for _ in loops]
    reference_s: list[tuple[list[float], list[float]]] = []
    count = len(candidates)
    before = candidates[-1]
    for number in range(rounds + rounds // 2):
        if number and number % PROCESS_ROUNDS == 0:
            for each in loops:
                each.restart(WARM_UP)
        monitor = testbed.monitor()
        in_steps, in_samples = [], []
        for place in range(count):
            candidate = candidates[(number + place) % count]
            if sampled_for is not None:
                sampled = [*before.plan.sequence, *candidate.plan.sequence, *(loop_plans if not place else ())]
                in_samples += testbed.sample_keys(sampled, 1 + number * count + place)
            before = candidate
            known_s = candidate.steps_s[-1][-1] if number else math.inf
            candidate.run(units_in_round(testbed, known_s * candidate.program.unit) * candidate.program.unit)
            if candidate.plan is candidates[-1].plan:  # with other lanes than the baseline's, the kernel is slower without any drift
                in_steps += testbed.reference_kernel_s()
        reference_s.append((in_steps, in_samples))
        sample_all(1 + number)
        for each, own_s in zip(loops, loops_s, strict=True):
            own_s.append(each.train(testbed.plain_steps_per_round)[SETTLING:])
        conditions = monitor.stop()
        busy_shares.append(conditions.busy_share)
        if not conditions.rejected:
            undisturbed.append(number)
        progress(min(2 + number, total - 1), total, f"round {number + 1}")
        if len(undisturbed) >= rounds or (number + 1 >= rounds and len(undisturbed) >= rounds // 2):
            break
    progress(total, total, "done")
    counted = undisturbed if len(undisturbed) >= max(1, rounds // 2) else list(range(len(busy_shares)))
    return RoundTimes(
        counted,
        key_samples=[1 + r * count + place for r in counted for place in range(count)],
        loop_samples=[1 + r for r in counted],
        disturbed=len(busy_shares) - len(undisturbed),
        busy_share=_mean([busy_shares[r] for r in counted]),
        plain_s=[loops_s[0][r] for r in counted],
        reference_in_steps_s=[s for r in counted for s in reference_s[r][0]],
        reference_in_samples_s=[s for r in counted for s in reference_s[r][1]],
        others_s=[[own_s[r] for r in counted] for own_s in loops_s[1:]],
    )


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return statistics.fmean(known) if known else None
