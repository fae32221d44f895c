"""One process per device, over gloo on this machine: collectives, plans and the command line."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from calibrate.placement import Placement
from executors.cpu.backend import CpuBackend
from executors.cuda import torch_driver
from executors.distributed.backend import DistributedBackend
from executors.distributed.loaded_plans import check_distinct, gpu_name, own_gpu
from executors.distributed.ranks import Ranks, launched
from executors.kernels.communication import dense
from executors.tensors import gradient_difference, job_tensors, parameter_difference
from simulator.engine.collectives.local import ProcessGroup
from simulator.machine.presets import load_machine, replicated
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.bodies.copy import Collective
from simulator.strategies import registry as strategies
from tests.fake_gpu import FakeGpu
from tests.support.cli_process import COMMAND_LINE, environment, start_warm
from tests.support.places import SUPPORT
from tests.support.processes import HANGS_S, begin, end, rank_variables, require_gloo, run_ranks, schedcast
from tests.support.refusals import refuses
from tests.support.tiny import build, task
from traces.errors import Code

JOB = ("--model", "lenet5", "--batch", 8, "--strategy", "data-parallel")
#: Code that runs before the command line and replaces `LoadedPlans.run`: with FAILS the second process fails at its first run; with WAITS
#: the first process leaves a file after its first run and waits.
FAILS = """
from executors.distributed.loaded_plans import LoadedPlans
original = LoadedPlans.run
def run(self, *args):
    if not self.channel.ranks.first:
        raise ValueError('broken on purpose')
    return original(self, *args)
LoadedPlans.run = run
"""
#: Code as above: the process has a simulated GPU, on which calibrations are short.
ON_GPU = """
from functools import partialmethod
from calibrate.cuda.testbed import GpuTestbed
from executors.cuda import torch_driver
from tests.support.gpu_testbeds import QUICK, few_repetitions, hard_gpu
short = {"effort": QUICK, "reference_edge": 32, "transfer_sizes": (4096, 65536, 1 << 20)}
GpuTestbed.__init__ = partialmethod(GpuTestbed.__init__, **short)
simulated = hard_gpu()
torch_driver.gpu = lambda index=0: simulated
repetitions = few_repetitions()
repetitions.__enter__()
simulated.__enter__()
"""
WAITS = """
import pathlib, time
from executors.distributed.loaded_plans import LoadedPlans
original = LoadedPlans.run
def run(self, *args):
    answer = original(self, *args)
    if self.channel.ranks.first:
        pathlib.Path({mark!r}).touch()
        time.sleep(60)
    return answer
LoadedPlans.run = run
"""
#: Code as above, with which rank {rank} fails while it prepares its part of a plan.
FAILS_TO_LOAD = """
from executors.distributed import loaded_plans
original = loaded_plans.local_plan
def local_plan(plan, device):
    if device == 'cpu:{rank}':
        raise MemoryError('no room for the plan')
    return original(plan, device)
loaded_plans.local_plan = local_plan
"""


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_compute_the_gradients_and_parameters_of_plain_pytorch(count, tmp_path):
    """On CPUs and simulated GPUs; with stale weights, those of a trainer of equal staleness.

    Every process has checked the results of all collectives and messages before.
    """
    rank_0, *others = run_ranks(count, tmp_path)
    assert (rank_0.status, [(ended.status, ended.out, ended.err) for ended in others]) == (0, [(0, "", "")] * (count - 1)), rank_0.err
    errors = rank_0.document
    assert {kind: len(by_name) for kind, by_name in errors.items()} == {
        2: {"cpu": 46, "pieces": 5, "gpu": 10},
        4: {"cpu": 21, "pieces": 0, "gpu": 0},
    }[count]
    assert [(name, error) for by_name in errors.values() for name, error in by_name.items() if not error <= 1e-10] == []


def check_parallel_loops(document: dict) -> None:
    """A validation in several processes has rows of PyTorch's own loops there, predicted and timed."""
    assert [(row["strategy"], row["status"]) for row in document["parallel"]] == [("pytorch-ddp", "ok"), ("pytorch-fsdp", "ok")]
    assert all(row["predicted_step_s"] > 0 and row["measured_runs_s"] and row["against_pytorch"] > 0 for row in document["parallel"])


@pytest.mark.thorough
def test_validate_under_torchrun_prints_one_document(tmp_path):
    require_gloo()
    more = ["--strategy", "stale-pipeline", "--quick"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ui.cli"]
    variables = environment(tmp_path)
    ended = subprocess.run(
        [*launcher, "validate", *map(str, JOB), *more, "--precision", "fp64", "--json"],
        capture_output=True,
        text=True,
        env=variables,
        timeout=3 * HANGS_S,  # it measures, for a minute on two idle cores
    )
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert [row["strategy"] for row in document["results"]] == ["baseline", "data-parallel", "stale-pipeline"]
    assert document["device"]["processes"] == 2
    for row in document["results"]:
        assert row["status"] == "ok"
        assert max(row["max_grad_error"], row["max_param_error"]) <= 1e-10
        assert row["measured_step_s"] > 0
        assert row["predicted_step_s"] > 0
    check_parallel_loops(document)


@pytest.mark.thorough
def test_validate_on_two_gpus_measures_plans_that_use_only_one_of_them(tmp_path):
    """The process without a task of the baseline takes no part in timing its tasks."""
    require_gloo()
    job = ("--model", f"{SUPPORT}/mlp.py:make", "--batch", "8", "--strategy", "data-parallel")
    rank_0, rank_1 = end(begin(2, ["-c", ON_GPU + COMMAND_LINE, "validate", *job, "--quick", "--device", "cuda", "--json"], tmp_path))
    assert (rank_0.status, rank_1.status, rank_1.out, rank_1.err) == (0, 0, "", ""), rank_0.err + rank_1.err
    used = {row["strategy"]: set(row["measured_peak_bytes_by_device"]) for row in rank_0.document["results"]}
    assert used == {"baseline": {"cuda:0"}, "data-parallel": {"cuda:0", "cuda:1"}}
    assert all(row["max_param_error"] <= 1e-6 and row["status"] == "ok" for row in rank_0.document["results"])
    check_parallel_loops(rank_0.document)


@pytest.mark.thorough
def test_a_run_has_the_loss_of_the_whole_batch_and_every_devices_peak(tmp_path):
    job = Job("lenet5", 8)
    rank_0, rank_1 = schedcast(2, "run", *JOB, "--steps", 3, "--beside", "autograd", "--json", folder=tmp_path)
    assert (rank_0.status, rank_1.status, rank_1.out) == (0, 0, ""), rank_0.err + rank_1.err
    document = rank_0.document
    assert document["max_loss_difference"] < 1e-5
    assert len(document["losses"]) == 3
    assert set(document["peak_bytes"]) <= {"cpu:0", "cpu:1"}
    assert job.batch == document["job"]["batch"]


@pytest.mark.thorough
def test_a_mistake_is_reported_once_and_ends_all_processes(tmp_path):
    rank_0, rank_1 = schedcast(2, "run", *JOB[:2], "--batch", 9, *JOB[4:], folder=tmp_path)
    assert (rank_0.status, rank_0.out) == (2, "")
    assert rank_0.err == "schedcast: --batch 9 does not divide into 2 devices; choose a multiple of 2\n"
    assert (rank_1.status, rank_1.out, rank_1.err) == (2, "", "")


@pytest.mark.parametrize(
    ("devices", "link", "words"),
    [(3, "alias", "--devices 3: torchrun started 2 processes, one per device"), (None, "copy", "--link copy joins the devices of one")],
)
def test_options_that_contradict_torchrun_are_refused(devices, link, words, monkeypatch):
    for name, number in rank_variables(0, 2, 1).items():
        monkeypatch.setenv(name, number)
    assert Placement.from_options("cpu", None, "eager", "alias").devices == 2
    with refuses(Code.REQUEST, words):
        Placement.from_options("cpu", devices, "eager", link)


@pytest.mark.thorough
def test_a_process_that_fails_ends_the_others(tmp_path):
    require_gloo()
    rank_0, rank_1 = end(begin(2, ["-c", FAILS + COMMAND_LINE, "run", *map(str, JOB)], tmp_path))
    assert (rank_1.status, rank_1.err) == (1, "schedcast: process 1 of 2: failed: ValueError: broken on purpose\n")
    assert (rank_0.status, rank_0.err.count("\n")) == (2, 1)
    assert rank_0.err.startswith("schedcast: another process of the job ended or does not answer (")


@pytest.mark.thorough
def test_a_process_that_cannot_load_a_plan_is_named_and_ends_all(tmp_path):
    """No process waits for it to create process groups."""
    require_gloo()
    code = FAILS_TO_LOAD.format(rank=1) + COMMAND_LINE
    rank_0, rank_1 = end(begin(2, ["-c", code, "run", *map(str, JOB)], tmp_path))
    assert (rank_0.status, rank_0.out) == (2, "")
    assert rank_0.err == "schedcast: process 1 of 2: MemoryError: no room for the plan\n"
    assert (rank_1.status, rank_1.out, rank_1.err) == (2, "", "")


def test_two_processes_on_one_gpu_are_refused(monkeypatch):
    """With stand-ins for the other process and for the GPU."""
    gpu = FakeGpu()
    gpu.uuid = "GPU-1"
    monkeypatch.setattr("executors.distributed.loaded_plans.own_gpu", lambda ranks: gpu)
    answers = [{}, {"gpu": gpu_name(gpu)}]
    channel = SimpleNamespace(ranks=Ranks(0, 2, 0, 2), send=lambda *_: None, gather=lambda _: answers)
    with gpu, refuses(Code.REQUEST, r"^processes 0 and 1 have the same GPU \(GPU-1\)"):
        DistributedBackend(replicated(load_machine("h200"), 2), channel, "cuda")


@pytest.mark.thorough
@pytest.mark.parametrize(("by", "statuses"), [(signal.SIGINT, (130, 1)), (signal.SIGTERM, (143, 143))], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_all_processes(tmp_path, by, statuses):
    require_gloo()
    mark = tmp_path / "mark"
    processes = begin(2, ["-c", WAITS.format(mark=str(mark)) + COMMAND_LINE, "run", *map(str, JOB), "--steps", "50"], tmp_path)
    deadline = time.monotonic() + HANGS_S
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in processes:
        process.send_signal(by)
    rank_0, rank_1 = end(processes)
    assert (rank_0.status, rank_0.err) == (statuses[0], "schedcast: stopped; nothing half-written is left\n")
    assert (rank_1.status, rank_1.out, rank_1.err) == (statuses[1], "", "")


@pytest.mark.thorough
def test_only_rank_0_answers_predict(tmp_path):
    rank_0, rank_1 = schedcast(2, "predict", *JOB, "--machine", "this-cpu", "--json", folder=tmp_path)
    assert (rank_0.status, rank_1.status, rank_1.out) == (0, 0, ""), rank_0.err
    assert [device["name"] for device in rank_0.document["devices"]] == ["cpu:0", "cpu:1"]


def test_a_collective_in_one_process_is_refused_with_the_command_to_start():
    body = Collective("all-reduce", ("cpu:0", "cpu:1"))
    plan, _ = build(task("sum", mutates="wa", on="cpu:0", body=body))
    with refuses(Code.REQUEST, "torchrun --nproc-per-node 2"):
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


def test_a_gradient_that_differs_is_noticed_on_the_device_that_has_it(two_device_program):
    program, _ = two_device_program
    (name, operand), *_ = program.plan.gradients.items()
    kept = {operand.value: torch.full(operand.shape, 2.0)}
    one = SimpleNamespace(plan=replace(program.plan, gradients={name: operand}), carried={}, device=program.binding.device)
    assert gradient_difference(one, kept, {name: kept[operand.value].clone(), "on another device": torch.zeros(1)}) == 0.0
    assert gradient_difference(one, kept, {name: kept[operand.value] - 0.5}) == 0.5
    assert gradient_difference(one, {operand.value: torch.full(operand.shape, float("nan"))}, {name: kept[operand.value]}) != 0.0


@pytest.fixture
def two_device_program():
    """An untrained LeNet-5 loaded on two devices of one process, and the job's tensors."""
    if (os.cpu_count() or 1) < 2:
        pytest.skip("two devices of one process need two cores")
    job, machine = Job("lenet5", 4), this_cpu(devices=2)
    strategy, options = strategies.parse("data-parallel")
    tensors = job_tensors(job, job.build(), job.graph())
    return CpuBackend(machine).load(strategy.plan(job, machine, None, options), tensors), tensors


@pytest.mark.parametrize(
    ("tensor", "is_dense"),
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
def test_only_dense_tensors_are_sent_without_a_copy(tensor, is_dense):
    assert dense(tensor) is is_dense


@pytest.mark.thorough
def test_accuracy_is_measured_with_the_weights_of_all_processes(tmp_path):
    """The second stage's weights lie in the second process; in one process the accuracy is the same."""
    job = ("--model", "lenet5", "--batch", 32, "--image-size", 16, "--lr", 0.05, "--strategy", "1f1b", "--steps", 12, "--eval-every", 6)
    rank_0, _ = schedcast(2, "run", *job, "--json", folder=tmp_path)
    (alone,) = end([start_warm("", "run", *job, "--devices", 2, "--json", folder=tmp_path)])
    (ours,), (theirs,) = (ended.document["curves"] for ended in (rank_0, alone))
    assert [each["iteration"] for each in ours["evaluations"]] == [0, 6, 12]
    assert ours["evaluations"] == theirs["evaluations"]
    assert len({each["test_accuracy"] for each in ours["evaluations"]}) > 1


# Ranks as a launcher such as torchrun states them in environment variables.


def test_the_launcher_sets_rank_and_world():
    environment = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert launched(environment) == Ranks(3, 4, 1, 2)
    assert not launched(environment).one_node
    assert launched({}) is None
    assert launched({"RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [({"LOCAL_RANK": None}, "LOCAL_RANK is not set"), ({"RANK": "one"}, "expected whole numbers"), ({"RANK": "4"}, "which cannot be")],
)
def test_impossible_variables_are_refused(change, message):
    environment = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"} | change
    with refuses(Code.REQUEST, message):
        launched({name: value for name, value in environment.items() if value is not None})


@pytest.mark.parametrize(
    ("local_rank", "visible", "index"),
    [(0, 4, 0), (3, 4, 3), (0, 1, 0), (3, 1, 0), (2, 0, 2)],
    ids=["torchrun", "torchrun, last", "own GPU only", "own GPU only, last", "no GPU: opening it says why"],
)
def test_the_gpu_of_a_process_under_launchers_of_both_kinds(local_rank, visible, index):
    assert Ranks(local_rank, 4, local_rank, 4).device_index(visible) == index


def test_too_few_gpus_are_refused():
    with refuses(Code.REQUEST, "process 3 has local rank 3 and sees 2 GPUs; start at most 2 processes per node"):
        Ranks(3, 4, 3, 4).device_index(2)


def test_the_gpu_is_opened_by_its_visible_number(monkeypatch):
    monkeypatch.setattr(torch_driver, "gpu", lambda index=0: f"GPU {index}")
    monkeypatch.setattr(torch_driver, "visible_gpus", lambda: 1)
    assert own_gpu(Ranks(1, 2, 1, 2)) == "GPU 0"


def test_two_processes_on_one_gpu_are_refused_in_one_line():
    check_distinct(["node GPU-1", "node GPU-2", "other GPU-1", "", ""])
    with refuses(Code.REQUEST, r"^processes 1 and 2 have the same GPU \(GPU-2\): start one process per GPU, or split one GPU"):
        check_distinct(["node GPU-1", "node GPU-2", "node GPU-2"])


@pytest.mark.thorough
def test_sharded_training_has_the_numbers_of_pytorchs_own(tmp_path):
    """Two processes train a small language model under FSDP2, by PyTorch's tensor parallelism, and by our plans: all as plain PyTorch."""
    require_gloo()
    rank_0, _ = end(begin(2, ["-m", "tests.support.fsdp2_process"], tmp_path))
    assert rank_0.status == 0, rank_0.err
    assert {name: result["error"] <= 1e-10 for name, result in rank_0.document.items()} == dict.fromkeys(
        ("pytorch-ddp", "pytorch-fsdp", "parallelize_module", "fsdp", "fsdp:shard=1,gradients=held", "fsdp:tp=2,sp=off"), True
    )
