"""BPPSA on chains of layers: the numbers of autograd with dense and sparse Jacobians, and refusals."""

import json

import pytest

from calibrate.numerics import STEPS, Expected, compare
from simulator.engine.costs.model import CostModel
from simulator.model.job import Job
from simulator.plan.json import dump, load
from simulator.predict.forecast import forecast
from tests.support import chain_models
from tests.support.jobs import MLP, planned
from tests.support.tiny import cpu
from traces.errors import SchedcastError


def job(factory: str, batch: int = 3, **fields) -> Job:
    return Job(f"{chain_models.__file__}:{factory}", batch, **{"precision": "fp64", **fields})


def error(training_job: Job, machine, backend, options: str, steps: int = STEPS) -> float:
    plan = planned(f"bppsa:{options}", training_job, machine)
    built = training_job.build()
    numerics = compare(training_job, built, plan, backend, Expected.of(training_job, built, steps), steps)
    return max(numerics.max_grad_error, numerics.max_param_error)


@pytest.mark.parametrize("jacobian", ["auto", "dense", "csr"])
@pytest.mark.parametrize("scan", ["scan=linear", "level=1", "level=2", "scan=blelloch"])
def test_gradients_are_those_of_autograd(scan, jacobian, two_cores, backend):
    assert error(job("every_layer"), two_cores, backend, f"{scan},jacobian={jacobian}") < 1e-10
    size = 16 if jacobian == "dense" else None  # products of whole Jacobians cost the third power of the pixels
    assert error(Job("lenet5", 2, size, precision="fp64"), two_cores, backend, f"{scan},jacobian={jacobian}") < 1e-10


@pytest.mark.parametrize("options", ["scan=blelloch", "scan=blelloch,workers=1", ""])
def test_one_sample_and_microbatches(options, two_cores, backend):
    for training_job in (job("every_layer", 1), job("every_layer", 4, accumulate=2), Job(MLP, 4, precision="fp64")):
        assert error(training_job, two_cores, backend, options) < 1e-10


def test_float32_differs_by_rounding_only(two_cores, backend):
    assert error(Job("lenet5", 16), two_cores, backend, "scan=blelloch") < 1e-4


def test_vgg11_is_a_chain(two_cores, backend):
    """Compared after one step: its untrained layers let rounding grow from step to step."""
    assert error(Job("vgg11", 2, image_size=32), two_cores, backend, "scan=linear", steps=1) < 1e-4


def test_a_pruned_network_has_few_entries(two_cores, backend):
    """97 % of its weights stay zero."""
    assert error(Job("vgg11_pruned", 1, precision="fp64"), two_cores, backend, "level=1", steps=2) < 1e-10


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


def test_a_plan_goes_to_json_and_back(two_cores):
    plan = planned("bppsa:scan=blelloch", job("every_layer"), two_cores)
    assert load(json.loads(json.dumps(dump(plan)))) == plan


def test_the_level_is_the_one_predicted_fastest(two_cores):
    training_job, model = Job("lenet5", 8), CostModel(two_cores)
    chosen = planned("bppsa", training_job, two_cores)
    step_s = {
        level: forecast(planned(f"bppsa:level={level}", training_job, two_cores), two_cores, model).timeline.step_s for level in range(3)
    }
    assert step_s[chosen.semantics["scan_level"]] == min(step_s.values())


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("normalised", "native_batch_norm_backward.*batch-norm"),
        ("layer_normalised", "native_layer_norm_backward"),
        ("residual", "gradients branch or meet at"),
        ("single", "single layer"),
    ],
)
def test_models_that_are_no_chain_are_refused(factory, message, two_cores):
    with pytest.raises(SchedcastError, match=message):
        planned("bppsa", job(factory), two_cores)


def test_a_dense_jacobian_that_exceeds_the_memory_is_refused_with_its_size():
    with pytest.raises(SchedcastError, match=r"needs \d+\.\d+ GiB for its Jacobians, this machine has 953\.7 MiB"):
        planned("bppsa:jacobian=dense", Job("lenet5", 256), cpu("cpu:0", cores=2))
