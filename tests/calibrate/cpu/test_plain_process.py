"""The process of plain PyTorch: it has the user's environment, its numbers are the loop's, and it ends with its parent."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch

from calibrate.cpu import plain_process
from calibrate.cpu.plain_process import PlainProcess, ProcessLoop, ProcessSampler
from calibrate.numerics import reference
from executors.cpu import allocator
from executors.cpu.cores import user_environment, wait_passively, waiting
from simulator.engine.costs.model import CostModel
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.predict.forecast import plan_of
from simulator.predict.target import Target
from tests.support.jobs import MLP
from tests.support.places import ROOT
from tests.support.refusals import refuses
from traces.errors import Code

JOB = Job(MLP, 6, optimizer="adam", accumulate=2, clip_norm=0.5, precision="fp64")


@pytest.fixture
def process():
    process = PlainProcess()
    yield process
    process.close()


def test_the_policy_that_our_workers_need_is_not_the_users(monkeypatch):
    monkeypatch.setattr(os, "environ", {"HOME": "/home"})
    wait_passively()
    assert waiting(os.environ) == "passive"
    assert user_environment() == {"HOME": "/home"}
    wait_passively()  # in a process that this one starts
    assert user_environment() == {"HOME": "/home"}


def test_a_policy_that_the_user_chose_stays(monkeypatch):
    chosen = {"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "3"}
    monkeypatch.setattr(os, "environ", dict(chosen))
    wait_passively()
    assert os.environ == user_environment() == chosen
    assert waiting(chosen) == "active"


def test_torchruns_threads_are_not_the_users():
    assert user_environment({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}) == {"TORCHELASTIC_RUN_ID": "none"}
    assert user_environment({"OMP_NUM_THREADS": "1"}) == {"OMP_NUM_THREADS": "1"}


_LOOKS_AROUND = """
import json, os
import torch
from executors.cpu.allocator import _mallinfo2

def make(batch):
    block = torch.ones(16 << 20)
    seen = {{"threads": torch.get_num_threads(), "mapped": _mallinfo2()().hblkhd, "variables": dict(os.environ)}}
    open({place!r}, "w").write(json.dumps(seen))
    return torch.nn.Linear(2, 2), torch.ones(batch, 2), torch.zeros(batch, dtype=torch.int64)
"""


@pytest.mark.thorough
def test_the_users_model_finds_the_users_environment_and_none_of_our_settings(monkeypatch, cold_launch, tmp_path):
    """Here the policy is ours and the allocator maps nothing; in the process, large tensors are mappings of their own, as by default."""
    monkeypatch.setattr(plain_process, "launch", cold_launch)
    monkeypatch.setattr(os, "environ", {**os.environ, "OMP_NUM_THREADS": "1"})
    os.environ.pop("OMP_WAIT_POLICY", None)
    wait_passively()
    allocator.prepare()
    file = tmp_path / "own.py"
    file.write_text(_LOOKS_AROUND.format(place=str(tmp_path / "seen.json")))
    process = PlainProcess()
    ProcessLoop(process, Job(f"{file}:make", 2), False, "")
    assert process.ask("threads") == (1, "")
    process.close()
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["threads"] == 1
    assert seen["mapped"] >= 4 * (16 << 20)
    assert seen["variables"].keys().isdisjoint({"OMP_WAIT_POLICY", "SCHEDCAST_WAIT_POLICY"})
    assert {name: seen["variables"].get(name) for name in ("PATH", "OMP_NUM_THREADS")} == {
        "PATH": os.environ["PATH"],
        "OMP_NUM_THREADS": "1",
    }


def test_it_trains_as_the_loop_in_this_process_does(process):
    loop = ProcessLoop(process, JOB, True, "")
    assert len(loop.train(3)) == 3
    expected = reference(JOB, built := JOB.build(), True)
    assert loop.losses == pytest.approx([float(expected.step()) for _ in range(3)], abs=1e-12)
    got = {name: torch.zeros_like(tensor) for name, tensor in built.module.named_parameters()}
    loop.copy_current(got)
    for name, tensor in built.module.named_parameters():
        torch.testing.assert_close(got[name], tensor.detach())


def test_a_restart_is_another_process_that_trains_from_the_same_parameters(process):
    loop = ProcessLoop(process, JOB, True, "")
    loop.train(2)
    losses, pid = loop.losses, process._process.pid
    loop.restart(1)
    loop.train(1)
    assert loop.losses == losses
    assert process._process.pid != pid


def test_it_trains_on_the_batches_that_it_is_given(process):
    loop, batches = ProcessLoop(process, JOB, True, ""), []
    expected, built = [], JOB.build()
    plain = reference(JOB, built, True)
    for scale in (1.0, 2.0):
        batches.append((tuple(scale * tensor for tensor in built.inputs), built.target))
        plain.feed(*batches[-1])
        expected.append(float(plain.step()))
    loop.train(2, batches)
    assert loop.losses == pytest.approx(expected, abs=1e-12)


def test_it_samples_the_keys_of_the_loop(process):
    machine = this_cpu()
    plan = plan_of(JOB, "pytorch", Target.of(CostModel(machine)))
    keys = plan.keys(machine)
    sampler = ProcessSampler(process)
    sampler.add(plan, keys)
    for number in range(2):
        sampler.sample(list(keys), number)
    assert not sampler.failures
    assert all(len(samples.warm_s) == 2 and samples.numbers == [0, 1] for samples in sampler.samples.values())
    assert {key.rpartition("@")[2] for key in sampler.samples} == {f"{machine.for_pytorch.devices[0].threads}-threads"}


def test_between_requests_it_is_stopped(process):
    process.ask("threads")
    status = psutil.Process(process._process.pid)
    wait_until(lambda: status.status() == psutil.STATUS_STOPPED)
    before = status.cpu_times()
    time.sleep(0.05)
    assert status.cpu_times() == before
    assert process.ask("threads")[0] >= 1


def test_an_error_of_the_users_code_is_one_line(process, tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def make(batch):\n    raise KeyError('layer 7')\n")
    with refuses(Code.REQUEST, r"own.py:2 in make: KeyError: 'layer 7'"):
        ProcessLoop(process, Job(f"{file}:make", 2), False, "")
    assert process.ask("threads")[0] >= 1  # it still answers


def test_a_process_that_is_killed_is_a_one_line_error_and_starts_again(process):
    process.ask("threads")
    os.kill(process._process.pid, signal.SIGKILL)
    with refuses(Code.REQUEST, "the process that runs plain PyTorch ended by signal 9; is there enough memory"):
        process.ask("threads")
    assert process.ask("threads")[0] >= 1


def test_one_that_cannot_start_is_a_one_line_error(process, monkeypatch):
    def launch(*arguments):
        raise OSError("no more processes")

    monkeypatch.setattr(plain_process, "launch", launch)
    with refuses(Code.REQUEST):
        process.ask("threads")


def test_an_interrupted_request_ends_it(process, monkeypatch):
    process.ask("threads")
    pid = process._process.pid

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(process._channel, "recv_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.ask("threads")
    assert not psutil.pid_exists(pid)


_PARENT = """
import time
from calibrate.cpu.plain_process import PlainProcess
process = PlainProcess()
process.ask("threads")
print(process._process.pid, flush=True)
{then}
"""


@pytest.mark.thorough
@pytest.mark.parametrize("then", ["", "raise ValueError", "time.sleep(60)"], ids=["its end", "an error", "SIGKILL"])
def test_it_ends_with_its_parent(then):
    """However that ends; stopped between two requests, it cannot see the end itself."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT.format(then=then)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with parent:
        child = psutil.Process(int(parent.stdout.readline()))
        if "sleep" in then:
            parent.kill()
    child.wait(10)


_SLOW_TORCH = """
import pathlib, time
pathlib.Path(__file__).with_suffix(".mark").touch()
time.sleep(600)
"""
_STARTING = """
import sys, time
from calibrate.cpu.plain_process import PlainProcess
sys.path.insert(0, {folder!r})
process = PlainProcess()
process._start()
print(process._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.thorough
def test_it_ends_with_its_parent_while_it_loads(tmp_path):
    (tmp_path / "torch.py").write_text(_SLOW_TORCH)
    code = _STARTING.format(folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        wait_until((tmp_path / "torch.mark").exists)
        parent.kill()
    child.wait(10)


def wait_until(holds):
    """Wait for a condition that another process makes true."""
    for _ in range(500):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never held")
