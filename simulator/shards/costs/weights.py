"""The parameters of a layer, and the pieces of them that a worker holds."""

from collections.abc import Iterator

from simulator.plan.task import PARAMETER, Operand
from simulator.shards.boxes import Box
from simulator.shards.network import Network


def parameters(network: Network, layer: int) -> Iterator[tuple[int, int, Operand]]:
    """Yield (op, position among its inputs, operand) of each trained parameter that a layer reads, once."""
    graph, known = network.graph, set()
    for op in network.layers[layer].ops:
        for position, operand in enumerate(graph.ops[op].inputs):
            value = graph.values[operand.value]
            if value.kind == PARAMETER and operand.value in graph.gradients and operand.value not in known:
                known.add(operand.value)
                yield op, position, operand


def weight_bytes(network: Network, layer: int) -> int:
    """Bytes of a layer's weights without biases and normalizations: of the parameters with at least two dimensions."""
    return sum(operand.bytes for _, _, operand in parameters(network, layer) if len(operand.shape) > 1)


def pieces(network: Network, layer: int, box: Box) -> Iterator[tuple[str, Box]]:
    """Yield (parameter, its piece) that a worker with `box` of the layer's output holds."""
    for op, position, operand in parameters(network, layer):
        yield operand.value, network.needed_or_all(op, position, box)
