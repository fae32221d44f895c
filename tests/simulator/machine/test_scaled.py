"""A machine with other figures: what scales, what stays, and what costs and predictions make of it."""

import pytest

from calibrate.placement import Placement
from calibrate.profiles import target_for
from simulator.engine.costs.model import CostModel
from simulator.engine.costs.scaled import scaled_costs
from simulator.machine.presets import load_machine
from simulator.machine.scaled import AS_IT_IS, Scale, scale_of, scaled
from simulator.model.job import Job
from simulator.plan.task import Resource
from simulator.predict.forecast import forecast, plan_of
from tests.support.refusals import refuses
from traces.documents.collectives import CollectiveLaw, LawPiece
from traces.documents.profile import Identity, KeyCost, Profile, Stats
from traces.errors import Code, UnknownNameError


def test_each_factor_scales_its_figures_alone():
    before = load_machine("dgx-h100")
    for field, changed in (
        ("sms", ("sms", "peak_flops", "power_w", "saturation_share")),
        ("flops", ("peak_flops", "power_w")),
        ("memory", ("bandwidth_bytes_per_s", "saturation_share")),
        (
            "launch",
            (
                "dispatch_s",
                "record_s",
                "wait_s",
                "graph_launch_s",
                "callback_s",
                "loop_s",
                "forward_step_s",
                "backward_step_s",
                "batch_s",
                "sample_s",
            ),
        ),
        ("link", ("link",)),
    ):
        after = scaled(before, Scale(**{field: 0.5}))
        pairs = [(before.devices[0], after.devices[0]), (before.memories[0], after.memories[0]), (before.hosts[0], after.hosts[0])]
        differs = {name for one, other in pairs for name in vars(one) if getattr(one, name) != getattr(other, name)}
        if before.links != after.links:
            differs.add("link")
        assert differs == set(changed)
    assert scaled(before, AS_IT_IS) is before


def test_half_the_sms_have_half_the_flops_and_draw_as_much_each():
    before = load_machine("h100")
    after = scaled(before, Scale(sms=0.5))
    assert after.devices[0].sms == 66
    assert after.devices[0].peak_flops["fp32"] == before.devices[0].peak_flops["fp32"] / 2
    assert after.memories[0].saturation_share == 2 * before.memories[0].saturation_share


def test_a_faster_link_shortens_the_transfer_of_a_collective_and_not_its_latency():
    law = CollectiveLaw(pieces=[LawPiece(1e9, 1e-5, 1e-10)], points=[(1e6, 2e-4)])
    assert law.faster(2).parts(1e8) == (1e-5, 5e-3)
    assert law.faster(2).seconds(1e6) == pytest.approx(1e-5 + 1.9e-4 / 2)


def test_text_round_trip_and_refusals():
    assert scale_of(" memory=2, link=0.5,") == Scale(memory=2, link=0.5)
    assert scale_of(Scale(sms=1.5, launch=0.25).text) == Scale(sms=1.5, launch=0.25)
    with pytest.raises(UnknownNameError, match=r"figure for --scale.*memry"):
        scale_of("memry=2")
    with refuses(Code.REQUEST):
        scale_of("memory=fast")
    for text in ("memory=nan", "memory=1e999"):
        with refuses(Code.REQUEST, "is not a number"):
            scale_of(text)
    for text in ("memory=0", "memory=-1", "memory=1e9"):
        with refuses(Code.REQUEST, r"expected a factor from 0.001 to 1000"):
            scale_of(text)


def costs_by_class(machine, scale):
    """Cold seconds and issue times by key of lenet5's baseline on a machine with other figures."""
    job = Job("lenet5", 64)
    target = target_for(job, None, machine, Placement(scale=scale))
    plan = plan_of(job, "baseline", target)
    return forecast(plan, target), target.costs.resolve(plan), plan


@pytest.mark.parametrize("machine", ["h100", "this-cpu"])
def test_costs_follow_what_bounds_them(machine):
    _, own, plan = costs_by_class(machine, AS_IT_IS)
    _, fast, _ = costs_by_class(machine, Scale(flops=100, memory=100))
    _, same, _ = costs_by_class(machine, Scale(flops=1.0000001))
    computes = [i for i, task in enumerate(plan.tasks) if task.body.resource is Resource.COMPUTE]
    assert all(fast[i].cold_s <= own[i].cold_s for i in computes)
    assert sum(fast[i].cold_s for i in computes) < sum(own[i].cold_s for i in computes)
    assert all(same[i].cold_s == pytest.approx(own[i].cold_s) for i in computes)
    assert [cost.key for cost in fast] == [cost.key for cost in own], "the errors of one key are drawn together"


def test_a_step_waits_for_a_slow_host():
    slow, fast = (costs_by_class("h100", Scale(launch=factor))[0] for factor in (20, 10))
    assert fast.timeline.step_s < slow.timeline.step_s


def test_the_host_of_plain_pytorch_is_as_much_faster_as_that_of_a_plan():
    steps = {}
    for strategy in ("pytorch", "baseline"):
        for factor in (8, 4):  # the step waits for the host
            job = Job("lenet5", 64)
            target = target_for(job, None, "h100", Placement(scale=Scale(launch=factor)))
            steps[strategy, factor] = forecast(plan_of(job, strategy, target), target).timeline.step_s
    for strategy in ("pytorch", "baseline"):
        assert steps[strategy, 8] == pytest.approx(2 * steps[strategy, 4], rel=0.02)


def test_plain_pytorch_and_partitions_are_scaled_too():
    for machine, partition, strategy in (("this-cpu", None, "pytorch"), ("h100", 2, "gpipe"), ("h100", 2, "baseline")):
        steps = []
        for factor in (1, 0.05):
            job = Job("lenet5", 64)
            target = target_for(job, None, machine, Placement(partition=partition, scale=Scale(flops=factor, memory=factor)))
            steps.append(forecast(plan_of(job, strategy, target), target).timeline.step_s)
        assert steps[1] > steps[0]


def test_a_measured_kernel_changes_by_what_the_table_says_of_it():
    job = Job("lenet5", 64)
    target = target_for(job, None, "h100")
    machine, table = target.machine, target.costs
    plan = plan_of(job, "baseline", target)
    guessed = {cost.key: cost for cost in table.resolve(plan)}

    def slow(cost):
        """A key that takes three times as long as the table says."""
        stats = [Stats(s, s, s, s, 9) for s in (3 * cost.warm_s, 3 * cost.cold_s)]
        return KeyCost(*stats, cost.op_class, 1e6, 1e6, grid=7, blocks_per_sm=2, issue_s=1e-5)

    profile = Profile(identity=Identity(kind="gpu", gpu="toy"), costs={key: slow(cost) for key, cost in guessed.items()})
    own = CostModel(machine, profile)
    scale = Scale(flops=4, memory=2, launch=0.5)
    scaled_table, scaled_own = scaled_costs(table, scale), scaled_costs(own, scale)
    for task in plan.tasks:
        after, expected, before = scaled_own.cost(task), scaled_table.cost(task), own.cost(task)
        assert after.warm_s == pytest.approx(3 * expected.warm_s)
        assert after.issue_s == before.issue_s / 2
        assert (after.key, after.grid, after.blocks_per_sm) == (before.key, before.grid, before.blocks_per_sm)
        assert (before.source, after.source) == ("measured", "measured" if after.cold_s == before.cold_s else "fitted")
        assert after.compute_share <= 1
        assert after.memory_share <= 1
    assert scaled_own.for_pytorch is scaled_own.for_pytorch, "its costs are kept"
