"""A mean over targets that do not all count is another one in parts of the batch, and plans say so."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.model.live import live_factory, undisturbed
from tests.support.jobs import planned


def masked(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    counts = target != 0
    return (functional.cross_entropy(output, target, reduction="none") * counts).sum() / counts.sum()


def of_tokens(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.unflatten(1, (3, 1)).expand(-1, -1, 5), target[:, None].expand(-1, 5))


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (nn.CrossEntropyLoss(ignore_index=0), "targets of 0 are skipped"),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])), "classes have weights"),
        (masked, "what the batch says does not count"),
        (of_tokens, "targets of -100, if there are any, are skipped"),
        (nn.CrossEntropyLoss(), ""),
        (nn.CrossEntropyLoss(ignore_index=0, reduction="sum"), ""),
        (lambda output, target: functional.mse_loss(output, torch.ones_like(output)), ""),
    ],
)
def test_a_loss_that_skips_targets_is_said_to_be_another_mean_in_parts(loss, said):
    module = nn.Linear(6, 3)
    factory, samples = live_factory(module, torch.randn(8, 6), torch.randint(3, (8,)), loss)
    with undisturbed():
        whole = planned("baseline", Job(factory.name, samples), load_machine("h100"))
        parts = planned("baseline", Job(factory.name, samples, accumulate=2), load_machine("h100"))
        devices = planned("data-parallel", Job(factory.name, samples), load_machine("2xh100"))
    words = f"the mean of the means of 2 parts of the batch, in which {said}, and not one mean over all"
    assert "loss" not in whole.semantics
    assert [plan.semantics.get("loss", "") for plan in (parts, devices)] == [words if said else ""] * 2
