"""A factory may leave out the loss. Its batch and its model's output may have any form."""

from collections import UserDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn

from simulator.model.built import Built, arguments, mapped, tensors_of
from simulator.model.default_loss import MissingLossError, default_loss

LOGITS, TARGET = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Heads(NamedTuple):
    """What torchvision's Inception returns."""

    logits: torch.Tensor
    aux_logits: torch.Tensor | None


@pytest.mark.parametrize("output", [LOGITS, Output(LOGITS), {"logits": LOGITS}, {"loss": None, "logits": LOGITS}])
def test_cross_entropy_of_logits(output):
    assert default_loss(output, TARGET) == nn.functional.cross_entropy(LOGITS, TARGET)


@pytest.mark.parametrize(
    ("output", "weight"), [(Heads(LOGITS, LOGITS), 0.3), (Heads(LOGITS, None), 0), ({"out": LOGITS, "aux": LOGITS}, 0.5)]
)
def test_auxiliary_heads_count_with_their_weights(output, weight):
    assert default_loss(output, TARGET) == pytest.approx((1 + weight) * nn.functional.cross_entropy(LOGITS, TARGET))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), lambda output, target: nn.functional.cross_entropy(output.logit, target)])
def test_a_loss_that_does_not_take_the_output_shows_the_lines_to_write(loss):
    module = nn.Linear(3, 3)
    module.register_forward_hook(lambda module, inputs, output: Heads(output, output))
    with pytest.raises(MissingLossError, match=r"the loss does not take what the model returns, a Heads of 2") as raised:
        Built(module, (LOGITS,), {}, TARGET, loss).run()
    assert "cross_entropy(output[0], target)" in raised.value.details


def test_other_errors_of_a_loss_stay_as_they_are():
    with pytest.raises(AttributeError, match="logits"):
        Built(nn.Linear(3, 3), (LOGITS,), {}, TARGET, lambda output, target: output.logits).run()


@pytest.mark.parametrize("output", [torch.randn(4, 1), torch.randn(4), {"logits": torch.randn(4, 1)}])
def test_a_target_of_one_column_of_floats_is_not_taken_for_classes(output):
    with pytest.raises(MissingLossError, match="the model returns one column, and cross-entropy needs one for each class") as raised:
        default_loss(output, torch.randn(4, 1).reshape(output.shape if isinstance(output, torch.Tensor) else (4, 1)))
    assert "mse_loss(output" in raised.value.details


@pytest.mark.parametrize("target", [None, TARGET])
def test_the_outputs_own_loss_comes_first(target):
    assert default_loss(Output(LOGITS, torch.tensor(7.0)), target) == 7


def test_every_place_of_a_sequence_may_have_a_label():
    logits, labels = torch.randn(2, 5, 3), torch.randint(3, (2, 5))
    assert default_loss(logits, labels) == nn.functional.cross_entropy(logits.view(10, 3), labels.view(10))
    images = torch.randn(2, 3, 5, 5)
    masks = torch.randint(3, (2, 5, 5))
    assert default_loss(images, masks) == nn.functional.cross_entropy(images, masks)


@pytest.mark.parametrize(
    ("output", "target", "words"),
    [
        ((LOGITS, LOGITS), TARGET, "the model returns a tuple of 2; expected a tensor, or an output with .loss or .logits"),
        ({"output": LOGITS}, TARGET, "the model returns a dict with 'output'"),
        (Output(LOGITS), None, "the target is NoneType"),
        (LOGITS, {"boxes": LOGITS}, "the target is dict"),
    ],
)
def test_a_missing_loss_shows_the_lines_to_write(output, target, words):
    with pytest.raises(MissingLossError) as raised:
        default_loss(output, target)
    lines = raised.value.details.splitlines()
    assert words in str(raised.value)
    assert [line.strip() for line in lines[::2]] == ["def loss(output, target):", "return model, inputs, target, loss"]
    if target is TARGET:
        scope: dict = {"torch": torch}
        exec("\n".join(line[4:] for line in lines[:2]), scope)
        assert scope["loss"](output, target) == nn.functional.cross_entropy(LOGITS, TARGET)


def call(forward, inputs):
    module = nn.Module()
    module.forward = forward
    return arguments(module, inputs)


def test_a_mapping_is_keyword_arguments_if_the_forward_has_them():
    mapping = UserDict(x=1, mask=2)
    assert call(lambda x, mask=None: x, mapping) == ((), {"x": 1, "mask": 2})
    assert call(lambda batch: batch, mapping) == ((mapping,), {})


def test_a_list_is_positional_arguments_if_the_forward_takes_as_many():
    assert call(lambda a, b: a, [1, 2]) == ((1, 2), {})
    assert call(lambda images, targets=None: images, [1, 2, 3]) == (([1, 2, 3],), {})


def test_tensors_are_found_and_converted_wherever_they_are():
    batch = {"x": LOGITS, "more": [Output(LOGITS), (TARGET, 3, "text")], "data": UserDict(y=TARGET)}
    assert [name for name, _ in tensors_of(batch, "b")] == ["b.x", "b.more.0.logits", "b.more.1.0", "b.data.y"]
    doubled = mapped(batch, lambda tensor: tensor * 2)
    assert doubled["more"][0].logits.equal(LOGITS * 2)
    assert doubled["more"][1][1:] == (3, "text")
    assert isinstance(doubled["data"], UserDict)
    assert doubled["data"]["y"].equal(TARGET * 2)
