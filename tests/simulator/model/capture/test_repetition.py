"""A model is captured only if every step is the same step. What changes nothing, or changes buffers in place, is fine."""

import random

import pytest
import torch
from torch import nn

from simulator.model.capture.capture import capture
from simulator.model.factory import Factory, call_factory
from simulator.model.graph import TrainingGraph
from tests.support.refusals import refuses
from traces.errors import Code


class Net(nn.Linear):
    """A linear layer whose forward is `step(module, linear, x)`. Tensors among the attributes become buffers."""

    def __init__(self, step, **attributes):
        super().__init__(3, 3)
        self.step = step
        for name, item in attributes.items():
            self.register_buffer(name, item.clone()) if isinstance(item, torch.Tensor) else setattr(self, name, item)

    def forward(self, x):
        return self.step(self, super().forward, x)


def captured(step, **attributes) -> TrainingGraph:
    def make(batch: int):
        return Net(step, **attributes), torch.randn(batch, 3), torch.randn(batch, 3), lambda out, _: out.sum()

    return capture(lambda: call_factory(Factory("mine", make, None), 4), batch=4)


def names(graph: TrainingGraph) -> list[str]:
    return [op.name for op in graph.ops if op.phase == "forward"]


def keeps(module, linear, x):
    y = linear(x) + (0 if module.kept is None else module.kept)
    module.kept = y.detach()
    return y


OWN_GENERATOR = random.Random(1)


def draws_from_its_own_generator(module, linear, x):
    return linear(x) * OWN_GENERATOR.random()


def grows(module, linear, x):
    module.depth += 1
    for _ in range(module.depth):
        x = linear(x)
    return x


def draws_from_its_generator(module, linear, x):
    return linear(x) + torch.randn(3, generator=module.generator)


def hides_a_parameter(module, linear, x):
    return linear(x) * module.hidden[0]


def quantizes(module, linear, x):
    return linear(torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize())


@pytest.mark.parametrize(
    ("step", "attributes", "message"),
    [
        (quantizes, {}, "in quantizes: aten.quantize_per_tensor.default is not a tensor op that a plan may call; use a model without it"),
        (draws_from_its_own_generator, {}, "differ at model/mul, which has other arguments the second time; a plan repeats one step"),
        (grows, {"depth": 0}, r"differ at (model/addmm#2|loss/sum)|have 2 and 3 ops"),
        (keeps, {"kept": None}, "reads a tensor that an earlier step computed"),
        (draws_from_its_generator, {"generator": torch.Generator()}, "draws from a generator of the model's own"),
        (hides_a_parameter, {"hidden": [nn.Parameter(torch.ones(3))]}, "uses a parameter of shape .* that the model does not register"),
    ],
)
def test_a_model_whose_steps_are_not_alike_is_refused(step, attributes, message):
    with refuses(Code.MODEL, message):
        captured(step, **attributes)


def test_a_counter_that_changes_nothing_is_fine():
    def counts(module, linear, x):
        module.calls += 1
        return linear(x)

    assert names(captured(counts, calls=0)) == ["model/addmm", "loss/sum"]


def test_a_buffer_may_change_in_place():
    def moves(module, linear, x):
        module.scale.add_(1)
        return linear(x) * module.scale

    assert names(captured(moves, scale=torch.ones(3))) == ["model/add_", "model/addmm", "model/mul", "loss/sum"]


def test_a_table_made_in_the_first_step_is_made_in_every_step():
    def positions(module, linear, x):
        if module.table is None:
            module.table = torch.arange(3.0) * 2
        return linear(x) + module.table

    assert names(captured(positions, table=None)) == ["model/arange", "model/mul", "model/addmm", "model/add", "loss/sum"]


def test_a_literal_that_is_changed_in_place_is_copied_first():
    def literal(module, linear, x):
        scale = torch.tensor([1.0, 2.0, 3.0])
        scale += x.mean()
        return linear(x) * scale

    graph = captured(literal)
    assert names(graph)[0] == "model/clone"
    assert not any(operand.value.startswith("constant") for op in graph.ops for operand in op.mutates)
