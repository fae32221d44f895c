"""A GPU's key that was not measured is the table's, corrected by what measured keys like it take compared with the table."""

import math
from dataclasses import replace

import numpy as np
import pytest

from simulator.engine.costs.cost import DATASHEET, FITTED, MEASURED
from simulator.engine.costs.model import CostModel
from simulator.engine.costs.ratios import REACH, TABLE, ratio_near
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.bodies.opcall import ListedOp
from simulator.predict.forecast import answer
from simulator.predict.target import preset_target, profile_of_preset
from tests.support.jobs import planned
from tests.support.small_plans import mm, value
from traces.documents.profile import Identity, KeyCost, Profile, Stats

H100 = load_machine("h100")
ONES = np.ones(3)


def test_measured_keys_and_the_table_weigh_by_their_number():
    ratio = ratio_near(1.0, 0.5, 4 * ONES, ONES)
    assert (ratio.value, ratio.weight) == (4 ** (3 / (3 + TABLE)), 3.0)
    of_keys, of_table = 3 * math.log(4 / ratio.value) ** 2, TABLE * 0.5**2
    assert ratio.error == pytest.approx(math.sqrt((of_keys + of_table) / (3 + TABLE)))


def test_far_from_all_measured_keys_the_table_is_left():
    near, far = (ratio_near(table_s, 0.5, 4 * ONES, ONES) for table_s in (REACH, 1e12))
    assert near.weight == pytest.approx(3 * math.exp(-0.5))
    assert (far.value, far.error) == pytest.approx((1.0, 0.5))


def test_one_slow_key_does_not_decide_for_the_others():
    """It may be one that a library has no fast kernel for."""
    measured_s, table_s = np.array([1.0, 1.0, 1.0, 1.0, 6.0]), np.ones(5)
    assert ratio_near(1.0, 0.5, measured_s, table_s).value == 1.0


def test_the_op_of_a_key_is_read_back():
    """But for its results, of which a key says nothing."""
    for task in planned("baseline", Job("resnet18", 2, 64, precision="amp"), H100).tasks:
        key = task.body.key(task)
        op = ListedOp.of_key(key, task.body.work(task).flops, task.body.launches)
        if task.body.is_update:
            assert op is None
        elif op is not None:
            assert op.body.key(op) == key
            assert [(o.shape, o.dtype) for o in op.inputs] == [(o.shape, o.dtype) for o in task.inputs]


def product(columns: int, dtype: str = "bfloat16"):
    operands = (value("a", (512, 512), "input"), value("b", (512, columns), "parameter"), value("c", (512, columns), "activation"))
    return replace(mm("mm", *(replace(each, dtype=dtype) for each in operands)), device="cuda:0")


def slow(*columns: int) -> CostModel:
    """Costs of a GPU whose bf16 products with so many columns take ten times what the table says."""
    costs = {}
    for task in map(product, columns):
        seconds, work = 10 * CostModel(H100).cost(task).cold_s, task.body.work(task)
        costs[f"{task.body.key(task)}@132"] = KeyCost(Stats(*[seconds] * 4, 1), None, "matmul", work.flops, work.bytes)
    return CostModel(H100, Profile(identity=Identity(kind="gpu", sms=132), costs=costs))


def test_products_that_tensor_cores_cannot_load_say_nothing_of_those_that_they_can():
    odd = slow(513, 515, 517, 519, 521)
    assert odd.cost(product(523)).source == FITTED
    assert odd.cost(product(528)) == CostModel(H100).cost(product(528))
    assert odd.cost(product(523, "float32")).source == DATASHEET


def test_what_was_measured_counts_whatever_the_models_name_is():
    """The two are one network."""
    own, other = (
        answer(job, "baseline", preset_target(job, "h100"))
        for job in (Job(name, 64, precision="amp", optimizer="adamw", form="fused") for name in ("resnet50", "torchvision:resnet50"))
    )
    assert own.shares.measured == other.shares.measured == 1.0
    assert own.timeline.step_s == other.timeline.step_s


def test_a_key_counts_only_for_the_precision_in_which_its_kernel_ran(tmp_path, monkeypatch):
    in_fp32 = "aten.convolution.default|f32[1,1,8,8]|f32[1,1,3,3]|[]@132"
    keys = {in_fp32: "conv", in_fp32.replace("f32", "bf16"): "conv", "aten.relu.default|f32[8]|[]@132": "elementwise"}
    costs = {key: KeyCost(Stats(1.0, 1.0, 1.0, 1.0, 1), None, op_class) for key, op_class in keys.items()}
    Profile(identity=Identity(kind="gpu"), costs=costs).save(tmp_path / "nvidia-h100-80gb-hbm3" / "profile.json.gz")
    monkeypatch.setenv("SCHEDCAST_SHIPPED", str(tmp_path))
    assert profile_of_preset("h100").costs.keys() == keys.keys()
    for precision in ("tf32", "default"):
        assert profile_of_preset("h100", precision=precision).costs.keys() == keys.keys() - {in_fp32}
    assert profile_of_preset("h100-pcie") is None


def test_an_interval_is_as_wide_as_the_parts_that_were_not_measured():
    """All of ResNet-50's kernels in mixed precision were measured, none of its convolutions in FP32."""
    jobs = (Job("resnet50", 64, precision=precision, optimizer="adamw", form="fused") for precision in ("amp", "fp32"))
    known, guessed = (answer(job, "baseline", preset_target(job, "h100")) for job in jobs)
    widths = [math.log(high / low) for low, high in (each.interval_s for each in (known, guessed))]
    assert widths[0] < widths[1]
    assert {cost.source for cost in known.costs} == {MEASURED}
    assert known.accuracy == 0.0 < guessed.accuracy
