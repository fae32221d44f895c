"""Ops as points of a roofline."""

import pytest

from simulator.engine.costs.op_points import OpPoint, Roof, key_points, op_points, roof
from simulator.model.job import Job
from simulator.predict.forecast import plan_of
from simulator.predict.target import preset_target
from traces.documents.profile import Identity, KeyCost, Profile, Stats


def test_the_roof_bends_where_memory_feeds_the_peak():
    own = Roof({"fp32": 100.0, "bf16": 400.0}, 10.0)
    assert [own.at(intensity, "fp32") for intensity in (1, 10, 100)] == [10, 100, 100]
    assert own.at(100, "bf16") == 400
    assert own.at(100, "fp16") == 400  # as fast as bf16 where nothing else is known
    point = OpPoint("mm", "matmul", "measured", flops=200.0, bytes=100.0, seconds=20.0)
    assert (point.intensity, point.flops_per_s, own.reached(point)) == (2, 10, 0.5)


def test_every_op_of_a_plan_is_a_point_and_none_is_above_the_roof():
    job = Job("lenet5", 256)
    target = preset_target(job, "h100")
    machine, model = target.machine, target.costs
    plan = plan_of(job, "baseline", target)
    points = op_points(plan, model)
    assert sum(point.count for point in points) == len(plan.tasks)
    assert sum(point.count * point.seconds for point in points) == pytest.approx(sum(cost.cold_s for cost in model.resolve(plan)))
    own = roof(model)
    assert own.bytes_per_s == pytest.approx(machine.memories[0].bandwidth_bytes_per_s * machine.memories[0].reached)
    assert all(own.reached(point) <= 1 for point in points if point.drawable)
    assert {"conv", "matmul"} <= {point.op_class for point in points}


def test_a_task_on_a_cpu_has_one_core():
    job = Job("lenet5", 8)
    one = preset_target(job, "h100").costs
    assert roof(one).peaks["fp32"] == one.machine.devices[0].peak_flops["fp32"] * one.machine.devices[0].reached


def test_the_keys_of_a_profile_are_points_with_their_cold_times():
    warm, cold = Stats.from_samples([0.001]), Stats.from_samples([0.002])
    costs = {"mm@2": KeyCost(warm, cold, "matmul", 10.0, 5.0), "relu@2": KeyCost(warm, None, "elementwise", 1.0, 1.0), "x@2": KeyCost(warm)}
    profile = Profile(identity=Identity(kind="cpu"), costs=costs)
    assert [(point.name, point.seconds) for point in key_points(profile)] == [("mm@2", 0.002), ("relu@2", 0.001)]
