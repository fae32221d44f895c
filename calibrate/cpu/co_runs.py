"""Times cost keys on one CPU worker, alone and while another worker runs other keys.

The other worker runs the keys of one group in a loop, as a lane does, while this one takes a cold and a warm sample of each of its keys as
a calibration does. The two work on different tensors, as lanes do: with tensors in common, each worker would find in the shared cache what
the other has just read, and some ops would run faster beside others than alone. Times alone and beside others come from the same rounds:
the machine's speed changes from minute to minute, but the ratio of the two does not.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from calibrate.cpu.monitor import CpuMonitor, undisturbed_s
from calibrate.cpu.sampler import Sampler

#: Rounds that count; up to half as many again are added if some were disturbed.
ROUNDS = 8
#: After `BUDGET_S` seconds no further round begins, once there are at least `FEWEST`.
FEWEST, BUDGET_S = 3, 5.0


@dataclass
class KeyGroup:
    """Keys of one contention group, either fitted or held out, with their seconds by round.

    `alone_s` by key. `beside_s` by (key, group): the seconds of the key while the other worker ran keys of that group.
    """

    group: str
    held_out: bool
    keys: list[str]
    alone_s: dict[str, dict[int, float]] = field(default_factory=dict)
    beside_s: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)


def run_rounds(run_round: Callable[[int], None]) -> tuple[list[int], bool]:
    """Call `run_round` with the numbers of rounds.

    Returns the numbers of the rounds that count, and whether the machine was disturbed. If fewer than `FEWEST` rounds were undisturbed, all
    of them count.
    """
    quiet: list[int] = []
    begin = time.monotonic()
    number = 0
    while number < FEWEST or (number < ROUNDS + ROUNDS // 2 and len(quiet) < ROUNDS and time.monotonic() - begin < BUDGET_S):
        monitor = CpuMonitor()
        run_round(number)
        if not monitor.stop().rejected:
            quiet.append(number)
        number += 1
    return (quiet, False) if len(quiet) >= FEWEST else (list(range(number)), True)


def time_groups(sampler: Sampler, beside: Sampler, groups: Sequence[KeyGroup], pairs: set[tuple[str, str]], number: int) -> None:
    """Time every key alone and beside each group that it pairs with, as round `number`. `beside` has the same keys, with other tensors."""
    for group in groups:
        for key, seconds in _time_keys(sampler, beside, group.keys, [], number).items():
            group.alone_s.setdefault(key, {})[number] = seconds
        for other in groups:
            if (group.group, other.group) in pairs and other.held_out == group.held_out:
                for key, seconds in _time_keys(sampler, beside, group.keys, other.keys, number).items():
                    group.beside_s.setdefault((key, other.group), {})[number] = seconds


def _time_keys(sampler: Sampler, beside: Sampler, keys: Sequence[str], other_keys: Sequence[str], number: int) -> dict[str, float]:
    """Cold plus warm seconds of each key on one worker, while another worker runs `other_keys` of `beside` in a loop.

    The two workers swap places from one round `number` to the next.
    """
    workers = len(sampler.backend.workers.cores)
    timing_worker, other_worker = number % workers, (number + 1) % workers
    begun, over = threading.Event(), threading.Event()
    seconds: dict[str, float] = {}

    def work(worker: int) -> None:
        try:
            if worker == timing_worker:
                if other_keys:
                    begun.wait()
                for key in keys:
                    seconds[key] = sum(sampler.timed(key, undisturbed_s))
                return
            for i in count(number):
                beside.run(other_keys[i % len(other_keys)])
                begun.set()
                if over.is_set():
                    return
        finally:  # if either worker fails, the other one ends too
            begun.set()
            over.set()

    sampler.backend.workers.run(work, (timing_worker, other_worker) if other_keys else (timing_worker,))
    return seconds
