"""A matrix product on tensor cores: tiles in waves over the SMs, split sums, skinny products, the cache and the power limit."""

import numpy as np
import pytest

from simulator.engine.costs import efficiencies, products
from simulator.engine.costs.model import CostModel
from simulator.engine.costs.products import Attention, Product
from simulator.engine.costs.site import Site, Sites
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from tests.support.jobs import planned
from tools import fit_products

KERNEL = efficiencies.table()["gpu"].row("matmul").product
#: An H100 as round numbers: 132 SMs of 4096 FLOPs per cycle at 2 GHz.
H100 = Site("gpu", 132, {"fp32": 67e12, "bf16": 132 * 4096 * 2e9}, 3.35e12, 50 << 20, clock_hz=2e9)


def seconds(
    rows: float, columns: float, depth: float, site: Site = H100, missed: float = 0.0, batch: float = 1.0, alone: bool = True
) -> float:
    """The time of a product in bf16."""
    return products.seconds(KERNEL, site, "bf16", Product(batch, rows, columns, depth, 2.0), missed, alone)


def test_a_product_of_almost_nothing_takes_the_start_the_edges_of_a_tile_and_a_step():
    of_sm, tile = 4096 * 2e9, (64, 16)
    edge_s = KERNEL.edge_depth.value * 2 * 64 * 16 / of_sm
    step_s = 64 * sum(tile) * 2 / KERNEL.feed.value / of_sm  # its operands arrive more slowly than it computes, and than a step's latency
    assert step_s > max(64 * 2 * 64 * 16 / KERNEL.compute.value / of_sm, KERNEL.step_cycles.value / 2e9)
    moved_s = 2 * (16 * 64 + 64 * 32 + 16 * 32) / (2 * KERNEL.draw.value * 2e9)  # 32 columns are two tiles, of two SMs
    expected = KERNEL.start_cycles.value / 2e9 + ((edge_s + step_s) ** 3 + moved_s**3) ** (1 / 3)
    assert seconds(16, 32, 64) == pytest.approx(expected)


def test_a_large_product_computes_at_its_share_of_the_peak_but_for_the_edges_of_its_tiles():
    rows, columns, depth = 128 * 132, 256 * 8, 65536.0
    ideal = 2 * rows * columns * depth / (H100.peak_flops["bf16"] * KERNEL.compute.value)
    assert seconds(rows, columns, depth) == pytest.approx(ideal, rel=0.02)


def test_one_tile_more_than_the_sms_hold_is_another_wave():
    fewer, full, more = (seconds(64, 16, 64, batch=count) for count in (1319, 1320, 1321))
    assert more - full > 3 * (full - fewer) > 0, "1320 are ten for each of 132 SMs"


def test_operands_in_tf32_are_twice_as_long_and_arrive_as_fast():
    site = H100._replace(peak_flops={**H100.peak_flops, "tf32": H100.peak_flops["bf16"] / 2})
    work = Product(1.0, 8192.0, 8192.0, 8192.0, 4.0)
    assert products.seconds(KERNEL, site, "tf32", work, 0.0) == pytest.approx(2 * seconds(8192, 8192, 8192, alone=False), rel=0.05)
    weight = Product(1.0, 16.0, 8192.0, 8192.0, 4.0)  # its operands are all that counts
    assert products.seconds(KERNEL, site, "tf32", weight, 0.0) == pytest.approx(2 * seconds(16, 8192, 8192, alone=False), rel=0.3)


def test_larger_products_have_smaller_tiles_where_large_ones_would_leave_sms_idle():
    full, more = (seconds(256 * count, 128, 4096) for count in (132, 133))
    assert full < more < 1.2 * full


def test_few_tiles_with_a_long_sum_are_split():
    terms = 65536.0
    alone_s = KERNEL.step_cycles.value / 2e9 * terms / 64
    assert seconds(64, 64, terms) < 0.25 * alone_s
    assert seconds(64, 64, 64) < seconds(64, 64, 128) + 1e-9, "a short one is not"


def test_a_skinny_product_takes_the_time_of_its_weight():
    weight = 2.0 * 16384 * 16384
    expected = weight / (H100.bandwidth_bytes_per_s * KERNEL.memory.value)
    assert seconds(1, 16384, 16384, missed=weight) == pytest.approx(expected, rel=0.1)
    assert seconds(16384, 1, 16384, missed=weight) == seconds(1, 16384, 16384, missed=weight), "on either side"


@pytest.mark.parametrize(("rows", "columns", "depth"), [(15.9e6, 4, 4), (4, 15.9e6, 4), (4, 4, 15.9e6)])
def test_products_below_the_smallest_ones_of_the_fits_follow_memory(rows, columns, depth):
    """Tiles of [64, 16] made them 3 to 9 times as long as their bytes take."""
    start_s, moved = KERNEL.start_cycles.value / 2e9, Product(1.0, rows, columns, depth, 2.0).bytes
    own_s = seconds(rows, columns, depth, missed=moved) - start_s
    wider = [32.0 if size == 4 else size for size in (rows, columns, depth)]
    wider_bytes = Product(1.0, *wider, 2.0).bytes
    assert own_s / moved == pytest.approx((seconds(*wider, missed=wider_bytes) - start_s) / wider_bytes)
    assert moved / 3.35e12 < own_s < 2.5 * moved / 3.35e12


def test_a_batch_takes_more_than_one_product_and_less_than_all_one_by_one():
    one, batch = seconds(128, 128, 512), seconds(128, 128, 512, batch=264)
    assert 2 * one < batch < 264 * one


def test_a_gpu_with_little_power_for_its_peak_lowers_its_clock():
    tflops = H100.peak_flops["bf16"] / 1e12
    enough, half = (seconds(8192, 8192, 8192, H100._replace(power_w=share * KERNEL.watts.value * tflops)) for share in (1.0, 0.25))
    assert enough == seconds(8192, 8192, 8192)
    assert half == pytest.approx(2 * enough, rel=0.1)


def test_a_training_holds_a_gpu_at_its_power_for_longer_than_a_benchmark_does():
    tflops = H100.peak_flops["bf16"] / 1e12
    enough = H100._replace(power_w=KERNEL.sustained_watts.value * tflops)
    assert seconds(8192, 8192, 8192, enough, alone=False) == seconds(8192, 8192, 8192, enough)
    assert seconds(8192, 8192, 8192, enough._replace(power_w=enough.power_w / 4), alone=False) == pytest.approx(
        2 * seconds(8192, 8192, 8192, enough), rel=0.1
    )


@pytest.mark.parametrize(("name", "times"), [("h100", "portable"), ("b200", "portable"), ("a100", ""), ("rtx4090", "")])
def test_pytorchs_own_attention_does_not_use_what_hopper_added(name, times):
    site, work = load_site(name)._replace(power_w=0.0), Attention(1000.0, 4096.0, 4096.0, 128.0, 0.5, 1.0, 0.0)
    best, own = (products.seconds(KERNEL, site, "bf16", work, 0.0, alone) for alone in (True, False))
    assert own / best == pytest.approx(getattr(KERNEL, times).value if times else 1.0, rel=1e-3)


def test_many_products_at_once_take_as_long_as_each():
    rows, depth = np.array([1.0, 100.0, 4096.0]), np.array([4096.0, 64.0, 8192.0])
    together = products.seconds(KERNEL, H100, "bf16", Product(np.ones(3), rows, 512 * np.ones(3), depth, 2.0), 1e5 * np.ones(3), alone=True)
    assert together.tolist() == [seconds(a, 512.0, b, missed=1e5) for a, b in zip(rows, depth, strict=True)]


def test_an_op_is_the_product_of_its_last_two_inputs():
    machine = load_machine("a100")
    plan = planned("baseline", Job("transformer_base", 2, precision="tf32"), machine, CostModel(machine, precision="tf32"))
    tasks = [task for task in plan.tasks if isinstance(efficiencies.extents(task), Product)]
    assert {task.body.op for task in tasks} >= {"aten.mm.default", "aten.addmm.default"}
    for task in tasks:
        product = efficiencies.extents(task)
        assert (product.batch * product.rows * product.columns, product.size) == (task.writes[0].elements, 4)
        assert task.body.work(task).flops == pytest.approx(2 * task.writes[0].elements * product.depth, rel=0.01)


@pytest.mark.parametrize(("name", "times"), [("a100", 1.0), ("rtx4090", 1.0), ("h100", KERNEL.unaligned.value)])
def test_hoppers_instructions_load_only_rows_that_begin_at_multiples_of_16_bytes(name, times):
    """Other products run older instructions there. 50,257 is the number of tokens that GPT-2 knows; many pad it to 50,304."""
    site, logits = load_site(name), Product(1.0, 8192.0, 50257.0, 768.0, 2.0)
    slow, fast = (products.seconds(KERNEL, site, "bf16", logits._replace(aligned=aligned), 0.0) for aligned in (False, True))
    assert slow / fast == pytest.approx(times, rel=0.01)


@pytest.mark.parametrize(("vocabulary", "aligned"), [(50257, False), (50304, True)])
def test_an_odd_vocabulary_leaves_the_products_of_its_logits_unaligned(vocabulary, aligned):
    graph = Job(f"lm:layers=1,d_model=64,heads=2,ffn=64,vocab={vocabulary},form=gpt", 2, image_size=16, precision="bf16").on("gpu").graph(2)
    of_logits = [
        extents
        for op in graph.ops
        if isinstance(extents := efficiencies.extents(op), Product) and vocabulary in (extents.rows, extents.columns, extents.depth)
    ]
    assert len(of_logits) == 3, "forward, dX and dW"
    assert {extents.aligned for extents in of_logits} == {aligned}


def attention(queries: float, keys: float, seen: float = 1.0, batch: float = 1.0, passes: float = 1.0, moved: float = 0.0) -> float:
    """The time of attention over vectors of 128 in bf16, with everything in the cache."""
    return products.seconds(KERNEL, H100, "bf16", Attention(batch, queries, keys, 128.0, seen, passes, moved), 0.0, alone=True)


def test_attention_computes_its_blocks_of_scores_and_their_exponentials():
    of_sm, scores = 4096 * 2e9, 64 * 64
    computing_s = 4 * scores * 128 / (of_sm * KERNEL.attention.value)
    exponentials_s = scores * KERNEL.score_cycles.value / 16 / 2e9
    blocks = 132 * 4 * 8 / 132 + KERNEL.tail.value * 8
    expected = KERNEL.start_cycles.value / 2e9 + blocks * (computing_s**3 + exponentials_s**3) ** (1 / 3)
    assert attention(4 * 64, 8 * 64, batch=132) == pytest.approx(expected)


def test_causal_attention_computes_half_of_the_blocks_and_the_diagonal():
    start_s = KERNEL.start_cycles.value / 2e9
    full, causal = (attention(64 * 64, 64 * 64, seen, batch=10000.0) - start_s for seen in (1.0, 0.5))
    assert causal / full == pytest.approx(65 / 128, rel=0.001)


def test_backward_of_attention_multiplies_five_times_where_forward_does_twice():
    start_s = KERNEL.start_cycles.value / 2e9
    assert attention(512, 512, passes=2.5) - start_s == pytest.approx(2.5 * (attention(512, 512) - start_s))


def test_an_op_of_attention_knows_whether_it_is_causal():
    machine = load_machine("a100")
    plan = planned("baseline", Job("transformer_base", 2, precision="tf32"), machine, CostModel(machine, precision="tf32"))
    works = [work for task in plan.tasks if isinstance(work := efficiencies.extents(task), Attention)]
    assert {work.passes for work in works} == {1.0, 2.5}
    shapes = {(work.batch, work.queries, work.keys, work.width) for work in works}
    assert (shapes, {work.seen for work in works}) == ({(16, 64, 64, 64)}, {0.5, 1.0}), "the decoder attends to what came before"


def test_products_in_single_precision_and_on_gpus_without_tensor_cores_keep_the_roofline():
    assert not products.serves(load_site("a100"), "fp32")
    assert not products.serves(load_site("k80"), "fp16")
    assert products.serves(load_site("a100"), "fp16")
    assert products.serves(load_site("v100"), "fp16")
    assert not products.serves(load_site("v100"), "tf32")


def load_site(name: str) -> Site:
    """The site of a preset."""
    machine = load_machine(name)
    return Site.of_device(machine.devices[0], machine.memories[0], 1.0)


@pytest.mark.parametrize(("precision", "products_in"), [("fp32", "fp32"), ("default", "fp32"), ("tf32", "tf32")])
def test_no_switch_changes_fused_attention_on_float32(precision, products_in):
    """Its products are three in TF32 where tensor cores have it, in PyTorch's memory-efficient kernel; it had the price of one."""
    job, machine = Job("transformer_base", 2), load_machine("a100")
    fp32, model = CostModel(machine, precision="fp32"), CostModel(machine, precision=precision)
    plan = planned("baseline", job, machine, model)
    ops = {task.body.work(task).op_class: task for task in plan.tasks}
    assert efficiencies.precision_of(ops["matmul"], "matmul", model.precision) == products_in
    assert efficiencies.precision_of(ops["matmul.attention"], "matmul.attention", model.precision) == "fp32"
    pairs = zip(plan.tasks, fp32.resolve(plan), model.resolve(plan), strict=True)
    assert all(a.cold_s == b.cold_s for task, a, b in pairs if task is ops["matmul.attention"])


@pytest.mark.parametrize("model", ["resnet18", "transformer_base"])
def test_tf32_is_fp32_where_tensor_cores_do_not_have_it(model):
    """Convolutions of a V100 lost their Winograd kernels, and its products an eighth of their time."""
    machine, job = load_machine("v100"), Job(model, 2)
    plan = planned("baseline", job, machine, CostModel(machine))
    tf32, fp32 = (CostModel(machine, precision=precision).resolve(plan) for precision in ("tf32", "fp32"))
    assert tf32 == fp32


@pytest.mark.parametrize(("passes", "times"), [(1.0, "single"), (2.5, "single_backward")])
def test_long_attention_on_float32_takes_three_times_as_long_as_in_tf32(passes, times):
    site, work = load_site("a100"), Attention(64.0, 8192.0, 8192.0, 64.0, 0.5, passes, 0.0)
    assert products.serves(site, "fp32", work)
    assert not products.serves(load_site("v100"), "fp32", work), "it runs on the cores for FP32 there"
    longer = products.seconds(KERNEL, site, "fp32", work, 0.0) / products.seconds(KERNEL, site, "tf32", work, 0.0)
    assert longer == pytest.approx(getattr(KERNEL, times).value, rel=0.01)


def test_a_part_of_a_gpu_has_its_part_of_the_power():
    half = Sites(load_machine("h100")).site("cuda:0", 66)
    assert (half.power_w, half.clock_hz) == (350.0, 1.98e9)


def test_the_table_predicts_most_products_and_attentions_of_six_gpus_within_its_errors():
    known = fit_products.tables()
    if known is None:
        pytest.skip("no public measurements beside the repository")
    numbers = {name: number.value for name, number in KERNEL}
    serving = {"serving_s": 1.21e-5, "of_queries": 2.58, "of_keys": 7.45}  # as fit_products prints them
    for name in fit_products.GPUS:
        assert np.median(np.abs(known.products[name].errors(numbers))) < 0.09, name
        within = np.abs(known.products[name].errors(numbers)) < 2 * KERNEL.compute.error
        assert within.mean() > 0.85, name
        assert np.median(np.abs(known.attention[name].errors({**numbers, **serving}))) < KERNEL.attention.error, name


def test_a_chip_that_the_tables_lack_leaves_the_numbers_as_they_are():
    rows = efficiencies.table()["gpu"]
    assert fit_products.without(rows, "K80") is rows
