"""The tables of the paper on pipelined training, with published and computed figures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from simulator.reproduce import pipeline_bounds as bounds
from simulator.reproduce.pipeline_cases import BATCH, EPOCHS, MEMORY, PIPELINED_EPOCHS, SPEEDUPS, Network
from simulator.reproduce.pipeline_layers import NumberedLayer
from simulator.reproduce.pipeline_memory import one_f_one_b_increase, pipedream_increase, stale_increase, stale_weights
from simulator.reproduce.predicting import Missing
from traces.reproduction import OK, Figure, Row, Table

#: The relative increases of memory that are compared.
INCREASES = {
    "stale weights": stale_increase,
    "PipeDream, as charged": pipedream_increase,
    "PipeDream, as it runs": one_f_one_b_increase,
}
#: A network's layers, or why they could not be captured, by built-in model.
Layers = Mapping[str, tuple[NumberedLayer, ...] | Missing]


@dataclass(frozen=True)
class Pipelined:
    """The predicted speed-up of pipelined training over one GPU; `not_hidden`: if all GPUs wait for every transfer."""

    speedup: float
    not_hidden: float
    status: str = OK


def bounds_table(pairs: Iterable[int]) -> Table:
    """Section 4.1: the closed forms, and the same from the cycles of pipelines of such stages."""
    rows = []
    for count in pairs:
        figures = (
            Figure(name="accelerators", unit="count", predicted=bounds.accelerators(count)),
            _against("equal devices", bounds.of_equal_accelerators(count), bounds.equal_accelerators(count)),
            _against("equal stages", bounds.of_equal_stages(count), bounds.equal_stages(count)),
            _against("backward 2x", bounds.of_equal_layers(count, 2.0), bounds.double_backward(count)),
            _against(
                "half hybrid, equal devices", _half_of(bounds.of_equal_accelerators(count)), _half_of(bounds.equal_accelerators(count))
            ),
            _against("half hybrid, equal stages", _half_of(bounds.of_equal_stages(count)), _half_of(bounds.equal_stages(count))),
        )
        rows.append(Row(labels={"pairs": str(count)}, figures=figures))
    about = (
        "Published: 2K + 1, K + 1 and 1.5K + 1 for K pairs of registers. Predicted: all work over that of the busiest accelerator, if all"
        " 2K + 1 have the same work; if K + 1 stages have, on a device each; and for the best placement in a chain of equal layers whose"
        " backward takes twice their forward, on 2K + 1. Half hybrid: half of the iterations are pipelined so, half run as on one"
        " device; published: n / (p / X + n - p) for p of n iterations with the speed-up X, which is 1.33 for equal stages on two devices."
    )
    return Table(name="bounds", title="Bounds on the speed-up", about=about, rows=tuple(rows))


def _half_of(speedup: float) -> float:
    return bounds.hybrid(1, 2, speedup)


def speedups_table(networks: Iterable[Network], predicted: Mapping[Network, Pipelined | Missing]) -> Table:
    """Table 5: pipelined training, and hybrid training from its speed-up. `predicted`: pipelined training."""
    rows = []
    for network in networks:
        published, own = SPEEDUPS.get(network), predicted.get(network)
        known = own if isinstance(own, Pipelined) else None
        printed = published and published.hybrid
        figures = (
            _against("pipelined", known and known.speedup, published and published.pipelined),
            _against("not hidden", known and known.not_hidden, None),
            _against("hybrid", known and _half(known.speedup), printed),
            _against("by formula", published and _half(published.pipelined), printed),
        )
        rows.append(Row(labels={"network": network.name}, figures=figures, status=own.status if own is not None else OK))
    about = (
        "Published: table 5. Pipelined: transfers over the host run beside computation. Not hidden: both GPUs wait for them. Hybrid"
        f" training pipelines {PIPELINED_EPOCHS} of {EPOCHS} epochs. By formula: what follows from the published"
        f" speed-up of pipelined training; with 2, the bound of two GPUs, it is {_half(bounds.equal_stages(1)):.2f}, as printed."
    )
    return Table(name="speedups", title="Pipelined training, and hybrid training", about=about, rows=tuple(rows))


def _half(speedup: float) -> float:
    return bounds.hybrid(PIPELINED_EPOCHS, EPOCHS, speedup)


def stale_table(networks: Iterable[Network], layers: Layers) -> Table:
    """Sections 4.1 and 6.3: how many weights are stale, and by how many cycles at most."""
    rows = []
    for network in dict.fromkeys(networks):
        own = layers[network.model]
        captured = not isinstance(own, Missing)
        figures = (
            Figure(name="stages", unit="count", predicted=2 * network.pairs + 2),
            Figure(name="degree", unit="count", predicted=2 * network.pairs),
            Figure(name="stale weights", unit="share", predicted=stale_weights(own, network.placement) if captured else None),
        )
        rows.append(Row(labels=_labels(network), figures=figures, status=OK if captured else own.status))
    about = (
        "Figure 6 is drawn over the share of stale weights without numbers. Stages: forward and backward ones. Degree: cycles by which the"
        " first stage's forward pass reads weights too early. Layers are convolutions and linear layers, counted from 1."
    )
    return Table(name="stale", title="Stale weights by placement", about=about, rows=tuple(rows))


def sizes_table(networks: Iterable[Network], layers: Layers) -> Table:
    """Table 9: what the increases of memory are computed from."""
    rows = []
    for network in {network.model: network for network in reversed(tuple(networks))}.values():
        own, published = layers[network.model], MEMORY.get(network)
        captured = not isinstance(own, Missing)
        figures = (
            Figure(
                name="weights",
                unit="bytes",
                predicted=sum(layer.weights_bytes for layer in own) if captured else None,
                published=published and published.weights_bytes,
            ),
            Figure(
                name="activations",
                unit="bytes",
                predicted=2 * sum(layer.activations_bytes for layer in own) if captured else None,
                published=published and published.activations_bytes,
            ),
        )
        rows.append(Row(labels={"network": network.name}, figures=figures, status=OK if captured else own.status))
    about = "Published: table 9. Activations: of one sample, the outputs of all layers and their gradients, as torchsummary counts them."
    return Table(name="sizes", title="Weights and activations", about=about, rows=tuple(reversed(rows)))


def memory_table(networks: Iterable[Network], layers: Layers) -> Table:
    """Tables 7 and 9: memory beyond plain training, with both accountings of PipeDream's copies of the weights."""
    rows = []
    for network in networks:
        own, published = layers[network.model], MEMORY.get(network)
        captured = not isinstance(own, Missing)
        increases = (function(own, network.placement, BATCH) if captured else None for function in INCREASES.values())
        printed = (published.stale, published.pipedream, None) if published else (None, None, None)
        figures = tuple(
            Figure(name=name, unit="share", predicted=increase, published=other)
            for name, increase, other in zip(INCREASES, increases, printed, strict=True)
        )
        rows.append(Row(labels=_labels(network), figures=figures, status=OK if captured else own.status))
    about = (
        f"Published: table 9, batch {BATCH}, two forward and two backward stages; increase over plain training. PipeDream, as charged: the"
        " paper charges it with four further copies of all weights. PipeDream, as it runs: on two GPUs, where the first stage keeps a"
        " second version of its own weights and activations, and the last one none."
    )
    return Table(name="memory", title="Increase of memory", about=about, rows=tuple(rows))


def _labels(network: Network) -> dict[str, str]:
    return {"network": network.name, "placement": network.placed}


def _against(name: str, computed: float | None, published: float | None) -> Figure:
    return Figure(name=name, unit="x", predicted=computed, published=published)
