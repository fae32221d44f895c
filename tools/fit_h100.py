"""Fits what the shipped H100 profile alone can tell: `python -m tools fit-h100` prints the numbers and their errors.

These are the numbers of kernels with a block for each channel (`channel_blocks`), by the least absolute log error of the measured batch
norms in bf16, warm and cold, and how many times as long products take whose rows are not aligned (`products`). Then each half of the shapes
is predicted with what the other half gives. No other GPU's measurements of such kernels are at hand.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simulator.engine.costs import efficiencies
from simulator.engine.costs.channel_blocks import ChannelBlocks, Channels
from simulator.engine.costs.efficiencies import NORM_PYTORCH, Extents
from simulator.engine.costs.products import Product
from simulator.engine.costs.site import Number, Site, Sites
from simulator.machine.presets import load_machine
from simulator.plan.bodies.opcall import ListedOp
from simulator.predict.target import profile_of_preset
from tools.fit_efficiencies import rms

GPU = "h100"
#: Where the search starts: the latency of memory and of a cache, a tenth of the former, and some microseconds.
START = {"round_cycles": 700.0, "cached_round_cycles": 300.0, "crowd_cycles": 70.0, "block_cycles": 10000.0}


class Shape(NamedTuple):
    """A measured op: its extents, FLOPs and bytes, and seconds with its operands in the cache and not."""

    key: str
    extents: Extents
    flops: float
    bytes: float
    warm_s: float
    cold_s: float


def shapes(kind: type) -> list[Shape]:
    """The measured ops of the profile with extents of a kind, in order of their keys."""
    profile, result = profile_of_preset(GPU), []
    assert profile is not None, "the profile is part of the package"
    for key, cost in sorted(profile.costs.items()):
        op = ListedOp.of_key(key.rpartition("@")[0], cost.flops, cost.launches)
        extents = efficiencies.extents(op) if op is not None else None
        if isinstance(extents, kind):
            cold_s = (cost.cold or cost.warm).median_s
            result.append(Shape(key, extents, cost.flops, cost.bytes, cost.warm.median_s, cold_s))
    return result


def blocks_of(logs: np.ndarray) -> ChannelBlocks:
    """The numbers from their logarithms."""
    return ChannelBlocks(**{name: Number(value, 0.2, "h100-ops") for name, value in zip(START, np.exp(logs).tolist(), strict=True)})


def log_errors(site: Site, norms: Sequence[Shape], blocks: ChannelBlocks) -> np.ndarray:
    """Logarithms of predicted over measured, warm and cold."""
    rows = efficiencies.table()["gpu"]
    row = rows.row(NORM_PYTORCH).model_copy(update={"channel_blocks": blocks})
    own = rows.model_copy(update={"classes": {**rows.classes, NORM_PYTORCH: row}})
    said = [efficiencies.seconds(site, NORM_PYTORCH, s.flops, s.bytes, rows=own, extents=s.extents) for s in norms]
    return np.log([[each.warm / s.warm_s, each.cold / s.cold_s] for each, s in zip(said, norms, strict=True)])


def fit(site: Site, norms: Sequence[Shape]) -> ChannelBlocks:
    """The numbers with the least absolute log error."""
    from scipy.optimize import minimize

    start = np.log(list(START.values()))
    options = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-3, "fatol": 1e-6, "adaptive": True}
    best = minimize(lambda logs: np.abs(log_errors(site, norms, blocks_of(logs))).mean(), start, method="Nelder-Mead", options=options)
    return blocks_of(best.x)


def unaligned(site: Site) -> np.ndarray:
    """By product of the profile that is not aligned, how many times as long it takes as the table says of an aligned one."""
    ratios = []
    for shape in shapes(Product):
        if not shape.extents.aligned:
            aligned = shape.extents._replace(aligned=True)
            said = efficiencies.seconds(site, "matmul", shape.flops, shape.bytes, "bf16", extents=aligned)
            ratios.append(shape.cold_s / said.cold)
    return np.array(ratios)


def _summary(errors: np.ndarray) -> str:
    return f"RMS log error {rms(errors.ravel()):.2f}, median {np.median(np.abs(errors)):.2f}"


def main() -> None:
    """Print the numbers and the errors."""
    machine = load_machine(GPU)
    site = Sites(machine).site(machine.devices[0].name)
    norms = shapes(Channels)
    numbers = fit(site, norms)
    print("channel_blocks:", json.dumps({name: round(number[0]) for name, number in numbers.model_dump().items()}))
    errors = log_errors(site, norms, numbers)
    warm_s = np.array([shape.warm_s for shape in norms])
    bias = warm_s @ np.exp(errors[:, 0]) / warm_s.sum() - 1
    print(f"{len(norms)} batch norms: {_summary(errors)}, sum {bias:+.0%}")
    halves = [norms[half::2] for half in (0, 1)]
    for own, other in zip(halves, reversed(halves), strict=True):
        left = log_errors(site, own, fit(site, other))
        print(f"{len(own)} from the others: {_summary(left)}")
    ratios = unaligned(site)
    mean = np.exp(np.log(ratios).mean())
    print(f"unaligned: {mean:.2g} of", *(f"{ratio:.1f}" for ratio in ratios), f"RMS log error {np.log(ratios / mean).std():.2f}")


if __name__ == "__main__":
    main()
