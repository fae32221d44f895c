"""The order of a validation's rounds: every program's keys are sampled just before and just after its steps.

And waiting until other processes leave the machine alone.
"""

import math
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from calibrate.cpu.monitor import CoreTimes, CpuMonitor, Disturbance
from calibrate.rounds import Candidate, run_rounds
from calibrate.testbed import no_progress, units_in_round
from calibrate.testbeds import wait_until_quiet
from executors.measured import ChunkTimes, Measured
from executors.program import WARM_UP
from simulator.plan.plan import Plan
from tests.support.tiny import build, task


class Machine:
    """A machine whose time passes only while somebody sleeps. `shares`: what others take in each look; the last one stays."""

    def __init__(self, *shares: float | None):
        self.shares, self.now, self.looks, self.said = list(shares), 0.0, 0, []

    def monitor(self):
        share = self.shares[min(self.looks, len(self.shares) - 1)]
        self.looks += 1
        return SimpleNamespace(stop=lambda: SimpleNamespace(busy_share=share))

    def sleep(self, seconds: float):
        self.now += seconds

    def wait(self, seconds: float) -> float | None:
        return wait_until_quiet(self.monitor, seconds, lambda *said: self.said.append(said), lambda: self.now, self.sleep)


def test_without_a_wait_there_is_one_look():
    machine = Machine(0.46)
    assert (machine.wait(0), machine.looks, machine.said) == (0.46, 1, [])


def test_the_wait_ends_when_the_others_do():
    machine = Machine(0.5, 0.46, 0.08)
    assert machine.wait(60) == 0.08
    assert machine.looks == 3
    assert machine.said[-1] == (1, 60, "others take 46 % of the machine")


def test_the_wait_ends_although_the_others_do_not():
    machine = Machine(0.5)
    assert machine.wait(3) == 0.5
    assert machine.now == 3.0


def test_a_machine_that_nobody_can_watch_is_not_waited_for():
    assert Machine(None).wait(60) is None


def test_shares_of_the_cores_are_those_of_others():
    """In 10 s on 4 cores: 8 s are stolen, and others use 25 - 5 of the busy 25 s."""
    before = CoreTimes(steal_s=100.0, busy_s=1000.0, own_s=50.0, now_s=0.0, cores=4)
    after = CoreTimes(steal_s=108.0, busy_s=1025.0, own_s=55.0, now_s=10.0, cores=4)
    assert before.until(after) == Disturbance(steal=0.2, foreign=0.5)
    assert before.until(after).busy_share == 0.7
    assert after.until(after) == Disturbance(0.0, 0.0)


def test_a_process_that_spins_is_seen_unless_it_is_a_child():
    """The same process, once as somebody else's and once as a child: only the first counts, whatever else runs on this machine."""
    spinning = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        spinning.stdout.readline()
        foreign, own = CpuMonitor(own_s=lambda: 0.0), CpuMonitor()
        while sum(psutil.Process(spinning.pid).cpu_times()[:2]) < 0.3:
            time.sleep(0.05)
        assert foreign.stop().foreign > own.stop().foreign
    finally:
        spinning.kill()
        spinning.wait()
        spinning.stdout.close()


class RecordingTestbed:
    """A testbed on which nothing takes time. `events`: steps of programs ("run owt") and samples of keys ("sample owt+baseline")."""

    units_per_round, round_s, plain_steps_per_round = 1, math.inf, 1

    def __init__(self):
        self.events: list[str] = []
        self.numbers: list[int] = []

    def sample_keys(self, plans, number):
        self.events.append("sample " + "+".join(plan.strategy for plan in plans))
        self.numbers.append(number)
        return []

    def sample_interference(self, plans, profile, number):
        self.events.append("interference " + "+".join(plan.strategy for plan in plans))

    def sample_loop_keys(self, loop, number):
        self.events.append(f"sample {loop.strategy}")

    def train(self, steps):
        """As plain PyTorch."""
        self.events.append("run pytorch")
        return [1.0] * (steps + 1)

    def restart(self, warm_up):
        self.events.append("restart pytorch")
        self.train(warm_up)

    def reference_kernel_s(self):
        self.events.append("reference kernel")
        return []

    def monitor(self):
        return SimpleNamespace(stop=lambda: SimpleNamespace(rejected=False, busy_share=0.0))

    def program(self, name: str) -> SimpleNamespace:
        def run(steps: int) -> ChunkTimes:
            self.events.append(f"run {name}")
            return ChunkTimes((1.0,) * steps, ())

        return SimpleNamespace(unit=1, run=run)


def rounds_of(testbed: RecordingTestbed, rounds: int = 2, **options):
    plans = [Plan(name, (), {}, {}) for name in ("baseline", "owt")]
    candidates = [Candidate(plan, testbed.program(plan.strategy)) for plan in (*plans, plans[0])]
    return run_rounds(candidates, testbed, testbed, no_progress, rounds, **options)


def test_keys_of_a_program_are_sampled_before_and_after_its_steps():
    testbed = RecordingTestbed()
    rounds_of(testbed, sampled_for=SimpleNamespace(), loop=SimpleNamespace(strategy="pytorch"))
    begin = testbed.events.index("sample pytorch") + 1  # after the warm-up
    end = testbed.events.index("run pytorch", begin)
    assert testbed.events[begin : end + 1] == [
        "sample baseline+baseline", "run baseline", "reference kernel", "sample baseline+owt", "run owt", "sample owt+baseline",
        "run baseline", "reference kernel",
        "interference baseline+owt", "sample pytorch", "run pytorch",
    ]  # fmt: skip
    assert testbed.events[end + 1 : end + 3] == ["sample baseline+owt", "run owt"], "the next round begins with the next program"


def test_only_samples_of_the_rounds_count():
    testbed = RecordingTestbed()
    times = rounds_of(testbed, sampled_for=SimpleNamespace())
    assert testbed.numbers == [0, 1, 2, 3, 4, 5, 6]
    assert times.key_samples == [1, 2, 3, 4, 5, 6]


def test_without_sampling_only_programs_run():
    testbed = RecordingTestbed()
    rounds_of(testbed, loop=SimpleNamespace(strategy="pytorch"))
    assert {event.partition(" ")[0] for event in testbed.events} == {"run", "reference"}


def test_the_reference_kernel_runs_before_the_first_round():
    testbed = RecordingTestbed()
    rounds_of(testbed)
    assert testbed.events[:7] == [
        "run baseline",
        "run owt",
        "run baseline",
        "run pytorch",
        "reference kernel",
        "run baseline",
        "reference kernel",
    ]


def test_plain_pytorch_has_a_new_process_in_every_other_round():
    """The memory that one process happens to get decides the length of its steps."""
    testbed = RecordingTestbed()
    rounds_of(testbed, rounds=5)
    plain = [event for event in testbed.events if event.endswith("pytorch")]
    warm_up_and_two_rounds = ["run pytorch"] * 3
    last = ["run pytorch"] * 2
    assert plain == [*warm_up_and_two_rounds, "restart pytorch", *warm_up_and_two_rounds, "restart pytorch", *last]


def test_if_all_rounds_were_disturbed_all_count():
    testbed = RecordingTestbed()
    testbed.monitor = lambda: SimpleNamespace(stop=lambda: SimpleNamespace(rejected=True, busy_share=0.5))
    assert rounds_of(testbed, rounds=1).counted == [0]
    assert rounds_of(testbed, rounds=2).counted == [0, 1, 2]


def test_a_program_runs_fewer_units_in_a_round_if_they_take_long_but_two_at_least():
    testbed = SimpleNamespace(units_per_round=6, round_s=0.3)
    assert [units_in_round(testbed, unit_s) for unit_s in (0.01, 0.09, 0.12, 1.0)] == [6, 4, 3, 2]
    assert units_in_round(SimpleNamespace(units_per_round=3, round_s=math.inf), 100.0) == 3


def test_units_follow_from_the_round_before_since_a_warm_up_of_one_graph_has_no_step_times():
    testbed = RecordingTestbed()
    testbed.units_per_round, testbed.round_s = 6, 3.0
    asked = []

    def run(steps: int) -> ChunkTimes:
        asked.append(steps)
        return ChunkTimes((1.0,) * (steps // 4 - 1), ())

    run_rounds([Candidate(Plan("baseline", (), {}, {}), SimpleNamespace(unit=4, run=run))], testbed, testbed, no_progress, 2)
    assert asked == [WARM_UP + 4, 2 * 4, 2 * 4]


@pytest.mark.parametrize(("streams", "unit", "asked", "counted"), [((0, 0), 1, 3, 2), ((0, 1), 1, 4, 2), ((0, 1), 3, 3, 2)])
def test_the_last_period_of_lanes_side_by_side_is_a_drain_that_does_not_count(streams, unit, asked, counted):
    """Three periods of two tasks each: lanes that run side by side get a fourth one. Graphs drain at their end anyway."""
    plan, _ = build(*(task(f"t{number}", 1.0, stream=stream) for number, stream in enumerate(streams)))
    runs = []

    def run(steps: int) -> ChunkTimes:
        runs.append(steps)
        times = [Measured(index, period, period, period + 1.0, 0) for period in range(5, 5 + steps) for index in range(2)]
        return ChunkTimes((1.0,) * (steps - 2) + (0.5,), tuple(times))

    candidate = Candidate(plan, SimpleNamespace(unit=unit, run=run))
    candidate.run(3)
    assert runs == [asked]
    assert len(candidate.steps_s[0]) == counted
    assert {item.period for item in candidate.chunks[0]} == {5, 6, 7}
    assert (0.5 in candidate.steps_s[0]) == (asked == 3), "only a drain is shorter"
