"""Layers by name: those of the network, and the papers' names of convolutions and linear layers (conv1, conv2, ...; fc6, fc7, ...)."""

import difflib

from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.regions import name_of
from traces.errors import SchedcastError

#: The number of the first linear layer in the papers, which is that of AlexNet.
_FIRST_LINEAR = 6


def paper_names(network: Network) -> dict[str, int]:
    """The papers' names of a network's layers."""
    names: dict[str, int] = {}
    convolutions, linear = 0, _FIRST_LINEAR - 1
    for number, layer in enumerate(network.layers):
        match name_of(network.graph.ops[layer.main]):
            case "convolution":
                convolutions += 1
                names[f"conv{convolutions}"] = number
            case "addmm" | "mm":
                linear += 1
                names[f"fc{linear}"] = number
    return names


def layer_called(network: Network, name: str) -> int:
    """The number of the layer called `name`. Raises SchedcastError, with the names, for any other name."""
    own = {layer.name: number for number, layer in enumerate(network.layers)}
    names = paper_names(network) | own
    if name in names:
        return names[name]
    nearest = difflib.get_close_matches(name, names, 1)
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    raise SchedcastError(f"unknown layer {name[:80]!r}{hint}; expected one of: {', '.join(own)}, or a paper's name: {_spans(network)}")


def _spans(network: Network) -> str:
    """The papers' names, first to last: conv1 to conv5, fc6 to fc8."""
    names = list(paper_names(network))
    spans = []
    for kind in ("conv", "fc"):
        own = [name for name in names if name.startswith(kind)]
        spans += [own[0] if len(own) == 1 else f"{own[0]} to {own[-1]}"] if own else []
    return ", ".join(spans) or "none here"
