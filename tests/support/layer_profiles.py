"""PipeDream's profiles of models, layer by layer, as public measurements."""

from pathlib import Path

import networkx as nx

from simulator.stages.pipedream import Layer


def read_profile(path: Path) -> tuple[list[str], list[Layer], list[tuple[int, int]]]:
    """The names of a model's layers in topological order, the layers, and the edges between them, without inputs, as PipeDream does."""
    graph = nx.DiGraph()
    layers = {}
    for line in path.read_text().splitlines():
        first, second, *rest = line.strip().split(" -- ")
        if not rest:
            graph.add_edge(first, second)
        elif not second.startswith("Input"):
            numbers = dict(field.split("=") for field in rest[0].split(", "))
            seconds = (float(numbers["forward_compute_time"]) + float(numbers["backward_compute_time"])) / 1000
            activation_bytes = sum(map(float, numbers["activation_size"].strip("[]").split("; ")))
            layers[first] = Layer(seconds, activation_bytes, float(numbers["parameter_size"]))
    names = [name for name in nx.lexicographical_topological_sort(graph, key=lambda name: int(name.removeprefix("node"))) if name in layers]
    numbers = {name: number for number, name in enumerate(names)}
    return names, [layers[name] for name in names], [(numbers[a], numbers[b]) for a, b in graph.edges if a in layers]
