"""The configuration of each layer from a JSON document, or one for all layers."""

import difflib
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulator.machine.machine import Machine
from simulator.plan.ops import row
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.plan import Placed
from simulator.strategies.sharding.regions import is_linear_layer
from traces.errors import SchedcastError, UnknownNameError, UnusableFileError
from traces.files import first_fault, read_document

# Layers by name: those of the network, and the papers' names of convolutions and linear layers (conv1, conv2, ...; fc6, fc7, ...).


#: The number of the first linear layer in the papers, which is that of AlexNet.
_FIRST_LINEAR = 6


def paper_names(network: Network) -> dict[str, int]:
    """The papers' names of a network's layers."""
    names: dict[str, int] = {}
    convolutions, linear = 0, _FIRST_LINEAR - 1
    for number, layer in enumerate(network.layers):
        main = network.graph.ops[layer.main]
        if row(main.body.target).weight is not None:
            convolutions += 1
            names[f"conv{convolutions}"] = number
        elif is_linear_layer(main):
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


SCHEMA = "schedcast.configurations/1"

_Degree = Annotated[int, Field(ge=1, le=65536, strict=True)]


class LayerDocument(BaseModel):
    """Degrees of a layer, and the devices of its workers by their number on the machine; None: the first ones."""

    model_config = ConfigDict(extra="forbid")

    n: _Degree = 1
    c: _Degree = 1
    h: _Degree = 1
    w: _Degree = 1
    devices: list[Annotated[int, Field(ge=0, le=65536, strict=True)]] | None = None

    @property
    def configuration(self) -> Configuration:
        """The degrees."""
        return Configuration(self.n, self.c, self.h, self.w)


class ConfigurationsDocument(BaseModel):
    """Configurations by name of a layer. `default` is that of all others; without it they have one worker."""

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["schedcast.configurations/1"] = Field(alias="schema")
    layers: dict[str, LayerDocument] = {}
    default: LayerDocument = LayerDocument()


def read_configurations(path: str, network: Network, machine: Machine) -> list[Placed]:
    """The configuration and the devices of each layer from a file.

    Raises SchedcastError for an unknown layer, and for a configuration that a layer named there cannot have. A layer that the default does
    not fit has the largest part of it that fits, first in images.
    """
    document = read_document(path, "configurations", SCHEMA)
    try:
        parsed = ConfigurationsDocument.model_validate(document)
    except ValidationError as error:
        raise UnusableFileError(f"{path} has an unusable entry {first_fault(error)}") from error
    names = [layer.name for layer in network.layers]
    for name in parsed.layers:
        if name not in names:
            raise UnknownNameError("layer", name, tuple(names))
    placed = []
    for number, layer in enumerate(network.layers):
        own = parsed.layers.get(layer.name)
        if own is not None:
            network.check(number, own.configuration, len(machine.devices))
            placed.append(place(own.configuration, machine, own.devices, layer.name))
            continue
        configuration = nearest(network, number, parsed.default.configuration)
        devices = parsed.default.devices
        placed.append(place(configuration, machine, devices and devices[: configuration.workers], "default"))
    return placed


def nearest(network: Network, layer: int, wanted: Configuration) -> Configuration:
    """Of a layer's configurations whose degrees divide those wanted, the one with the most workers; of these, the one by images."""
    legal = [
        each
        for each in network.legal(layer, wanted.workers)
        if all(own % degree == 0 for own, degree in zip(wanted.degrees, each.degrees, strict=True))
    ]
    return max(legal, key=lambda each: (each.workers, each.degrees))


def place(configuration: Configuration, machine: Machine, devices: Sequence[int] | None = None, layer: str = "") -> Placed:
    """Put worker k of a layer on the k-th of `devices`, which are numbers of the machine's devices (default: the first ones).

    Raises SchedcastError if there are not as many of them as workers, or not as many different ones.
    """
    count = len(machine.devices)
    numbers = list(range(configuration.workers)) if devices is None else list(devices)
    if len(set(numbers)) < len(numbers) or len(numbers) != configuration.workers or any(number >= count for number in numbers):
        raise SchedcastError(
            f"layer {layer}: devices {numbers} are no place for {configuration.workers} workers ({configuration}); expected as many"
            f" different numbers from 0 to {count - 1}"
        )
    return Placed(configuration, tuple(machine.devices[number].name for number in numbers))
