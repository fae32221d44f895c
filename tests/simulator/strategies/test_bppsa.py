"""BPPSA on recurrent layers: the numbers of autograd, the steps and the memory of the paper's analysis, and refusals."""

import json
from math import log2

import pytest
import torch
from torch import nn

from calibrate.numerics import Expected, compare
from executors.kernels.jacobians import gru_steps, rnn_steps
from simulator.engine.costs.cost import Cost
from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.model.ops.recurrent_steps import gru, rnn
from simulator.plan.bodies.scan import GruSteps, RnnSteps
from simulator.plan.json import dump, load
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.predict.forecast import forecast
from tests.support import sequence_models
from tests.support.jobs import planned
from tests.support.tiny import cpu
from traces.errors import SchedcastError

SCANS = (
    "scan=linear",
    "scan=blelloch,workers=1",
    "scan=blelloch,workers=2",
    "scan=blelloch,workers=5",
    "level=2,workers=3",
    "level=3,workers=1",
)


def error(job: Job, machine: Machine, backend, options: str) -> float:
    """Largest relative error of gradients and of parameters after some steps, against plain PyTorch."""
    plan = planned(f"bppsa:{options}", job, machine)
    built = job.build()
    numerics = compare(job, built, plan, backend, Expected.of(job, built))
    return max(numerics.max_grad_error, numerics.max_param_error)


@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features"])
@pytest.mark.parametrize("steps", [8, 21, 64])
def test_gradients_are_those_of_autograd(model, steps, two_cores, backend):
    job = Job(model, 3, image_size=steps, precision="fp64", optimizer="adam")
    for options in SCANS:
        assert error(job, two_cores, backend, options) < 1e-10, options


@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features"])
def test_a_thousand_steps_in_float32(model, two_cores, backend):
    assert error(Job(model, 2, image_size=1000), two_cores, backend, "scan=blelloch") < 1e-4


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_sequences(steps, two_cores, backend):
    for model in ("rnn_bitstream", "gru_features"):
        job = Job(model, 2, image_size=steps, precision="fp64")
        for options in ("scan=linear", "scan=blelloch", "scan=blelloch,workers=7", ""):
            assert error(job, two_cores, backend, options) < 1e-10, (model, options)


def test_microbatches_are_scanned_one_after_another(two_cores, backend):
    job = Job("gru_features", 4, image_size=9, precision="fp64", accumulate=2)
    assert error(job, two_cores, backend, "scan=blelloch") < 1e-10


def test_a_trained_initial_state_adds_an_element_to_the_scan(two_cores, backend):
    for factory in ("rnn_with_initial_state", "gru_with_initial_state"):
        job = Job(f"{sequence_models.__file__}:{factory}", 3, precision="fp64")
        for options in ("scan=linear", "scan=blelloch,workers=3"):
            assert error(job, two_cores, backend, options) < 1e-10, (factory, options)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_rnn_jacobians_are_those_of_autograd(nonlinearity):
    torch.manual_seed(0)
    weights = [torch.randn(shape, dtype=torch.float64) for shape in ((4, 3), (4, 4), (4,), (4,))]
    x, h0 = torch.randn(1, 2, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    jacobians = rnn_steps(RnnSteps(nonlinearity, False), torch.tensor([0]), rnn(x, h0, *weights, nonlinearity)[1:], weights[1])
    cell = nn.RNNCell(3, 4, nonlinearity=nonlinearity, dtype=torch.float64)
    assert_transposed(jacobians[0], cell, weights, x[0], h0)


def test_gru_jacobians_are_those_of_autograd():
    torch.manual_seed(0)
    weights = [torch.randn(shape, dtype=torch.float64) for shape in ((12, 3), (12, 4), (12,), (12,))]
    x, h0 = torch.randn(1, 2, 3, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
    states, *saved = gru(x, h0, *weights)
    jacobians = gru_steps(GruSteps(False), torch.tensor([0]), states[:-1], *saved, weights[1])
    assert_transposed(jacobians[0], nn.GRUCell(3, 4, dtype=torch.float64), weights, x[0], h0)


def assert_transposed(jacobians: torch.Tensor, cell: nn.Module, weights: list, x: torch.Tensor, h0: torch.Tensor) -> None:
    with torch.no_grad():
        for parameter, weight in zip(cell.parameters(), weights, strict=True):
            parameter.copy_(weight)
    for sample in range(len(h0)):
        expected = torch.autograd.functional.jacobian(lambda h, s=sample: cell(x[s], h), h0[sample])
        torch.testing.assert_close(jacobians[sample], expected.t(), rtol=1e-12, atol=1e-12)


def seconds(task: Task) -> float:
    """One second for each product of the scan; anything else takes no time."""
    if task.body.kind == "scan-level":
        return float(sum(task.body.products))
    return float(len(task.body.steps)) if task.body.kind == "ops" else float(getattr(task.body, "target", "") == "aten.bmm.default")


def scan_seconds(plan: Plan, cores: int) -> float:
    costs = [Cost(task.name, seconds(task), seconds(task)) for task in plan.tasks]
    return simulate(plan, cpu("cpu:0", cores=cores), costs, iterations=1, use_cache=False).step_s


def test_a_scan_takes_n_over_p_plus_log_p_products_in_a_row():
    job, n = Job("rnn_bitstream", 1, image_size=1024), 1024
    assert scan_seconds(planned("bppsa:scan=linear", job, cpu("cpu:0")), 1) == n - 1
    for workers in (1, 2, 4, 16, 64, 256):
        machine = cpu("cpu:0", cores=workers)
        scan_s = scan_seconds(planned(f"bppsa:scan=blelloch,workers={workers}", job, machine), workers)
        assert n / workers < scan_s <= 2 * n / workers + 4 * log2(workers) + 2, workers


def test_a_workers_share_of_the_jacobians_falls_with_the_number_of_workers():
    job = Job("rnn_bitstream", 4, image_size=1024)

    def most_bytes(workers: int) -> int:
        plan = planned(f"bppsa:scan=blelloch,workers={workers}", job, cpu("cpu:0", cores=workers))
        bytes_of = [0] * workers
        for task in plan.tasks:
            if task.body.kind in ("jacobian-values", "scan-level"):
                bytes_of[task.stream] += sum(operand.bytes for operand in task.writes)
        return max(bytes_of)

    one = most_bytes(1)
    for workers in (2, 8, 64):
        assert most_bytes(workers) <= 1.1 * one / workers


def test_the_level_is_the_one_predicted_fastest(two_cores):
    job = Job("rnn_bitstream", 1, image_size=256)
    model = CostModel(two_cores)
    steps = {level: forecast(planned(f"bppsa:level={level}", job, two_cores), two_cores, model).timeline.step_s for level in range(9)}
    chosen = planned("bppsa", job, two_cores)
    assert chosen.semantics["scan_level"] == min(steps, key=steps.get)
    assert forecast(chosen, two_cores, model).timeline.step_s == min(steps.values())


def test_jacobians_count_as_backward_of_an_rnn_and_as_forward_of_a_gru(two_cores):
    for model, phase in (("rnn_bitstream", "backward"), ("gru_features", "forward")):
        plan = planned("bppsa:scan=blelloch", Job(model, 2, image_size=8), two_cores)
        assert {task.phase for task in plan.tasks if task.body.kind == "jacobian-values"} == {phase}


def test_a_plan_goes_to_json_and_back(two_cores):
    plan = planned("bppsa:scan=blelloch,workers=3", Job("gru_features", 2, image_size=21), two_cores)
    assert load(json.loads(json.dumps(dump(plan)))) == plan


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        ("lstm8", "", "recurrent layer 'recurrent' is an LSTM, which has no Jacobian rule; expected nn.RNN or nn.GRU"),
        ("read_at_all_steps", "", "the loss reads recurrent layer 'recurrent' at several steps; expected only its last state"),
        ("stacked", "", "the loss reads recurrent layer 'recurrent' at several steps; expected only its last state"),
        ("rnn_with_initial_state", "level=9", "level is 9; expected 0 to 3, the level at which one block is left"),
    ],
)
def test_models_that_are_no_chain_are_refused(factory, options, message, two_cores):
    with pytest.raises(SchedcastError, match=message):
        planned(f"bppsa:{options}", Job(f"{sequence_models.__file__}:{factory}", 2), two_cores)


def test_jacobians_that_exceed_the_memory_are_refused_with_their_size():
    with pytest.raises(SchedcastError, match=r"needs 11\.4 GiB for its Jacobians, this machine has 953\.7 MiB"):
        planned("bppsa", Job("rnn_bitstream", 256, image_size=30000), cpu("cpu:0", cores=2))
