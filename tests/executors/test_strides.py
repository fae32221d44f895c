"""Results whose strides differ from those of the plan, as CUDA's kernels return them: the numbers stay those of plain PyTorch."""

import logging

import pytest
import torch

from calibrate.numerics import Expected, compare
from executors.binding import Binding, Instance, fits
from executors.kernels import ops
from simulator.model.job import Job
from simulator.model.ops.aten_json import resolve
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.ops import ROWS
from simulator.plan.task import ACTIVATION, Operand, check_op
from tests.support.jobs import planned
from tests.support.places import USER_MODELS
from tests.support.small_plans import plan_of, value

MODELS = {path.stem: f"{path}:make" for path in USER_MODELS}


def column_major(result):
    """Tensors with the same elements whose first dimension is the innermost one in memory."""
    if isinstance(result, torch.Tensor):
        reversed_dims = tuple(reversed(range(result.dim())))
        return torch.empty(result.shape[::-1], dtype=result.dtype).permute(reversed_dims).copy_(result)
    return type(result)(map(column_major, result)) if isinstance(result, tuple | list) else result


@pytest.fixture
def other_strides(monkeypatch):
    """Lets every op return results in column-major order, but for opaque results, which its backward kernel may read by address."""
    original = ops.resolve

    class Op:
        def __init__(self, target):
            self._op, self._schema, self._opaque = original(target), original(target)._schema, OpCall(target).opaque

        def __call__(self, *args, **kwargs):
            results = self._op(*args, **kwargs)
            if self._schema.is_mutable:
                return results
            if not isinstance(results, tuple):
                return column_major(results)
            return tuple(result if position in self._opaque else column_major(result) for position, result in enumerate(results))

    monkeypatch.setattr(ops, "resolve", Op)


@pytest.mark.thorough
@pytest.mark.usefixtures("other_strides")
@pytest.mark.parametrize("form", ["for", "foreach", "fused"])
@pytest.mark.parametrize("model", sorted(MODELS))
def test_numbers_do_not_depend_on_the_strides_of_results(model, form, two_cores, backend):
    job = Job(MODELS[model], 4, precision="fp64", optimizer="adam", form=form)
    built = job.build()
    plan = planned("baseline", job, two_cores)
    assert compare(job, built, plan, backend, Expected.of(job, built, 3), 3).equal("fp64")


@pytest.fixture
def binding() -> Binding:
    """A binding of the values x and y, both planned as contiguous 4 x 6 matrices."""
    return Binding(plan_of([], [value(name, (4, 6), ACTIVATION) for name in "xy"]), {}, lambda _: torch.device("cpu"))


def test_a_result_with_other_strides_is_copied_and_reported_once(binding, caplog):
    instance, other = Instance(0, 2, []), torch.randn(6, 4).t()
    with caplog.at_level(logging.WARNING):
        for name in "xyxy":
            binding.setter(Operand(name, (4, 6), (6, 1), "float32"))(instance, other)
    for stored in instance.slots:
        assert stored.is_contiguous()
        assert torch.equal(stored, other)
    assert caplog.messages == [
        "x comes with strides (1, 4) and was planned with (6, 1), so every step copies it, which no prediction contains"
    ]


def test_a_result_that_fits_is_stored_as_it_is(binding, caplog):
    instance, result = Instance(0, 2, []), torch.randn(4, 6)
    binding.setter(Operand("x", (4, 6), (6, 1), "float32"))(instance, result)
    assert instance.slots[0] is result
    assert caplog.messages == []


def test_an_opaque_result_is_stored_as_it_comes(binding, caplog):
    instance, result = Instance(0, 2, []), torch.randn(6, 4).t()
    binding.setter(Operand("x", (4, 6), (6, 1), "float32"), opaque=True)(instance, result)
    assert instance.slots[0] is result
    assert caplog.messages == []


@pytest.mark.parametrize("target", [f"aten.{name}.{'Tensor' if 'ctc' in name else 'default'}" for name, row in ROWS.items() if row.opaque])
def test_opaque_results_exist_and_a_plan_may_call_the_op(target):
    op = resolve(target)
    assert max(OpCall(check_op(target)).opaque) < len(op._schema.returns)
    assert 0 not in OpCall(target).opaque


@pytest.mark.parametrize(
    ("tensor", "shape", "strides", "as_it_is"),
    [
        (torch.empty(8, 4, 1, 1), (8, 4, 1, 1), (4, 1, 4, 4), True),  # channels-last or not: dimensions of size 1 have any stride
        (torch.empty(8, 4, 3, 3), (8, 4, 3, 3), (36, 1, 12, 4), False),
        (torch.empty(2, 3, 32), (2, 3, 5), (15, 5, 1), True),  # a backend's own form of the value
        (torch.empty(4, 6), (4, 6), (1, 0), True),  # no copy can have strides that name an element twice
    ],
)
def test_which_results_fit(tensor, shape, strides, as_it_is):
    assert fits(tensor, Operand("x", shape, strides, "float32")) is as_it_is
