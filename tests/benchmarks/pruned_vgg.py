"""Train VGG-11 on handwritten digits, keep the largest 3 % of its weights, and train it again: what BPPSA's scan over it takes.

As Wang et al., section 4.3, with the digits of `workloads.data` at 32x32 pixels instead of CIFAR-10. Weights are pruned by magnitude (See
et al. 2016), by default 3 % of each layer are kept, with the argument `blind` 3 % of all layers together. Prints the share that each layer
keeps, the accuracy before and after, and FLOPs of the scan and of back-propagation's gradient operators: with the trained mask, and with
random ones of the same shares, as `chains.PrunedVGG11` has them. Ten minutes on two cores.

With `blind` and 70 steps before and after: 93.3 % right, then 39.3 %; the heaviest step takes 2.534e8 FLOPs with the trained mask and
2.535e8 with the random one. With 3 % of each layer, training again had not recovered after 50 steps,
when it was stopped.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from simulator.model.workloads.data import Batches, digits
from simulator.model.workloads.networks.chains import PrunedVGG11
from simulator.papers import bppsa_sparse
from simulator.plan.bodies.csr.mask import Mask

BATCH, RATE = 64, 5e-4
#: Steps of training, before and after pruning.
STEPS = 80, 140
KEPT = 0.03


@dataclass(frozen=True)
class TrainedMask(Mask):
    """The positions that a trained layer keeps."""

    positions: tuple[int, ...] = ()

    def kept(self, shape: tuple[int, ...]) -> np.ndarray:
        """Flat positions of the kept elements in ascending order."""
        return np.array(self.positions, dtype=np.int64)


def network() -> nn.Module:
    """The pruned network's layers without masks."""
    made = PrunedVGG11()
    for module in made.modules():
        if hasattr(module, "mask"):
            module.mask = Mask(1.0)
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return made


def train(model: nn.Module, data: Batches, steps: int, masks: Sequence[Tensor] | None = None) -> float:
    """Train for some steps, with weights outside of `masks` at zero. Returns the accuracy on the pictures held out."""
    weights = [module.weight for module in model.modules() if hasattr(module, "mask")]
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    for step in range(steps):
        (images,), classes = data[step]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for weight, mask in zip(weights, masks or (), strict=False):
                weight.mul_(mask)
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    ((images,), classes), *_ = data.parts(range(data.samples, data.samples + data.held_out), data.held_out)
    with torch.no_grad():
        return float((model(images).argmax(1) == classes).float().mean())


def least(magnitudes: Tensor) -> Tensor:
    """The smallest of the magnitudes that are kept."""
    return magnitudes.flatten().topk(round(KEPT * magnitudes.numel())).values[-1]


def totals(name: str, chain: Sequence[bppsa_sparse.Operator]) -> None:
    """Print what the scan takes."""
    scan = bppsa_sparse.steps(chain)
    heaviest, operator = max(step.flops for step in scan), max(each.flops for each in chain)
    print(
        f"{name}: heaviest step {heaviest:.3e}, heaviest gradient operator {operator:.3e}, critical path"
        f" {bppsa_sparse.critical_flops(scan):.3e}, all gradient operators {sum(each.flops for each in chain):.3e}",
        flush=True,
    )


def main() -> None:
    """Train, prune, train again, and count."""
    torch.manual_seed(0)
    data, model = digits(3, BATCH, 32, 0), network()
    before = train(model, data, STEPS[0])
    weights = [module.weight for module in model.modules() if hasattr(module, "mask")]
    magnitudes = [weight.detach().abs() for weight in weights]
    together = [torch.cat([each.flatten() for each in magnitudes])] * len(weights) if "blind" in sys.argv else magnitudes
    masks = [(own >= least(group)).float() for own, group in zip(magnitudes, together, strict=True)]
    with torch.no_grad():
        for weight, mask in zip(weights, masks, strict=True):
            weight.mul_(mask)
    after = train(model, data, STEPS[1], masks)
    print(f"accuracy {before:.1%} before, {after:.1%} after pruning and training again")
    print("kept", [round(float(mask.mean()), 6) for mask in masks], flush=True)
    chain = bppsa_sparse.operators()
    pruned = [number for number, each in enumerate(chain) if getattr(each.rule, "mask", None) is not None]
    of_convolutions = masks[len(masks) - 3 - len(pruned) : len(masks) - 3]  # those whose input has a gradient, from the first one on
    trained, shares = list(chain), list(chain)
    for number, mask in zip(reversed(pruned), of_convolutions, strict=True):
        share, positions = float(mask.mean()), tuple(mask.flatten().nonzero().flatten().tolist())
        rule = chain[number].rule
        trained[number] = replace(chain[number], rule=replace(rule, mask=TrainedMask(share, rule.mask.seed, positions)))
        shares[number] = replace(chain[number], rule=replace(rule, mask=replace(rule.mask, keep=share)))
    totals("trained mask", trained)
    totals("random, same shares", shares)


if __name__ == "__main__":
    main()
