"""Capture: the ops, views, layers, roles and FLOPs of a training step."""

import gc

import pytest
import torch
from torch import nn

from simulator.model.built import Built
from simulator.model.capture.capture import capture
from simulator.model.graph import TrainingGraph
from simulator.model.ops.aten_json import tensor_of
from simulator.plan.ops import ROWS
from tests.support.jobs import graph_of
from tests.support.refusals import refuses
from traces.errors import Code


def contents(graph: TrainingGraph) -> dict[str, list]:
    return {name: tensor_of(text, graph.values[name].shape, graph.values[name].dtype).tolist() for name, text in graph.constants.items()}


def lines(graph: TrainingGraph) -> list[str]:
    return [op.name for op in graph.ops]


def test_a_linear_layer_is_four_ops():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    assert lines(graph_of(model, torch.randn(4, 3))) == [
        "0/addmm", "1/addmm", "loss/sum", "loss/ones_like.dX", "1/mm.dX", "1/mm.dW", "1/sum.dB", "0/mm.dW", "0/sum.dB",
    ]  # fmt: skip


def test_views_are_never_ops():
    graph = graph_of(nn.Linear(3, 2), torch.randn(2, 2, 3))
    assert not [op for op in graph.ops if op.body.target.split(".")[1] in ("view", "t", "expand", "transpose", "detach")]
    addmm = next(op for op in graph.ops if "addmm" in op.name)
    assert [step.target for step in addmm.reads[2].views] == ["aten.t.default"]


def test_convolution_backward_is_split_into_dx_and_dw():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3))
    roles = [(op.layer, op.gradient) for op in graph_of(model, torch.randn(1, 1, 8, 8)).ops if "convolution_backward" in op.name]
    assert roles == [("1", "dX"), ("1", "dW"), ("0", "dW")]


def test_batch_norm_changes_its_statistics_although_its_schema_does_not_say_so():
    graph = graph_of(nn.BatchNorm2d(2), torch.randn(4, 2, 3, 3, requires_grad=True))
    norm = next(op for op in graph.ops if op.name == "model/native_batch_norm")
    assert [operand.value for operand in norm.mutates] == ["running_mean", "running_var"]


def test_a_first_batch_norm_has_no_gradient_of_its_input():
    graph = graph_of(nn.BatchNorm2d(2), torch.randn(4, 2, 3, 3))
    backward = next(op for op in graph.ops if "native_batch_norm_backward" in op.name)
    assert backward.body.outputs == (1, 2)


def test_running_statistics_are_what_the_ops_really_change():
    for name, positions in ((name, row.running) for name, row in ROWS.items() if row.running):
        assert name == "native_batch_norm"
        x, mean, var = torch.randn(4, 2, 3), torch.zeros(2), torch.ones(2)
        args = [x, None, None, mean, var, True, 0.1, 1e-5]
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        torch.ops.aten.native_batch_norm(*args)
        changed = tuple(i for i, (a, b) in enumerate(zip(args, before, strict=True)) if isinstance(a, torch.Tensor) and not a.equal(b))
        assert changed == positions


def test_a_shared_weight_has_one_gradient_the_sum_of_its_uses():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3, bias=False)

        def forward(self, x):
            return self.layer(self.layer(x))

    graph = graph_of(Twice(), torch.randn(2, 3))
    assert graph.parameters == ("layer.weight",)
    assert sum(op.gradient == "dW" and "mm" in op.name for op in graph.ops) == 2
    assert any("add" in op.name and op.gradient == "dW" for op in graph.ops)


def test_a_gradient_shared_by_two_parameters_is_copied_so_that_each_has_its_own():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))

        def forward(self, x):
            return x * (self.a + self.b)

    graph = graph_of(Sum(), torch.randn(2, 3))
    assert len({graph.values[o.value].storage for o in graph.gradients.values()}) == 2


def test_frozen_parameters_get_no_gradient():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    graph = graph_of(model, torch.randn(2, 3))
    assert graph.parameters == ("1.weight", "1.bias")
    assert set(graph.gradients) == {"1.weight", "1.bias"}


def test_a_backward_op_has_the_layer_of_the_forward_op_it_serves():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    layers = {op.body.target.split(".")[1]: op.layer for op in graph_of(model, torch.randn(2, 3)).ops if op.phase == "backward"}
    assert layers["tanh_backward"] == "1"


def test_dropout_and_attention_are_captured_in_their_canonical_form():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(4, 4)

        def forward(self, x):
            return nn.functional.dropout(nn.functional.scaled_dot_product_attention(self.q(x), x, x, dropout_p=0.1), 0.2)

    targets = [op.body.target for op in graph_of(Attention(), torch.randn(2, 3, 4)).ops]
    assert targets.count("aten.native_dropout.default") == 2
    assert "aten._safe_softmax.default" in targets


@pytest.mark.parametrize(
    ("mask", "dropout", "fused"), [(None, 0.0, True), ("given", 0.0, True), ("learned", 0.0, False), (None, 0.1, False)]
)
def test_attention_without_dropout_is_one_op_each_way_where_pytorch_runs_one(mask, dropout, fused):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.mask = nn.Linear(4, 4), None
            if mask is not None:
                self.mask = nn.Parameter(torch.randn(3, 3), requires_grad=mask == "learned")

        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(self.q(x), x, x, self.mask, dropout)

    attention_ops = [op for op in graph_of(Attention(), torch.randn(2, 2, 3, 4)).ops if "attention" in op.body.target]
    assert [op.phase for op in attention_ops] == (["forward", "backward"] if fused else [])
    product = 2 * 4 * 3 * 3 * 4  # FLOPs of one of the two matrix products
    assert [op.body.flops for op in attention_ops] == ([2 * product, 5 * product] if fused else [])


def test_a_step_that_reads_values_of_activations_is_refused_with_its_line():
    class Reads(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y * (2 if y.sum().item() > 0 else 1)

    with refuses(Code.MODEL, r"test_capture.py:\d+ in forward: the training step reads tensor values"):
        graph_of(Reads(3, 2), torch.randn(2, 3))


def test_a_loss_must_be_one_number():
    with refuses(Code.MODEL):
        graph_of(nn.Linear(3, 2), torch.randn(2, 3), loss=lambda out, _: out)


def test_models_larger_than_memory_can_be_captured():
    def build() -> Built:
        return Built(nn.Linear(1 << 20, 1 << 20), (torch.randn(1, 1 << 20),), {}, torch.zeros(()), lambda out, _: out.sum())

    graph = capture(build, batch=1)
    assert graph.values["weight"].operand().bytes == 4 << 40


def test_a_constant_outside_the_module_is_kept_by_value():
    scale = torch.tensor([2.0, 3.0])
    graph = graph_of(nn.Linear(3, 2), torch.randn(2, 3), loss=lambda out, _: (out * scale).sum())
    assert contents(graph) == {"constant:0": [2.0, 3.0]}


def test_a_factory_that_needs_real_numbers_or_hides_a_tensor_is_built_for_real():
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.mask = torch.tril(torch.ones(3, 3))  # an attribute, not a buffer

        def forward(self, x):
            return super().forward(x) @ self.mask

    def build() -> Built:
        return Built(Masked(), (torch.randn(2, 3),), {}, torch.zeros(()), lambda out, _: out.sum())

    assert contents(capture(build, batch=2)) == {"constant:0": [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]}


@pytest.mark.parametrize("weights", [True, False])
def test_attention_inside_multi_head_attention_is_canonical_too(weights):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=weights)[0]

    targets = [op.body.target for op in graph_of(Block(), torch.randn(2, 3, 4)).ops]
    assert targets.count("aten.native_dropout.default") == 1
    assert not [target for target in targets if "attention" in target or "bernoulli" in target]


def test_a_transpose_in_place_is_a_view():
    class Transposes(nn.Linear):
        def forward(self, x):
            return super().forward(x).transpose_(0, 1)[1]

    graph = graph_of(Transposes(3, 2), torch.randn(4, 3))
    assert not [op for op in graph.ops if "transpose" in op.body.target]
    total = next(op for op in graph.ops if op.name == "loss/sum")
    assert total.reads[0].shape == (4,)
    assert [step.target for step in total.reads[0].views] == ["aten.as_strided.default", "aten.select.int"]


def test_a_step_may_look_at_constants():
    class Causal(nn.Linear):
        def forward(self, x):
            mask = torch.ones(3, 3).tril()
            return super().forward(x) * (2 if bool((mask == mask.tril()).all()) else 1)

    assert any("mul" in op.name for op in graph_of(Causal(3, 2), torch.randn(2, 3)).ops)


def test_submodules_that_the_user_put_in_eval_mode_stay_so():
    from simulator.model.factory import Factory, call_factory

    def make(batch: int):
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        model[1].eval()
        return model, torch.randn(batch, 3), torch.randint(0, 3, (batch,))

    assert not call_factory(Factory("mine", make, ""), 2).module[1].training


@pytest.mark.parametrize("collects", [True, False])
def test_the_garbage_collector_is_off_during_capture_and_then_as_before(collects):
    seen = []

    def loss(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        seen.append(gc.isenabled())
        return output.sum()

    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        graph_of(nn.Linear(3, 2), torch.randn(4, 3), loss=loss)
        with refuses(Code.MODEL):
            graph_of(nn.Flatten(), torch.randn(4, 3))
        assert gc.isenabled() == collects
    finally:
        (gc.enable if before else gc.disable)()
    assert set(seen) == {False}


def test_a_truncated_normal_distribution_needs_no_real_tensors():
    made = []

    def build() -> Built:
        made.append(nn.Linear(3, 2))
        nn.init.trunc_normal_(made[-1].weight)
        return Built(made[-1], (torch.randn(4, 3),), {}, torch.zeros(()), lambda output, _: output.sum())

    assert lines(capture(build, batch=4)) == lines(graph_of(nn.Linear(3, 2), torch.randn(4, 3)))
    assert len(made) == 1
