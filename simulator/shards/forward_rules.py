"""How the forward op of a layer makes a part of its output: what it sees of its inputs, and with which arguments."""

from dataclasses import dataclass

from simulator.graph import Op
from simulator.shards.boxes import Box, shape_of
from simulator.shards.regions import arguments_of, name_of, needed, output_of, windows_of


@dataclass
class LocalForward:
    """How a forward op runs on a part: by input the box that it sees, the new arguments, and what lies beyond an input."""

    boxes: list[Box | None]
    arguments: dict[int, object]
    fill: float = 0.0


def local_forward(op: Op, part: Box) -> LocalForward:
    """How a forward op makes `part` of its output."""
    local = LocalForward(list(needed(op, part)), {})
    name = name_of(op)
    if name in ("convolution", "max_pool2d_with_indices", "avg_pool2d"):
        _pad(op, part, local)
    if name == "convolution":
        arguments = arguments_of(op)
        weight, groups = op.inputs[arguments[1]["$"]].shape, arguments[8]
        (first, end), outs = part[1], weight[0] // groups
        local.arguments[8] = max(1, (end - first) // outs)
    elif name == "_adaptive_avg_pool2d":
        source, out = op.inputs[0].shape, op.writes[0].shape
        seen = list(local.boxes[0])
        for dim in (2, 3):
            if part[dim] == (0, out[dim]):
                seen[dim] = (0, source[dim])
        local.boxes[0] = tuple(seen)
        local.arguments[1] = list(shape_of(part)[2:])
    return local


def _pad(op: Op, part: Box, local: LocalForward) -> None:
    """Decide for each axis of a window whether the op pads by itself, or reads a copy that is padded already."""
    name, arguments = name_of(op), arguments_of(op)
    at = 0 if name != "convolution" else arguments[0]["$"]
    source, out, seen = op.inputs[at].shape, output_of(op).shape, list(local.boxes[at])
    paddings = []
    for dim, window in zip((2, 3), windows_of(op), strict=True):
        first, end = seen[dim]
        below, above = max(0, -first), max(0, end - source[dim])
        if part[dim] == (0, out[dim]):
            below, seen[dim] = window.padding, (0, source[dim])
        elif below == above:
            seen[dim] = (first + below, end - above)
        else:
            below = 0
        paddings.append(below)
    local.boxes[at] = tuple(seen)
    local.fill = float("-inf") if name.startswith("max") else 0.0
    if name == "convolution":
        local.arguments[4] = paddings
    elif paddings != [window.padding for window in windows_of(op)]:
        local.arguments[3] = paddings
