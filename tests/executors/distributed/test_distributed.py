"""One process per device, over gloo on this machine: collectives, plans and the command line."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from calibrate.placement import Placement
from executors.cpu.backend import CpuBackend
from executors.kernels.collective import dense
from executors.replicas import parameter_difference
from executors.tensors import job_tensors
from simulator.bodies.collective import Collective
from simulator.collectives.local import ProcessGroup
from simulator.job import Job
from simulator.machine.this_cpu import this_cpu
from simulator.strategies import registry as strategies
from tests.support.cli_process import environment
from tests.support.processes import HANGS_S, begin, end, rank_variables, require_gloo, run_team, stepcast
from tests.support.tiny import build, task
from traces.errors import StepcastError

JOB = ("--model", "lenet5", "--batch", 8, "--strategy", "image-parallel")
#: Stands before the command line: the second process fails, or the first leaves a file and waits, when it is to run for the first time.
FAILS = """
from executors.distributed.part import Parts
original = Parts.run
def run(self, *args):
    if not self.team.ranks.first:
        raise ValueError('broken on purpose')
    return original(self, *args)
Parts.run = run
"""
WAITS = """
import pathlib, time
from executors.distributed.part import Parts
original = Parts.run
def run(self, *args):
    answer = original(self, *args)
    if self.team.ranks.first:
        pathlib.Path({mark!r}).touch()
        time.sleep(60)
    return answer
Parts.run = run
"""
COMMAND_LINE = "\nfrom ui.cli import main\nmain()"


@pytest.mark.parametrize("count", [2, 4])
def test_processes_together_compute_what_plain_pytorch_computes_alone(count, tmp_path):
    """After every collective gave every process what its rounds say: gradients and all devices' parameters, on CPU and simulated GPUs."""
    leader, *others = run_team(count, tmp_path)
    assert (leader.status, [(ended.status, ended.out, ended.err) for ended in others]) == (0, [(0, "", "")] * (count - 1)), leader.err
    errors = leader.document
    assert {kind: len(found) for kind, found in errors.items()} == {2: {"cpu": 16, "gpu": 3}, 4: {"cpu": 4, "gpu": 0}}[count]
    assert [(name, error) for found in errors.values() for name, error in found.items() if not error <= 1e-10] == []


def test_validate_under_torchrun_prints_one_document(tmp_path):
    require_gloo()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ui.cli"]
    own = environment(tmp_path, STEPCAST_CACHE=os.environ["STEPCAST_CACHE"])
    ended = subprocess.run(
        [*launcher, "validate", *map(str, JOB), "--precision", "fp64", "--json"], capture_output=True, text=True, env=own, timeout=HANGS_S
    )
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert [row["strategy"] for row in document["results"]] == ["baseline", "image-parallel"]
    assert document["device"]["processes"] == 2
    for row in document["results"]:
        assert row["status"] == "ok"
        assert max(row["max_grad_error"], row["max_param_error"]) <= 1e-10
        assert row["measured_step_s"] > 0
        assert row["predicted_step_s"] > 0


def test_a_run_has_the_loss_of_the_whole_batch_and_every_devices_peak(tmp_path):
    job = Job("lenet5", 8)
    leader, follower = stepcast(2, "run", *JOB, "--steps", 3, "--beside", "autograd", "--json", folder=tmp_path)
    assert (leader.status, follower.status, follower.out) == (0, 0, ""), leader.err + follower.err
    document = leader.document
    assert document["max_loss_difference"] < 1e-5
    assert len(document["losses"]) == 3
    assert set(document["peak_bytes"]) <= {"cpu:0", "cpu:1"}
    assert job.batch == document["job"]["batch"]


def test_a_mistake_is_told_once_and_ends_all(tmp_path):
    leader, follower = stepcast(2, "run", *JOB, "--batch", 9, folder=tmp_path)
    assert (leader.status, leader.out) == (2, "")
    assert leader.err == "stepcast: --batch 9 does not divide into 2 devices; choose a multiple of 2\n"
    assert (follower.status, follower.out, follower.err) == (2, "", "")


@pytest.mark.parametrize(
    ("devices", "link", "words"),
    [(3, "alias", "--devices 3: torchrun started 2 processes, one per device"), (None, "copy", "--link copy joins the devices of one")],
)
def test_what_torchrun_decides_cannot_be_asked_for(devices, link, words, monkeypatch):
    for name, number in rank_variables(0, 2, 1).items():
        monkeypatch.setenv(name, number)
    assert Placement.from_options("cpu", None, "eager", "alias").devices == 2
    with pytest.raises(StepcastError, match=words):
        Placement.from_options("cpu", devices, "eager", link)


def test_a_process_that_fails_ends_the_others(tmp_path):
    require_gloo()
    leader, follower = end(begin(2, ["-c", FAILS + COMMAND_LINE, "run", *map(str, JOB)], tmp_path))
    assert (follower.status, follower.err) == (1, "stepcast: process 1 of 2: failed: ValueError: broken on purpose\n")
    assert (leader.status, leader.err.count("\n")) == (2, 1)
    assert leader.err.startswith("stepcast: another process of the job ended or does not answer (")


def test_ctrl_c_ends_all_processes(tmp_path):
    require_gloo()
    mark = tmp_path / "mark"
    processes = begin(2, ["-c", WAITS.format(mark=str(mark)) + COMMAND_LINE, "run", *map(str, JOB), "--steps", "50"], tmp_path)
    waited_until = time.monotonic() + HANGS_S
    while not mark.exists() and time.monotonic() < waited_until:
        time.sleep(0.05)
    for process in processes:
        process.send_signal(signal.SIGINT)
    leader, follower = end(processes)
    assert (leader.status, leader.err) == (130, "stepcast: stopped; nothing half-written is left\n")
    assert (follower.status, follower.out, follower.err) == (1, "", "")


def test_predict_is_answered_by_the_first_process(tmp_path):
    leader, follower = stepcast(2, "predict", *JOB, "--machine", "this-cpu", "--json", folder=tmp_path)
    assert (leader.status, follower.status, follower.out) == (0, 0, ""), leader.err
    assert [device["name"] for device in leader.document["devices"]] == ["cpu:0", "cpu:1"]


def test_a_collective_in_one_process_is_refused_with_what_to_start():
    body = Collective("all-reduce", ("cpu:0", "cpu:1"))
    plan, _ = build(task("sum", mutates="wa", on="cpu:0", body=body))
    with pytest.raises(StepcastError, match="torchrun --nproc-per-node 2"):
        CpuBackend(this_cpu(cores=1)).load(plan, {})
    assert ProcessGroup(body.devices, 0).stream == 0


def test_a_replica_that_differs_is_noticed(two_device_program):
    program, tensors = two_device_program
    same = {name: tensor.detach() for name, tensor in tensors.items() if isinstance(tensor, torch.nn.Parameter)}
    assert parameter_difference(program.binding, same) == 0.0
    program.binding.carried["features.0.weight@cpu:1"][0] += 0.5
    assert parameter_difference(program.binding, same) == pytest.approx(0.5)
    program.binding.carried["features.0.weight@cpu:1"][0] = float("nan")
    assert parameter_difference(program.binding, same) != parameter_difference(program.binding, same)


@pytest.fixture
def two_device_program():
    """LeNet-5 on two devices of one process, not yet trained, and the job's tensors."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("two devices of one process need two cores")
    job, machine = Job("lenet5", 4), this_cpu(devices=2)
    strategy, options = strategies.parse("image-parallel")
    tensors = job_tensors(job, job.build(), job.graph())
    return CpuBackend(machine).load(strategy.plan(job, machine, None, options), tensors), tensors


@pytest.mark.parametrize(
    ("tensor", "lies_densely"),
    [
        (torch.zeros(3, 4), True),
        (torch.zeros(3, 4).t(), True),
        (torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last), True),
        (torch.zeros(3, 1, 4)[:, :, :], True),
        (torch.zeros(()), True),
        (torch.zeros(4, 4)[:, :2], False),
        (torch.zeros(3).expand(2, 3), False),
    ],
)
def test_only_dense_tensors_travel_in_place(tensor, lies_densely):
    assert dense(tensor) is lies_densely
