"""The fused cross-entropy: PyTorch's numbers, in parts of rows too, and labels that are no class."""

import pytest
import torch
from torch.nn import functional as F

from simulator.model.ops import cross_entropy
from simulator.model.ops.cross_entropy import fused_cross_entropy


@pytest.mark.parametrize("at_once", [1, 50, 2**24])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_loss_and_gradient_are_those_of_pytorch(dtype, tolerance, at_once, monkeypatch):
    """Of bfloat16 logits PyTorch's float32 copy is the measure, and only the gradient is rounded."""
    monkeypatch.setattr(cross_entropy, "_AT_ONCE", at_once)
    torch.manual_seed(0)
    logits, labels = 3 * torch.randn(37, 11).to(dtype), torch.randint(11, (37,))
    own, other = (logits.clone().requires_grad_() for _ in range(2))
    loss, expected = fused_cross_entropy(own, labels), F.cross_entropy(other.float() if dtype.itemsize < 4 else other, labels)
    torch.testing.assert_close(loss, expected, rtol=0, atol=min(tolerance, 1e-6))
    loss.backward()
    expected.backward()
    torch.testing.assert_close(own.grad, other.grad, rtol=0, atol=tolerance)


def test_a_label_that_is_no_class_picks_nothing():
    """As a device does that has a part of the classes: the others' labels lie outside of it."""
    logits, labels = torch.randn(3, 5, dtype=torch.float64, requires_grad=True), torch.tensor([1, -100, 7])
    picked, sums = torch.ops.schedcast.cross_entropy(logits, labels)
    assert picked.tolist() == [logits[0, 1].item(), 0.0, 0.0]
    torch.testing.assert_close(sums, logits.logsumexp(1))
    picked.sum().backward()
    assert logits.grad.nonzero().tolist() == [[0, 1]]
