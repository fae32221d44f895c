"""Keys of another batch or image size are scaled from the measured key of the same op."""

import math

import pytest

from simulator.engine.costs.model import FITTED, CostModel
from simulator.engine.costs.relatives import Relatives, scaling_error
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.keys import cost_key
from simulator.strategies import registry as strategies
from traces.documents.profile import Identity, KeyCost, Profile, Stats


def relatives(*keys):
    return Relatives([("family", key) for key in keys])


def test_the_nearest_key_differs_by_one_factor():
    known = relatives("mm|f32[8,100]|f32[100,10]@80", "mm|f32[16,100]|f32[100,10]@80", "mm|f32[16,50]|f32[100,10]@80")
    key, log = known.nearest("family", "mm|f32[64,100]|f32[100,10]@80")
    assert (key, log) == ("mm|f32[16,100]|f32[100,10]@80", pytest.approx(math.log(4)))


def test_all_extents_that_differ_do_so_by_the_same_factor():
    known = relatives("conv|f32[8,3,32,32]|f32[6,3,5,5]@80")
    assert known.nearest("family", "conv|f32[8,3,64,64]|f32[6,3,5,5]@80")[1] == pytest.approx(math.log(2))
    assert known.nearest("family", "conv|f32[16,3,64,64]|f32[6,3,5,5]@80")[1] == pytest.approx(math.log(2))
    assert known.nearest("family", "conv|f32[16,3,96,96]|f32[6,3,5,5]@80") is None


def test_there_is_no_relative_in_another_family_or_on_other_sms():
    known = relatives("mm|f32[8,100]@80")
    assert known.nearest("other", "mm|f32[16,100]@80") is None
    assert known.nearest("family", "mm|f32[16,100]@40") is None


def test_little_error_comes_with_little_scaling():
    assert scaling_error(0.3, math.log(1.1)) < 0.05
    assert scaling_error(0.3, math.log(8)) == 0.3


def test_what_is_special_about_a_layer_stays_at_another_batch():
    """Every second layer was measured at three times the time by FLOPs; a fit over all layers cannot know which."""
    machine = load_machine("v100")
    strategy, options = strategies.parse("baseline")
    profile = Profile(identity=Identity(kind="gpu", gpu="Tesla V100-SXM2-16GB", sms=80))
    slow = {}
    for index, task in enumerate(strategy.plan(Job("lenet5", 64), machine, None, options).tasks):
        work = task.body.work(task)
        seconds = (1e-5 + work.flops / 5e12 + work.bytes / 5e11) * (3 if index % 2 else 1)
        stats = Stats(seconds, seconds, seconds, seconds, 1)
        profile.costs.setdefault(cost_key(task, machine), KeyCost(stats, None, work.op_class, work.flops, work.bytes))
        slow.setdefault(task.name, index % 2)
    model = CostModel(machine, profile)
    convolutions = {}
    for task in strategy.plan(Job("lenet5", 128), machine, None, options).tasks:
        cost = model.cost(task)
        if task.body.kind == "op" and ".mm." in task.body.target:
            assert cost.source == FITTED
            convolutions[task.name] = (cost.cold_s, slow[task.name])
    assert min(s for s, is_slow in convolutions.values() if is_slow) > 2 * max(s for s, is_slow in convolutions.values() if not is_slow)
