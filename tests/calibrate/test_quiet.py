"""Waiting until other processes leave the machine alone."""

import subprocess
import sys
import time
from types import SimpleNamespace

import psutil

from calibrate.cpu.monitor import CoreTimes, CpuMonitor, Disturbance
from calibrate.testbeds import wait_until_quiet


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
