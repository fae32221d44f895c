"""Back-propagation as a scan: the algorithm against its printed form, and the layout of a batch of equal elements."""

import json
from itertools import pairwise
from math import ceil, log2

import numpy as np
import pytest
import torch

from executors.binding import Binding, Instance
from executors.kernels.registry import handlers
from simulator.model.job import Job
from simulator.model.ops.scan_order import elements_per_worker, order, prefix_order
from simulator.plan.bodies.csr.mask import Mask
from simulator.plan.bodies.csr.product import ProductPattern
from simulator.plan.bodies.csr.rules import ConvolutionRule, ElementwiseRule, LinearRule
from simulator.plan.bodies.scan import Full, Gradient, JacobianProduct, JacobianValues, shape
from simulator.plan.json import dump, load
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, INPUT, Operand, Storage, Task, Value
from simulator.strategies.scan.algorithm import exclusive_scan, full_level
from simulator.strategies.scan.jacobian_of import jacobian_of
from tests.support.refusals import refuses
from traces.errors import Code, UnusableFileError


def printed(a: list) -> tuple[list, list[int]]:
    """Algorithm 1 of Wang et al. 2020 as PAPERS states it, on the texts a = [dl/dx_n, J_n^T, ..., J_1^T].

    Returns the prefixes and the number of products of the up-sweep and of the down-sweep.
    """
    a, n, identity, counts = list(a), len(a) - 1, None, [0, 0]
    levels = ceil(log2(n + 1))
    for d in range(levels - 1):
        for i in range(0, n - 2**d + 1, 2 ** (d + 1)):
            left, right = i + 2**d - 1, min(i + 2 ** (d + 1) - 1, n)
            if right < n:
                a[right] = a[right] + a[left]
                counts[0] += 1
    a[n] = identity
    for d in reversed(range(levels)):
        for i in range(0, n - 2**d + 1, 2 ** (d + 1)):
            left, right = i + 2**d - 1, min(i + 2 ** (d + 1) - 1, n)
            earlier, a[left] = a[left], a[right]
            a[right] = earlier if a[right] is identity else earlier + a[right]
            counts[1] += a[left] is not identity
    return a[1:], counts


@pytest.mark.parametrize("n", range(1, 41))
def test_blellochs_scan_is_the_printed_algorithm(n):
    elements = [f"{j}." for j in range(n)]
    products = []
    prefixes = exclusive_scan(elements, full_level(n), lambda later, earlier: products.append(1) or later + earlier)
    expected, counts = printed([*elements, "never used"])
    assert prefixes == expected
    assert len(products) == sum(counts)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 21, 40])
def test_every_level_gives_every_prefix(n):
    elements = [f"{j}." for j in range(n)]
    for level in range(full_level(n) + 1):
        assert exclusive_scan(elements, level, str.__add__) == ["".join(reversed(elements[:k])) for k in range(1, n + 1)]


def product_counts(elements: int, level: int) -> tuple[int, int, int]:
    """Closed form: (matrix-matrix products up, matrix-vector products up, matrix-vector products after them) of a scan."""
    sizes = [elements >> d for d in range(level + 1)]
    up = [size // 2 for size in sizes[:-1]]
    down = sum((size - 1) // 2 for size in sizes[:-1])
    return sum(count - 1 for count in up), len(up), sizes[-1] - 1 + down


def test_the_products_of_twenty_one_elements():
    """4 matrix-vector and 14 matrix-matrix products up and 16 matrix-vector products down; a linear scan has 20 of the latter."""
    assert product_counts(21, full_level(21)) == (14, 4, 16)
    assert product_counts(21, 0) == (0, 0, 20)


@pytest.mark.parametrize("n", [1, 2, 3, 9, 16, 21])
def test_a_scan_makes_the_products_of_the_closed_form(n):
    for level in range(full_level(n) + 1):
        kinds = []

        def product(later, earlier, kinds=kinds):
            kinds.append(earlier)
            return "vector" if earlier == "vector" else "matrix"

        exclusive_scan(["vector"] + ["matrix"] * (n - 1), level, product)
        up, first, after = product_counts(n, level)
        assert (kinds.count("matrix"), kinds.count("vector")) == (up, first + after)


def test_elements_need_not_be_square():
    widths = [3, 4, 2, 5, 3, 6]
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=(widths[0], 1))
    jacobians = [rng.normal(size=(after, before)) for before, after in pairwise(widths)]
    one_by_one = exclusive_scan([gradient, *jacobians], 0, np.matmul)
    for level in (1, 2):
        for a, b in zip(exclusive_scan([gradient, *jacobians], level, np.matmul), one_by_one, strict=True):
            np.testing.assert_allclose(a, b)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 21, 100])
def test_both_sides_of_a_levels_pairs_are_contiguous(n):
    pairs, even = n // 2, (n + 1) // 2
    places = order(n)
    assert sorted(places) == list(range(n))
    assert places[:pairs] == tuple(2 * place for place in order(pairs))
    assert places[even:] == tuple(2 * place + 1 for place in order(pairs))
    assert set(places[pairs:even]) == ({n - 1} if n % 2 else set())
    assert prefix_order(n, leftmost=False) == (*places, n)
    assert prefix_order(n, leftmost=True) == (*places[1:], n)


def test_workers_have_equal_shares():
    assert elements_per_worker(10, 4) == [2, 3, 2, 3]
    assert elements_per_worker(3, 8) == [1, 1, 1]


# Sparse Jacobians from a captured graph, and the gradients that they give, which equal those of autograd.


CONV = ConvolutionRule(2, 4, 5, 3, (3, 3), padding=(1, 1), mask=Mask(0.5, 3))
RELU = ElementwiseRule(60, "aten.threshold_backward.default", '[{"$":0},0]')


def ops_of(model, batch=2, **options):
    graph = Job(model, batch, **options).graph()
    return graph, {f"{op.layer} {op.body.target.split('.')[1]}": op for op in graph.backward_ops if op.gradient == "dX"}


def test_the_ops_of_lenet5_have_rules():
    graph, ops = ops_of("lenet5")
    rules = {name: jacobian_of(op, graph) for name, op in ops.items() if not name.startswith("loss")}
    assert {name: rule.key for name, (rule, _) in rules.items()} == {
        "classifier.4 mm": "linear.84>10",
        "classifier.3 threshold_backward": 'aten.threshold_backward.default.84[{"$":0},0]',
        "classifier.2 mm": "linear.120>84",
        "classifier.1 threshold_backward": 'aten.threshold_backward.default.120[{"$":0},0]',
        "classifier.0 mm": "linear.400>120",
        "features.5 max_pool2d_with_indices_backward": "max-pool.16x10x10>5,5/2,2/2,2/0,0/1,1",
        "features.4 threshold_backward": 'aten.threshold_backward.default.1600[{"$":0},0]',
        "features.3 convolution_backward": "conv.6x14x14>16.5,5/1,1/0,0/1,1/g1",
        "features.2 max_pool2d_with_indices_backward": "max-pool.6x28x28>14,14/2,2/2,2/0,0/1,1",
        "features.1 threshold_backward": 'aten.threshold_backward.default.4704[{"$":0},0]',
    }
    assert rules["features.3 convolution_backward"][1][0].value == "features.3.weight"
    assert rules["features.5 max_pool2d_with_indices_backward"][1][0].value == "features.5/max_pool2d_with_indices:1"


def test_jacobians_of_pruned_layers_have_their_mask():
    graph, ops = ops_of("vgg11_pruned")
    convolution, _ = jacobian_of(ops["features.3 convolution_backward"], graph)
    linear, (weight,) = jacobian_of(ops["classifier.2 mm"], graph)
    assert (convolution.mask, linear) == (Mask(0.03, 1), LinearRule(512, 512, Mask(0.03, 9)))
    assert weight.value == "classifier.2/pruned"
    assert linear.nnz == round(0.03 * 512 * 512)


def test_gradients_of_pruned_weights_are_masked():
    module, inputs, target = (built := Job("vgg11_pruned", 2).build()).module, built.named_inputs(), None
    (images,) = [tensor for name, tensor in inputs.items() if name.startswith("input")]
    module(images).square().sum().backward()
    weight = module.features[3].weight
    assert target is None
    assert int((weight.grad != 0).sum()) <= round(0.03 * weight.numel())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("model", "op", "message"),
    [
        ("mobilenet_v2", "features.18.1 native_batch_norm_backward", "batch-norm couples the samples of a batch"),
        ("transformer_base", "encoder.layers.0.norm1 native_layer_norm_backward", "layer-norm makes every element"),
        ("lenet5", "loss _log_softmax_backward_data", "begin the scan behind it"),
    ],
)
def test_ops_without_a_rule_are_refused_by_name(model, op, message):
    graph, ops = ops_of(model, image_size=None if model != "mobilenet_v2" else 64)
    chosen = ops.get(op) or next(o for o in ops.values() if op.split()[1] in o.body.target)
    with refuses(Code.MODEL, rf"in layer '{chosen.layer}' has no transposed Jacobian: .*{message}"):
        jacobian_of(chosen, graph)


def value(name, extent, kind=ACTIVATION):
    strides = tuple(torch.empty(extent, device="meta").stride())
    return Value(name, tuple(extent), strides, "float64", "cpu", kind, name)


def small_plan(batch=3) -> Plan:
    """(J_conv J_relu) g: two Jacobians, their product, and the product with a gradient."""
    product = JacobianProduct(CONV, RELU)
    values = {
        v.name: v
        for v in (
            value("weight", (3, 2, 3, 3), INPUT), value("out", (batch, 3, 4, 5), INPUT), value("g", (60, batch), INPUT),
            value("conv", shape(CONV, 1)), value("relu", shape(RELU, batch)), value("both", shape(product.result, batch)),
            value("grad", (40, batch)),
        )
    }  # fmt: skip
    o = {name: v.operand() for name, v in values.items()}
    tasks = (
        Task("conv", JacobianValues(CONV), "cpu", reads=(o["weight"],), writes=(o["conv"],)),
        Task("relu", JacobianValues(RELU), "cpu", reads=(o["out"],), writes=(o["relu"],)),
        Task("both", product, "cpu", reads=(o["conv"], o["relu"]), writes=(o["both"],)),
        Task("grad", JacobianProduct(product.result, Gradient(60)), "cpu", reads=(o["both"], o["g"]), writes=(o["grad"],)),
    )
    storages = {name: Storage(name, v.operand().bytes, "cpu") for name, v in values.items()}
    return Plan("scan", tasks, values, storages)


def test_a_plan_of_products_computes_the_gradient():
    torch.manual_seed(0)
    plan = small_plan()
    x, g = torch.randn(3, 2, 4, 5, dtype=torch.float64, requires_grad=True), torch.randn(60, 3, dtype=torch.float64)
    weight = torch.ops.schedcast.pruned(torch.randn(3, 2, 3, 3, dtype=torch.float64), 0.5, 3)
    out = torch.relu(torch.nn.functional.conv2d(x, weight, padding=1))
    binding = Binding(plan, {}, torch.device)
    instance = Instance(0, len(binding.slot), [])
    binding.feed(instance, {"weight": weight, "out": out, "g": g})
    for task in plan.tasks:
        handlers()[task.body.kind](task, binding)(instance)
    (expected,) = torch.autograd.grad(out, x, g.t().reshape(out.shape))
    torch.testing.assert_close(instance.slots[binding.slot["grad"]], expected.flatten(1).t(), rtol=1e-12, atol=1e-12)


def test_a_plan_of_products_goes_to_json_and_back():
    plan = small_plan()
    assert load(json.loads(json.dumps(dump(plan)))) == plan


@pytest.mark.parametrize(
    ("task", "path", "junk", "message"),
    [
        (0, ("rule", "stride"), [0, 1], "an extent of 0"),
        (0, ("rule", "channels"), 10**6, "does not fit its operands"),
        (0, ("rule", "mask", "keep"), 2.0, "keeps a share of 2.0"),
        (0, ("rule", "mask", "keep"), 0.25, "does not fit its operands"),
        (1, ("rule", "target"), "aten.mm.default", "is not an element-wise backward op"),
        (1, ("rule", "elements"), 61, "does not fit its operands"),
        (2, ("right", "elements"), 61, "cannot be multiplied by 61 rows"),
        (3, ("left", "right", "of"), "nobody", "segments are damaged"),
        (3, ("right", "rows"), 7, "cannot be multiplied by 7 rows"),
    ],
)
def test_damaged_recipes_are_refused(task, path, junk, message):
    document = dump(small_plan())
    node = document["segments"][0]["tasks"][task]["body"]
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = junk
    with pytest.raises(UnusableFileError, match=message):
        load(document)


def test_full_matrices_give_their_number_of_samples():
    body = JacobianProduct(Full(4, 60), RELU)
    operands = [Operand(n, s, (1,) * len(s), "float32") for n, s in (("a", (4, 60)), ("b", (60, 3)), ("c", (3, 4, 60)))]
    task = Task("t", body, "cpu", reads=tuple(operands[:2]), writes=(operands[2],))
    assert body.work(task).flops == 2 * 4 * 60 * 3
    assert (body.result, body.samples(task)) == (Full(4, 60), (1, 3))
    assert body.key(task) == 'jacobian-product.full|4x60@aten.threshold_backward.default.60[{"$":0},0]|f32[4,60](1,1)|f32[60,3](1,1)'
    assert isinstance(ProductPattern(CONV, RELU).key, str)
