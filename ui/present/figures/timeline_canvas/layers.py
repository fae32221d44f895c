"""Groups layers by the start of their paths, for coloring."""

from collections import defaultdict
from collections.abc import Iterable

from traces.documents.timeline import Span

#: Groups with a color of their own. The others share one.
MOST_GROUPS = 9
#: Parts of a path at most that name a group.
_DEEPEST = 4


def layer_groups(spans: Iterable[Span]) -> dict[str, str]:
    """The group of every layer of `spans`, longest groups first: layer1 for layer1.0.conv1. The least depth that makes two groups is taken.

    Spans without a layer belong to no group. Layers of short groups belong to "".
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for span in spans:
        if span.layer:
            seconds[span.layer] += span.end_s - span.start_s
    for depth in range(1, _DEEPEST + 1):
        group_of = {layer: ".".join(layer.split(".", depth)[:depth]) for layer in seconds}
        if len(set(group_of.values())) > 1:
            break
    else:
        group_of = {layer: layer for layer in seconds}
    totals: defaultdict[str, float] = defaultdict(float)
    for layer, group in group_of.items():
        totals[group] += seconds[layer]
    longest = sorted(totals, key=lambda group: (-totals[group], group))[:MOST_GROUPS]
    rank = {group: number for number, group in enumerate(longest)}
    named = {layer: group for layer, group in group_of.items() if group in rank}
    return dict(sorted(named.items(), key=lambda item: (rank[item[1]], item[0]))) | {layer: "" for layer in group_of if layer not in named}
