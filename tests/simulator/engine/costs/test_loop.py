"""Memory that a step of plain PyTorch takes from the system: mappings of their own, and a share of the rest."""

import math
from dataclasses import replace

import pytest

from simulator.engine.costs.cost import Cost
from simulator.engine.costs.fresh_memory import MAPPED_BYTES, SHARE, SHARE_ERROR, Fresh, added, fresh_bytes
from simulator.engine.costs.model import CostModel
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.bodies.update import Update
from simulator.plan.task import BACKWARD, Task
from simulator.predict.forecast import forecast_strategy
from simulator.predict.intervals import Z_90
from tests.support.jobs import MLP
from tests.support.own_profiles import profile_with
from tests.support.small_plans import mm, plan_of, sgd, value

X = value("x", (32, 64), "input")
W, G = value("w", (64, 64), "parameter"), value("g", (64, 64), "gradient")
A, B, C = (value(name, (32, 64), "activation") for name in "abc")
SMALL, WEIGHTS = 4 * 32 * 64, 4 * 64 * 64


def test_a_step_holds_two_of_three_activations_at_a_time():
    """a is freed when b is there, and b when c is there; the input and the weights are not allocated by the step."""
    plan = plan_of([mm("a", X, W, A), mm("b", A, W, B), mm("c", B, W, C)], [X, W, A, B, C])
    each = SHARE * 2 * SMALL / 3
    assert fresh_bytes(plan) == tuple([Fresh(0, pytest.approx(each))] * 3)


def test_a_large_tensor_is_fresh_in_every_step():
    rows = MAPPED_BYTES // (4 * 64)
    wide = value("wide", (rows, 64), "activation")
    plan = plan_of([mm("a", value("x", (rows, 64), "input"), W, wide)], [value("x", (rows, 64), "input"), W, wide])
    assert fresh_bytes(plan) == (Fresh(MAPPED_BYTES, 0.0),)


def add(name: str, left, right, out) -> Task:
    reads = (left.operand(), right.operand())
    return Task(name, OpCall("aten.add.Tensor", '[{"$":0},{"$":1}]'), out.device, reads=reads, writes=(out.operand(),), phase=BACKWARD)


def test_a_sum_of_gradients_takes_the_place_of_the_first_unless_that_is_needed_later():
    """As autograd does where a tensor is read twice. `also` reads the first gradient after the sum."""
    first, second, total, other = (value(name, (32, 64), "gradient") for name in ("first", "second", "total", "other"))
    sums = add("sum", first, second, total)
    also = add("also", first, total, other)
    made = [mm("a", X, W, first), mm("b", X, W, second)]
    values = [X, W, first, second, total, other]

    def allocated(*tasks):
        return [fresh.heap > 0 for fresh in fresh_bytes(plan_of([*made, *tasks], values))]

    assert allocated(sums) == [True, True, False]
    assert allocated(sums, also) == [True, True, True, False]


def update(optimizer: str, form: str, **hyper: float):
    """An update of two weights of one size, as bytes of its own tensors."""
    task = replace(sgd("update", W, G), reads=(G.operand(), G.operand()))
    return replace(task, body=Update(optimizer, form, ("w", "v"), tuple(hyper.items()))).body.temporaries(task)


def test_what_an_update_makes_for_itself():
    assert update("sgd", "foreach") == []
    assert update("momentum", "foreach") == [WEIGHTS, WEIGHTS], "the gradients with weight decay"
    assert update("momentum", "for") == [WEIGHTS], "one at a time"
    assert update("momentum", "foreach", weight_decay=0.0) == []
    assert update("adam", "foreach") == [WEIGHTS] * 4
    assert update("adamw", "foreach") == [WEIGHTS] * 2, "its decay needs no tensor"
    assert update("adam", "fused") == []


def test_it_takes_time_of_the_task_that_allocates():
    plan = plan_of([mm("a", X, W, A), mm("b", A, W, B)], [X, W, A, B])
    costs = [Cost("key", 1.0, 1.0, overhead_s=0.5)] * 2
    assert added(plan, costs, 0.0) == costs
    priced = added(plan, costs, 1e-3)
    assert [cost.overhead_s for cost in priced] == [pytest.approx(0.5 + 1e-3 * SHARE * SMALL)] * 2
    assert [cost.fresh_error for cost in priced] == [SHARE_ERROR] * 2


def test_only_plain_pytorch_has_it_and_all_of_it_is_wrong_together():
    job = Job(MLP, 6)
    profile = profile_with(1.0, job)
    machine = this_cpu(profile)
    seconds, intervals = {}, {}
    for s_per_byte in (0.0, 1.0):
        profile.loop = profile.loop.model_copy(update={"fresh_s_per_byte": s_per_byte})
        for name in ("pytorch", "baseline"):
            seen = forecast_strategy(job, name, {}, machine, CostModel(machine, profile))
            seconds[name, s_per_byte], intervals[name, s_per_byte] = seen.timeline.step_s, seen.interval_s
    assert seconds["baseline", 1.0] == seconds["baseline", 0.0]
    plan = forecast_strategy(job, "pytorch", {}, machine, CostModel(machine, profile)).plan
    assert seconds["pytorch", 1.0] - seconds["pytorch", 0.0] == pytest.approx(sum(sum(each) for each in fresh_bytes(plan)))
    low_s, high_s = intervals["pytorch", 1.0]
    assert high_s / low_s >= math.exp(2 * Z_90 * SHARE_ERROR) * 0.95, "nearly all of this step is fresh memory"
