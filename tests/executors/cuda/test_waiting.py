"""The wait for the GPU: it ends with the work, reports what never ends, and Ctrl-C ends it."""

import logging
import os
import re
import signal
import threading

import pytest
import torch

from executors.cuda import torch_driver
from executors.cuda.backend import CudaBackend
from executors.cuda.driver import GpuStalledError
from executors.cuda.program import FIRST_WAIT_S, LEAST_WAIT_S
from executors.cuda.torch_driver import PATIENCE_S, wait_until
from executors.tensors import job_tensors
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from tests.fake_gpu import FakeGpu, Times
from tests.support.fake_cuda import Stream, Torch
from tests.support.jobs import MLP, planned


class Clock:
    """A clock that each pause advances by `step_s`."""

    def __init__(self, step_s: float):
        self.now_s, self.step_s = 0.0, step_s

    def pause(self, _seconds: float) -> None:
        self.now_s += self.step_s

    def read(self) -> float:
        self.now_s += 1e-4
        return self.now_s


def test_a_wait_that_takes_very_long_is_reported_each_time_it_has_doubled(caplog):
    clock, asked = Clock(PATIENCE_S / 10), []
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: clock.now_s > 5 * PATIENCE_S, lambda: asked.append(1) or "plan p", clock.read, clock.pause)
    assert caplog.messages[0] == "the GPU has not finished after 60 s, with plan p in flight; Ctrl-C ends the wait"
    assert len(caplog.messages) == len(asked) == 3


def test_short_waits_are_not_reported(caplog):
    clock = Clock(0.1)
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: clock.now_s > PATIENCE_S / 2, None, clock.read, clock.pause)
    assert caplog.messages == []


def test_ctrl_c_ends_a_wait_for_a_gpu_that_never_finishes():
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        wait_until(lambda: False)


def test_the_driver_asks_its_streams_before_it_blocks(monkeypatch):
    cuda = Torch().install(monkeypatch)
    monkeypatch.setattr(torch_driver, "find_driver_api", lambda: None)
    driver = torch_driver.TorchDriver()
    stream, event = driver.stream(), driver.event()
    event.record(stream)
    cuda.log.clear()
    blocked_with = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: blocked_with.append(Stream.busy))
    Stream.busy = 5
    driver.synchronize()
    assert blocked_with == [0]
    Stream.busy = 3
    driver.wait_for(event)
    assert Stream.busy == 0


class Slow(FakeGpu):
    """A GPU whose waits take `wait_s` more seconds than its work, and are reported as those of a real one."""

    wait_s = 0.0

    def synchronize(self, in_flight=None):
        if in_flight is not None:
            end_s = self.clock.now_s + self.wait_s
            wait_until(lambda: self.clock.now_s >= end_s, in_flight, lambda: self.clock.spend(0.5) or self.clock.now_s, lambda _: None)
        super().synchronize()


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_wait_far_longer_than_those_before_raises(mode):
    """Steps of 10 s may take 20 times as long. A GPU that takes 240 s for its first steps is given up, one that was fast after 60 s."""
    job, machine = Job(MLP, 4), load_machine("h200")
    plan, tensors = planned("baseline", job, machine), job_tensors(job, job.build(), job.graph())
    with Slow() as gpu:
        program = CudaBackend(machine, gpu, mode).load(plan, tensors)
        program.run(12)
        gpu.wait_s = 59.0
        program.run(1)
        gpu.wait_s = 20 * 59 - 1.0
        program.run(1)
    for before_s, longest_s in ((None, FIRST_WAIT_S), (0.0, LEAST_WAIT_S)):
        with Slow() as gpu:
            program = CudaBackend(machine, gpu, mode).load(plan, tensors)
            if before_s is not None:
                program.run(12)
            gpu.wait_s = 2 * longest_s + 1  # it is looked at when it is reported
            with pytest.raises(GpuStalledError, match=rf"never finished plan baseline .* at most {longest_s:.0f} s"):
                program.run(12)


class Stuck(FakeGpu):
    """A GPU that does not finish. It asks what is in flight whenever the host would wait for it."""

    waits, seen = False, ()

    def synchronize(self, in_flight=None):
        if self.waits and in_flight is not None:
            self.seen = (*self.seen, in_flight())
        super().synchronize()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("eager", r"plan turbodl \(cuda:0 stream \d in period 3, at \S+ or before; cuda:0 stream \d in period 3"),
        ("graph", r"plan turbodl \(3 of 3 graphs of 4 periods with 16 tasks on 3 lanes\)$"),
    ],
)
def test_a_program_says_which_tasks_are_in_flight(mode, words):
    job = Job(MLP, 4)
    plan = planned("turbodl", job, load_machine("h200"))
    with Stuck(Times(kernel_s=lambda op, size: 1e-3)) as gpu:  # the host runs far ahead
        program = CudaBackend(load_machine("h200"), gpu, mode).load(plan, job_tensors(job, job.build(), job.graph()))
        program.run(3)
        gpu.waits = True
        program.run(5 if mode == "eager" else 12)
    assert [text for text in gpu.seen if re.match(words, text)], gpu.seen
    assert program.in_flight() == "plan turbodl (all lanes done)"
