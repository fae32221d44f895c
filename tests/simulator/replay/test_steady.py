"""The pace of a replay in the long run, against recordings that are repeated many times, and what rules do to it."""

from dataclasses import replace

import pytest

from simulator.plan.task import Resource
from simulator.replay.replay import RecordedStep, Replay, simulated_times
from simulator.replay.steady import pace_s
from simulator.replay.whatif.edit import with_tasks
from simulator.replay.whatif.ranking import Before, answer_rule, changed_step_s
from tests.support.small_replays import host, launched, random_recording, recording

#: Every rule that shortens durations and changes nothing else.
SHORTENING = ("kernel:/gemm/ 2x faster", "kernel:/./ free", "host 2x faster", "host free", "network 2x faster", "network free")


def steps_of(*names: str) -> tuple[RecordedStep, ...]:
    return tuple(RecordedStep(f"step {number}", name, name, 0.0) for number, name in enumerate(names))


def repeated_step_s(replay: Replay, times: int) -> float:
    """The mean step of the second half of a run in which the steps after the first are executed so many times."""
    tasks = replay.plan.tasks
    names = [task.name for task in tasks]
    first, last = names.index(replay.steps[0].last_task) + 1, names.index(replay.steps[-1].last_task) + 1
    before, body = tasks[:first], tasks[first:last]
    lane_of = {task.name: task.lane for task in tasks}
    unrolled = list(before)
    for number in range(times):
        own = {task.name for task in body}
        copies = []
        for task in body:
            after = []
            for name in task.after:
                if name in own:
                    after.append(f"{name}@{number}")
                elif number == 0:
                    after.append(name)
                else:
                    in_lane = [each.name for each in before if each.lane == lane_of[name]]
                    here = [each.name for each in body if each.lane == lane_of[name]]
                    place = len(in_lane) - in_lane.index(name)
                    if here:
                        after.append(f"{here[-min(place, len(here))]}@{number - 1}")
            copies.append(replace(task, name=f"{task.name}@{number}", after=tuple(after)))
        unrolled += copies
    times_s = simulated_times(with_tasks(replay, unrolled))
    on_device = {task.name for task in body if task.body.resource is not Resource.HOST}

    def end_s(copies: int) -> float:
        return max(
            end for name, (_, end) in times_s.items() if name.split("@")[0] in on_device and int(name.partition("@")[2] or 0) < copies
        )

    half = times // 2
    return (end_s(times) - end_s(half)) / (times - half) / (len(replay.steps) - 1)


def test_the_slower_of_host_and_device_sets_the_pace():
    """The device is behind the host when the first step ends, and not when the last does."""
    for kernel_s, pace in ((2.0, 3.0), (8.0, 8.0)):
        tasks = [[host(f"python {n}", 2.0, label="gap"), *launched(f"k{n}", kernel_s if n else 9.0)] for n in range(4)]
        assert pace_s(recording(*tasks, steps=steps_of("k0", "k1", "k2", "k3"))) == pace


def test_a_faster_kernel_of_a_job_that_waits_for_its_host_is_no_loss():
    """From the end of the first step to that of the last there is 1 s more if the first kernel ends earlier, which says nothing."""
    tasks = [[host(f"python {n}", 4.0, label="gap"), *launched(f"gemm{n}", 6.0 if n == 0 else 1.0)] for n in range(4)]
    replay = recording(*tasks, steps=steps_of(*(f"gemm{n}" for n in range(4))))
    answer = answer_rule(Before(replay, changed_step_s(replay)), "kernel:/gemm/ 2x faster")
    assert answer.speedup == 1.0
    assert answer.reason is not None


def test_a_circuit_through_a_wait_counts():
    """The host waits for the kernel before it goes on, so that both add up."""
    tasks = [[*launched(f"k{n}", 5.0), host(f"sync {n}", 0.5, after=f"k{n}")] for n in range(3)]
    assert pace_s(recording(*tasks, steps=steps_of("k0", "k1", "k2"))) == 6.5


def test_a_wait_for_a_task_of_the_step_before():
    """Each kernel of stream 8 waits for the one before it on stream 7, and the host for that of stream 8 one step before."""
    tasks = []
    for n in range(4):
        earlier = f"b{n - 1}" if n else ""
        tasks.append([host(f"wait {n}", 1.0, after=earlier), *launched(f"a{n}", 3.0), *launched(f"b{n}", 2.0, after=f"a{n}", stream=8)])
    assert pace_s(recording(*tasks, steps=steps_of("b0", "b1", "b2", "b3"))) == 7.0  # wait 1, launch 1, a 3, b 2


def test_a_thread_that_launches_nothing_does_not_set_the_pace():
    tasks = [[*launched(f"k{n}", 2.0), host(f"watch {n}", 50.0, thread=1)] for n in range(3)]
    assert pace_s(recording(*tasks, steps=steps_of("k0", "k1", "k2"))) == 2.0


def test_one_step_has_no_pace():
    assert pace_s(recording(launched("k", 1.0), steps=steps_of("k"))) is None


def several_steps(seed: int) -> Replay:
    return next(replay for replay in map(random_recording, range(1000 * seed, 1000 * seed + 1000)) if len(replay.steps) > 1)


@pytest.mark.parametrize("seed", range(12))
def test_the_pace_is_that_of_a_long_run(seed):
    replay = several_steps(seed)
    assert pace_s(replay) == pytest.approx(repeated_step_s(replay, 80), rel=1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(40))
def test_a_rule_that_only_shortens_is_never_a_loss(seed):
    replay = several_steps(seed)
    before = Before(replay, changed_step_s(replay))
    speedups = {rule: answer_rule(before, rule).speedup for rule in SHORTENING}
    assert all(speedup is None or speedup >= 1 - 1e-9 for speedup in speedups.values()), speedups
