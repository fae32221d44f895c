"""BPPSA on recurrent layers: the numbers of autograd, the steps and the memory of the paper's analysis, and refusals."""

import json
from dataclasses import replace
from itertools import pairwise
from math import log2

import pytest
import torch
from torch import nn

from calibrate.numerics import STEPS
from executors.cpu.backend import CpuBackend
from executors.kernels.jacobians import gru_steps, rnn_steps
from simulator.engine.costs.cost import Cost
from simulator.engine.costs.model import CostModel
from simulator.engine.memory.over_time import memory_over_time, peaks
from simulator.engine.simulation import simulate
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.model.ops.recurrent_steps import gru, rnn
from simulator.model.workloads.networks import chains
from simulator.plan.bodies.scan import GruSteps, RnnSteps
from simulator.plan.json import dump, load
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from tests.support import models
from tests.support.jobs import MLP, job_of, planned
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from tests.support.tiny import cpu
from traces.errors import Code

SCANS = (
    "scan=linear", "scan=blelloch,workers=1", "scan=blelloch,workers=2", "scan=blelloch,workers=5", "level=2,workers=3",
    "level=3,workers=1",
)  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features"])
@pytest.mark.parametrize("steps", [8, 21, 64])
def test_gradients_are_those_of_autograd(model, steps, two_cores, backend):
    job = Job(model, 3, image_size=steps, precision="fp64", optimizer="adam")
    for options in SCANS:
        assert error_of(job, options, two_cores, backend) < 1e-10, options


@pytest.mark.thorough
@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features"])
def test_a_thousand_steps_in_float32(model, two_cores, backend):
    assert error_of(Job(model, 2, image_size=1000), "scan=blelloch", two_cores, backend) < 1e-4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_sequences(steps, two_cores, backend):
    for model in ("rnn_bitstream", "gru_features"):
        job = Job(model, 2, image_size=steps, precision="fp64")
        for options in ("scan=linear", "scan=blelloch", "scan=blelloch,workers=7", ""):
            assert error_of(job, options, two_cores, backend) < 1e-10, (model, options)


def test_microbatches_are_scanned_one_after_another(two_cores, backend):
    job = Job("gru_features", 4, image_size=9, precision="fp64", accumulate=2)
    assert error_of(job, "scan=blelloch", two_cores, backend) < 1e-10


def test_a_trained_initial_state_adds_an_element_to_the_scan(two_cores, backend):
    for factory in ("rnn_with_initial_state", "gru_with_initial_state"):
        job = job_of(factory, 3)
        for options in ("scan=linear", "scan=blelloch,workers=3"):
            assert error_of(job, options, two_cores, backend) < 1e-10, (factory, options)


@pytest.mark.parametrize("factory", ["rnn_last_output", "gru_last_output", "last_output_and_state", "time_first"])
def test_the_usual_classifiers_read_the_last_output(factory, two_cores, backend):
    """`out[:, -1]` has a gradient of zeros but for the last step, which begins the scan; with the last state, both are added."""
    for options in ("scan=linear", "scan=blelloch,workers=3"):
        assert error_of(job_of(factory, 3), options, two_cores, backend) < 1e-10, options
    tasks = planned("bppsa:scan=blelloch", job_of(factory, 3), two_cores).tasks
    spread = [task for task in tasks if getattr(task.body, "target", "") == "aten.select_backward.default"]
    assert not [task.name for task in spread if 8 in task.writes[0].shape], "no zeros are written for the 8 steps"


@pytest.mark.parametrize(("factory", "layers"), [("stacked", 2), ("stacked_last_output", 3)])
def test_of_stacked_layers_the_last_one_is_scanned(factory, layers, two_cores, backend):
    """The layers below have a gradient at every step, and are back-propagated as before; the plan says which."""
    for options in ("scan=linear", "scan=blelloch,workers=3"):
        assert error_of(job_of(factory, 3), options, two_cores, backend) < 1e-10, options
    plan = planned("bppsa:scan=blelloch", job_of(factory, 3), two_cores)
    assert plan.semantics["not_scanned"] == ", ".join(["recurrent"] * (layers - 1))
    kinds = [task.body.target.split(".")[1] for task in plan.tasks if getattr(task.body, "target", "").startswith("schedcast.")]
    assert sum(kind in ("rnn_backward", "gru_backward") for kind in kinds) == layers - 1
    assert sum(kind in ("rnn_gates", "gru_gates") for kind in kinds) == 1


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
    steps = {
        level: forecast(planned(f"bppsa:level={level}", job, two_cores), Target(two_cores, model)).timeline.step_s for level in range(9)
    }
    chosen = planned("bppsa", job, two_cores)
    assert chosen.semantics["scan_level"] == min(steps, key=steps.get)
    assert forecast(chosen, Target(two_cores, model)).timeline.step_s == min(steps.values())


def test_jacobians_count_as_backward_of_an_rnn_and_as_forward_of_a_gru(two_cores):
    for model, phase in (("rnn_bitstream", "backward"), ("gru_features", "forward")):
        plan = planned("bppsa:scan=blelloch", Job(model, 2, image_size=8), two_cores)
        assert {task.phase for task in plan.tasks if task.body.kind == "jacobian-values"} == {phase}


def error_of(training_job: Job, options: str, machine: Machine, backend, steps: int = STEPS) -> float:
    return largest_error(training_job, planned(f"bppsa:{options}", training_job, machine), backend, steps)


def recurrent(factory: str) -> Job:
    return Job(f"{models.__file__}:{factory}", 2)


# BPPSA on chains of layers: the numbers of autograd with dense and sparse Jacobians, and refusals.


def job(factory: str, batch: int = 3, **fields) -> Job:
    return Job(f"{models.__file__}:{factory}", batch, **{"precision": "fp64", **fields})


@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features"])
def test_no_step_of_a_recurrent_layer_copies_results_into_another_layout(model, two_cores, backend, caplog):
    for options in ("scan=linear", "scan=blelloch,workers=2"):
        assert error_of(Job(model, 3, image_size=9, precision="fp64"), options, two_cores, backend) < 1e-10
    assert caplog.messages == []


def test_no_step_of_a_chain_of_layers_copies_results_into_another_layout(two_cores, backend, caplog):
    """The Jacobian of a linear layer is a transposed weight; a diagonal times it is row-major all the same."""
    for factory in ("every_layer", "deep"):
        for options in ("scan=blelloch", "level=1,jacobian=csr", "scan=blelloch,jacobian=dense"):
            assert error_of(job(factory), options, two_cores, backend) < 1e-10
    assert caplog.messages == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", ["scan=linear,", "level=1,", "level=2,jacobian=dense,", "scan=blelloch,", ""])
def test_layers_on_two_devices_are_scanned_together(options):
    """Four processes train so in tests/executors/distributed."""
    machine = cpu("cpu:0", "cpu:1")
    for factory, accumulate in (("every_layer", 1), ("deep", 3)):
        training_job = job(factory, accumulate=accumulate)
        assert len(planned(f"bppsa:{options}devices=2", training_job, machine).devices) == 2
        assert error_of(training_job, f"{options}devices=2", machine, CpuBackend(machine)) < 1e-10


@pytest.mark.thorough
def test_a_device_of_a_scan_needs_as_much_memory_however_many_there_are():
    """Two layers for each device: their Jacobians, products, and what arrives for one product. GPipe: appendix B of the paper.

    A stage of GPipe also holds its input for each of as many microbatches as there are stages. Values count while they are needed.
    """
    most: dict[str, list[int]] = {"bppsa": [], "gpipe": []}
    for count in (4, 8, 16):
        machine = load_machine("k80x16", devices=count)
        options = {"bppsa": f"scan=blelloch,devices={count}", "gpipe": f"microbatches={count},rematerialize=on"}
        for name, batch in (("bppsa", 4), ("gpipe", 4 * count)):
            plan = planned(f"{name}:{options[name]}", Job(f"{chains.__file__}:tanh_{2 * count}", batch, form="fused"), machine)
            spans = forecast(plan, Target.of(CostModel(machine))).timeline.spans
            most[name].append(max(peaks(memory_over_time(plan, spans)).values()))
    assert len(set(most["bppsa"])) == 1
    grown = [later - earlier for earlier, later in pairwise(most["gpipe"])]
    assert grown[1] == 2 * grown[0] > 0


@pytest.mark.sampled(6)
@pytest.mark.parametrize("jacobian", ["auto", "dense", "csr"])
@pytest.mark.parametrize("scan", ["scan=linear", "level=1", "level=2", "scan=blelloch"])
def test_gradients_of_layers_are_those_of_autograd(scan, jacobian, two_cores, backend):
    assert error_of(job("every_layer"), f"{scan},jacobian={jacobian}", two_cores, backend) < 1e-10
    size = 16 if jacobian == "dense" else None  # products of whole Jacobians cost the third power of the pixels
    assert error_of(Job("lenet5", 2, size, precision="fp64"), f"{scan},jacobian={jacobian}", two_cores, backend) < 1e-10


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", ["scan=blelloch", "scan=blelloch,workers=1", ""])
def test_one_sample_and_microbatches(options, two_cores, backend):
    for training_job in (job("every_layer", 1), job("every_layer", 4, accumulate=2), Job(MLP, 4, precision="fp64")):
        assert error_of(training_job, options, two_cores, backend) < 1e-10


def test_float32_differs_by_rounding_only(two_cores, backend):
    assert error_of(Job("lenet5", 16), "scan=blelloch", two_cores, backend) < 1e-4


@pytest.mark.thorough
def test_vgg11_is_a_chain(two_cores, backend):
    """Compared after one step: its untrained layers let rounding grow from step to step."""
    assert error_of(Job("vgg11", 2, image_size=32), "scan=linear", two_cores, backend, steps=1) < 1e-4


@pytest.mark.thorough
def test_a_pruned_network_has_few_entries(two_cores, backend):
    """97 % of its weights stay zero."""
    assert error_of(Job("vgg11_pruned", 1, precision="fp64"), "level=1", two_cores, backend, steps=2) < 1e-10


def test_only_products_that_a_gradient_needs_are_computed(two_cores):
    """Linear, ReLU, linear, ReLU, linear: gradients of weights need two of the four gradients by activations."""
    plan = planned("bppsa:scan=linear", job("wide"), two_cores)
    products = [task for task in plan.tasks if task.body.kind == "jacobian-product"]
    assert len(products) == 4
    plan = planned("bppsa:scan=blelloch", job("wide"), two_cores)
    read = {operand.value for task in plan.tasks for operand in task.inputs}
    for task in plan.tasks:
        if task.body.kind in ("jacobian-product", "jacobian-values"):
            assert task.writes[0].value in read, task.name


@pytest.mark.parametrize(
    ("text", "training_job"),
    [("bppsa:scan=blelloch,workers=3", Job("gru_features", 2, image_size=21)), ("bppsa:scan=blelloch", job("every_layer"))],
    ids=["recurrent", "layers"],
)
def test_a_plan_goes_to_json_and_back(text, training_job, two_cores):
    plan = planned(text, training_job, two_cores)
    assert load(json.loads(json.dumps(dump(plan)))) == plan


def test_of_levels_that_the_host_makes_equal_the_one_with_the_shortest_kernels_is_chosen():
    """On a V100 the host is the bottleneck of every level, and a linear scan has the fewest launches, by 1 % at most."""
    machine, job = load_machine("v100"), Job("rnn_bitstream", 16, image_size=1000)
    alone, model = replace(machine, hosts=()), CostModel(machine)
    steps: dict[int, list[float]] = {}
    for level in range(10):
        plan = planned(f"bppsa:level={level}", job, machine)
        steps[level] = [simulate(plan, place, model.resolve(plan)).step_s for place in (machine, alone)]
    shortest = min(step_s for step_s, _ in steps.values())
    equal = {level: alone_s for level, (step_s, alone_s) in steps.items() if step_s <= 1.01 * shortest}
    assert steps[0][0] == shortest
    assert planned("bppsa", job, machine, model).semantics["scan_level"] == min(equal, key=equal.get) > 0


def test_the_level_of_layers_is_the_one_predicted_fastest(two_cores):
    training_job, model = Job("lenet5", 8), CostModel(two_cores)
    chosen = planned("bppsa", training_job, two_cores)
    step_s = {
        level: forecast(planned(f"bppsa:level={level}", training_job, two_cores), Target(two_cores, model)).timeline.step_s
        for level in range(3)
    }
    assert step_s[chosen.semantics["scan_level"]] == min(step_s.values())


@pytest.mark.parametrize(
    ("training_job", "options", "code", "words"),
    [
        (
            recurrent("lstm8"),
            "",
            Code.MODEL,
            r"recurrent layer 'recurrent' is an LSTM, whose state is a pair \(h, c\): its Jacobians, twice as wide, have no rule yet",
        ),
        (
            recurrent("read_at_all_steps"),
            "",
            Code.MODEL,
            "recurrent layer 'recurrent' has gradients at several steps, since the loss or a layer above reads its outputs there",
        ),
        (recurrent("first_output"), "", Code.MODEL, r"begins with one gradient, by the last state or the last output \(out\[:, -1\]\)"),
        (recurrent("rnn_with_initial_state"), "level=9", Code.REQUEST, "level is 9; expected 0 to 3, the level at which one block is left"),
        (Job("rnn_bitstream", 256, 30000), "", Code.MEMORY, r"needs 11\.4 GiB for its Jacobians, this machine has 953\.7 MiB"),
        (job("normalised"), "", Code.MODEL, "native_batch_norm_backward.*batch-norm"),
        (job("layer_normalised"), "", Code.MODEL, "native_layer_norm_backward"),
        (job("skip_connection"), "", Code.MODEL, "gradients branch or meet at"),
        (job("single"), "", Code.MODEL, "single layer"),
        (Job("lenet5", 256), "jacobian=dense", Code.MEMORY, r"needs \d+\.\d+ GiB for its Jacobians, this machine has 953\.7 MiB"),
    ],
)
def test_what_is_no_chain_or_needs_too_much_memory_is_refused(training_job, options, code, words):
    with refuses(code, words):
        planned(f"bppsa:{options}", training_job, cpu("cpu:0", cores=2))
