"""Which lanes share something, so that one runs at another speed beside another: SMs, memory bandwidth, or links."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence

from simulator.engine.recipes import Recipe
from simulator.machine.machine import Machine


def sharing_lanes(
    lanes: Mapping[tuple[str, int], Sequence[int]],
    recipes: Sequence[Recipe],
    machine: Machine,
    contended: Collection[str],
    any_pair: bool,
) -> list[list[int]]:
    """Groups of at least two lanes, by number, that share something, directly or through others of the group.

    `lanes`: tasks by (device, stream). `contended`: devices whose SMs or memory several lanes use. `any_pair`: whether two kernels of one
    memory may slow each other down even if its bandwidth is enough for both.
    """
    users: dict[Hashable, list[int]] = defaultdict(list)
    draws: dict[str, dict[int, float]] = defaultdict(dict)
    for lane, ((device, _), indices) in enumerate(lanes.items()):
        shapes = [shape for index in indices if (shape := recipes[index].shape) is not None] if device in contended else []
        if shapes:
            users["SMs", device].append(lane)
            draws[machine.device(device).memory][lane] = max(shape.memory_share for shape in shapes)
        for index in indices:
            route = recipes[index].route
            if route is not None and not route.alias:
                for place in (*(("queue", d) for d in route.directions), *(("channel", c) for c in route.channels)):
                    if lane not in users[place]:
                        users[place].append(lane)
    for memory, shares in draws.items():
        if any_pair or sum(shares.values()) > 1.0:
            users["bandwidth", memory] = list(shares)
    return _joined(users.values())


def _joined(groups: Collection[Sequence[int]]) -> list[list[int]]:
    """The groups, as one where they have a member in common; without those of one member."""
    joined: list[set[int]] = []
    for group in groups:
        own = set(group)
        apart = []
        for other in joined:
            if own & other:
                own |= other
            else:
                apart.append(other)
        joined = [*apart, own]
    return sorted(sorted(group) for group in joined if len(group) > 1)
