"""Plain PyTorch, with which plans are compared, trains the user's own module; unusual steps are trained exactly or refused."""

import inspect
from dataclasses import replace

import pytest
import torch

from calibrate.numerics import Expected, Numerics, References, compare, reference
from executors.tensors import job_tensors
from simulator.model.capture.capture import capture
from simulator.model.job import Job
from simulator.strategies import registry as strategies
from tests.support import stateful_models
from tests.support.jobs import planned
from traces.errors import SchedcastError

MODELS = [
    name
    for name, make in vars(stateful_models).items()
    if inspect.isfunction(make) and make.__module__ == stateful_models.__name__ and name != "_made"
]


def job_of(model: str, **fields) -> Job:
    return Job(f"{stateful_models.__file__}:{model}", 4, precision=fields.pop("precision", "fp64"), **fields)


@pytest.mark.parametrize("model", MODELS)
def test_five_steps_equal_plain_pytorch(model, two_cores, backend):
    # A conversion to float64 replaces parameters in their modules, but not in a user's list.
    precision, limit = ("fp32", 1e-5) if model == "parameter_in_a_list" else ("fp64", 1e-10)
    job = job_of(model, precision=precision)
    built = job.build()
    expected = Expected.of(job, built)
    for name in ("baseline", "turbodl"):
        numerics = compare(job, built, planned(name, job, two_cores), backend, expected)
        assert max(numerics.max_grad_error, numerics.max_param_error) <= limit, name


CHAOTIC = """
import torch

class Map(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.start = torch.nn.Parameter(torch.rand(4, 8))

    def forward(self, x):
        state = self.start
        for _ in range({times}):
            state = 4 * state * (1 - state)
        return x + state

def make(batch):
    return Map(), torch.zeros(batch, 8), torch.zeros(batch, 8), torch.nn.functional.mse_loss
"""


@pytest.mark.parametrize(("times", "judged_equal"), [(1, False), (24, True)])
def test_numbers_that_rounding_alone_changes_as_much_are_equal(tmp_path, two_cores, backend, times, judged_equal):
    """The logistic map doubles a difference each time: after 24 times, one rounding has become another number."""
    path = tmp_path / "model.py"
    path.write_text(CHAOTIC.replace("{times}", str(times)))
    job = Job(f"{path}:make", 4)
    strategy, options = strategies.parse("baseline")
    plan = strategy.plan(job, two_cores, None, options)
    far = Numerics(0.5, 0.01)
    judged = References(job, job.build(), 1, None).judged(plan, far, backend)
    assert judged.equal("fp32") is judged_equal
    assert not far.equal("fp32")
    same = Numerics(1e-6, 1e-7)
    assert References(job, job.build(), 1, None).judged(plan, same, backend) == same, "nothing to judge"
    faster = strategy.plan(replace(job, lr=1.0), two_cores, None, options)
    assert References(job, job.build(), 1, None).judged(faster, far, backend) == far, "its first step differs already"


def test_noise_is_drawn_anew_for_every_microbatch(two_cores, backend):
    job = job_of("draws_noise", accumulate=2)
    built = job.build()
    numerics = compare(job, built, planned("forward-fusion", job, two_cores), backend, Expected.of(job, built))
    assert max(numerics.max_grad_error, numerics.max_param_error) <= 1e-10


def test_the_reference_is_the_users_own_module_and_is_restored():
    built = job_of("cannot_be_copied").build()
    before = {name: tensor.clone() for name, tensor in built.module.state_dict().items()}
    weight = built.module.first.weight
    with built.restored():
        plain = reference(job_of("cannot_be_copied"), built, same_masks=False)
        assert plain.module is built.module
        plain.step()
        assert not weight.equal(before["first.weight"])
        built.replace_tensors(torch.clone)
        assert built.module.first.weight is not weight
    assert built.module.first.weight is weight
    assert weight.grad is None
    assert all(tensor.equal(before[name]) for name, tensor in built.module.state_dict().items())


def test_a_factory_that_makes_another_model_each_time_is_refused():
    job = job_of("draws_noise")
    graph = job.graph()
    built = job.build()
    built.module.first = torch.nn.Linear(4, 5, dtype=torch.float64)
    with pytest.raises(SchedcastError, match=r"makes another model each time: first.weight is \(5, 4\) of torch.float64, and was \(4, 4\)"):
        job_tensors(job, built, graph)


def test_a_changed_copy_of_a_job_has_graphs_of_its_own():
    from dataclasses import replace

    job = job_of("draws_noise")
    assert job.graph().values["first.weight"].dtype == "float64"
    assert replace(job, precision="fp32").graph().values["first.weight"].dtype == "float32"


def test_a_batch_may_be_flattened_but_must_heed_its_size():
    from simulator.model.factory import Factory, call_factory

    def flattened(batch: int):
        return torch.nn.Linear(3, 2), torch.randn(8 * batch, 3), torch.zeros(8 * batch, dtype=torch.int64)

    assert capture(lambda: call_factory(Factory("mine", flattened, None), 4), batch=4).values["input:0"].shape == (32, 3)
    with pytest.raises(SchedcastError, match=r"made input:0 \(32, 3\), target:0 \(32,\) for batch size 4; .*use its argument"):
        call_factory(Factory("mine", lambda _: flattened(4), None), 4)
