"""Batch-norm by parts, in plain PyTorch: as if every part were a batch."""

import pytest
import torch
from torch import nn

from executors.contexts import BatchNormParts
from traces.errors import SchedcastError

X = torch.randn(4, 3, 6, 2, dtype=torch.float64)


def model() -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()).double()


def test_every_part_is_normalized_by_itself():
    """Two halves of the images times three parts of the height; the first of the six makes the running statistics."""
    divided, alone = model(), model()
    with BatchNormParts(divided, {"0": [2, 3, 1]}):
        output = divided(X)
    for image in range(0, 4, 2):
        for row in range(0, 6, 2):
            expected = model()(X[image : image + 2, :, row : row + 2])
            torch.testing.assert_close(output[image : image + 2, :, row : row + 2], expected, rtol=0, atol=1e-12)
    alone(X[:2, :, :2])
    for name, tensor in divided.state_dict().items():
        assert torch.equal(tensor, alone.state_dict()[name]), name


def test_outside_the_context_and_in_evaluation_the_layer_is_as_it_was():
    layer, other = model(), model()
    with BatchNormParts(layer, {"0": [2, 1, 1]}):
        torch.testing.assert_close(layer.eval()(X), other.eval()(X))
    torch.testing.assert_close(layer.train()(X), other.train()(X))
    assert "forward" not in vars(layer[0])


@pytest.mark.parametrize("path", ["1", "features.0"])
def test_only_batch_norm_layers_have_parts(path):
    with pytest.raises(SchedcastError, match=f"^{path} is no batch-norm layer of the model"):
        BatchNormParts(model(), {path: [2, 1, 1]})
