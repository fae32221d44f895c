"""PipeDream's partition of layers into stages, each replicated over some devices (Harlap, Narayanan et al. 2018, section 3.1).

A dynamic program finds the pipeline whose slowest part is fastest: the time between two minibatches is the longest of every stage's time
and every stage's transfers. The costs are those of the authors' optimizer:

- a stage on m devices takes (compute + 4 (m - 1) / m · parameter bytes / bandwidth) / m: each device works on every m-th minibatch, and
  sends and receives its share of the gradients and of the weights;
- a stage receives its input and sends its output, and their gradients the other way: 2 · bytes / bandwidth / m each;
- a device stashes activations and weights of its stage for every minibatch on its way to later devices, ceil(devices behind / m) times;
  those of the minibatch that it works on are not counted.

Layers form a chain or any graph without cycles. In a graph, a cut is a set of layers that holds all predecessors of its layers, which its
antichain of last layers names; the program runs over these sets. Where a graph with many parallel branches has more than MOST_CUTS of
them, only those are tried that hold the first layers by number.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traces.errors import StepcastError

#: Cuts of a graph that are tried at most: the program's time grows with their square.
MOST_CUTS = 2000


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a profile. `activation_bytes`: its output for one minibatch. `seconds`: forward and backward of one minibatch."""

    seconds: float
    activation_bytes: float
    parameter_bytes: float


@dataclass(frozen=True, slots=True)
class ReplicatedStage:
    """Consecutive layers and the number of devices that share their minibatches.

    `layers`: numbers from 0, ascending. `seconds`: between two minibatches that the stage completes, with its weights' synchronization;
    `transfer_s`: of the longer one of its two transfers.
    """

    layers: tuple[int, ...]
    replicas: int
    seconds: float
    transfer_s: float

    @property
    def first(self) -> int:
        """The number of the stage's first layer."""
        return self.layers[0]

    @property
    def last(self) -> int:
        """The number of the stage's last layer."""
        return self.layers[-1]


def pipedream(
    layers: Sequence[Layer],
    devices: int,
    bandwidth_bytes_per_s: float,
    memory_bytes: float | None = None,
    replication: bool = True,
    edges: Iterable[tuple[int, int]] | None = None,
) -> list[ReplicatedStage]:
    """Return the stages with the shortest time between two minibatches on at most `devices` devices; the fewest devices of equal ones.

    `memory_bytes`: what a device can stash; a single stage stashes nothing, so that there always is a partition. `replication`: whether a
    stage may have several devices. `edges`: pairs of layer numbers, each from a lower to a higher one; a chain by default.
    """
    if devices < 1:
        raise StepcastError(f"{devices} devices: a partition needs at least 1")
    program = _Program(layers, _cuts(len(layers), edges), bandwidth_bytes_per_s, np.inf if memory_bytes is None else memory_bytes)
    most = devices if replication else 1
    best, choices = program.solve(devices, most)
    fewest = int(best[0].argmin())
    return program.stages(fewest, choices)


def minibatch_seconds(stages: Sequence[ReplicatedStage]) -> float:
    """Return the seconds between two minibatches of a pipeline: its slowest stage or transfer."""
    return max(max(stage.seconds, stage.transfer_s) for stage in stages)


@dataclass(frozen=True)
class _Cuts:
    """Sets of layers in which each has its predecessors, from none to all of them, by size. Bit i of a mask is layer i.

    `outputs`: for each set, the layers whose output a layer outside reads.
    """

    masks: list[int]
    outputs: list[tuple[int, ...]]


def _cuts(count: int, edges: Iterable[tuple[int, int]] | None) -> _Cuts:
    """Return every cut of a graph of `count` layers."""
    before, after = [0] * count, [0] * count
    for source, target in pairwise(range(count)) if edges is None else edges:
        if not 0 <= source < target < count:
            raise ValueError(f"edge {source} to {target}: expected layers 0 to {count - 1}, from a lower to a higher number")
        before[target] |= 1 << source
        after[source] |= 1 << target
    masks, newest = {0}, {0}
    while newest and len(masks) <= MOST_CUTS:
        # Each round adds one layer, so that sets appear by size.
        newest = {mask | 1 << new for mask in newest for new in range(count) if not mask >> new & 1 and before[new] & ~mask == 0}
        masks |= newest
    ordered = sorted(masks, key=lambda mask: (mask.bit_count(), mask))
    if len(masks) > MOST_CUTS:
        ordered = [(1 << held) - 1 for held in range(count + 1)]
    return _Cuts(ordered, [tuple(i for i in range(count) if mask >> i & 1 and after[i] & ~mask) for mask in ordered])


class _Program:
    """The dynamic program from the last cut to the first: what lies behind a cut, on how many devices, at what time."""

    def __init__(self, layers: Sequence[Layer], cuts: _Cuts, bandwidth_bytes_per_s: float, memory_bytes: float):
        self._cuts, self._bandwidth, self._memory_bytes = cuts, bandwidth_bytes_per_s, memory_bytes
        held = np.array([[mask >> i & 1 for i in range(len(layers))] for mask in cuts.masks], dtype=float)
        self._seconds, self._parameters, self._activations = (
            held @ np.array([getattr(layer, name) for layer in layers], dtype=float)
            for name in ("seconds", "parameter_bytes", "activation_bytes")
        )
        self._crossing = np.array([sum(layers[i].activation_bytes for i in outputs) for outputs in cuts.outputs])

    def solve(self, devices: int, most: int) -> tuple[np.ndarray, dict[tuple[int, int], tuple[int, int]]]:
        """Return the best times and the choices that lead to them.

        The times are [cuts, devices + 1]: of everything behind a cut on exactly so many devices. A choice, by cut and devices, is the next
        cut and the devices of the stage between them, of which there are at most `most`.
        """
        masks = self._cuts.masks
        last = len(masks) - 1
        best = np.full((len(masks), devices + 1), np.inf)
        best[last, 0] = 0.0
        choices = {}
        for cut in range(last - 1, -1, -1):
            later = np.array([other for other in range(cut + 1, last + 1) if masks[cut] & ~masks[other] == 0])
            for replicas in range(1, most + 1):
                seconds, transfer_s = self._times(cut, later, replicas)
                stage = np.maximum(seconds, transfer_s)
                stashed_bytes = self._parameters[later] - self._parameters[cut] + self._activations[later] - self._activations[cut]
                for behind in range(devices - replicas + 1):
                    fits = -(-behind // replicas) * stashed_bytes <= self._memory_bytes
                    times = np.where(fits, np.maximum(stage, best[later, behind]), np.inf)
                    chosen = int(times.argmin())
                    if times[chosen] < best[cut, behind + replicas]:
                        best[cut, behind + replicas] = times[chosen]
                        choices[cut, behind + replicas] = (int(later[chosen]), replicas)
        return best, choices

    def _times(self, cut: int, later: np.ndarray, replicas: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds and the transfer seconds of the stages from one cut to each of several."""
        parameters = self._parameters[later] - self._parameters[cut]
        synchronization_s = 4 * (replicas - 1) / replicas * parameters / self._bandwidth
        seconds = (self._seconds[later] - self._seconds[cut] + synchronization_s) / replicas
        crossing = np.maximum(self._crossing[cut], self._crossing[later])
        return seconds, 2 * crossing / self._bandwidth / replicas

    def stages(self, devices: int, choices: dict[tuple[int, int], tuple[int, int]]) -> list[ReplicatedStage]:
        """Return the stages of the best partition over exactly `devices` devices."""
        masks, stages, cut = self._cuts.masks, [], 0
        while devices:
            later, replicas = choices[cut, devices]
            seconds, transfer_s = self._times(cut, np.array([later]), replicas)
            new = masks[later] & ~masks[cut]
            layers = tuple(i for i in range(new.bit_length()) if new >> i & 1)
            stages.append(ReplicatedStage(layers, replicas, float(seconds[0]), float(transfer_s[0])))
            cut, devices = later, devices - replicas
        return stages
