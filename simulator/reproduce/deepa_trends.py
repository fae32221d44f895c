"""The claims of the DeePa paper, judged from the configurations, bytes and predicted steps."""

from collections.abc import Iterator, Mapping

from simulator.reproduce.deepa_cases import (
    ALEXNET,
    FURTHER,
    INCEPTION,
    LARGE_DEEPA,
    LARGE_DEEPA_BYTES,
    LARGE_FRAMEWORKS,
    LARGE_IMAGE_BYTES,
    LARGE_RATIO,
    OVERLAP,
    PUBLISHED,
    VGG16,
    Network,
)
from simulator.reproduce.deepa_networks import Divided
from simulator.reproduce.deepa_tables import Found, Names, Predicted, over, speedup
from simulator.reproduce.predicting import Missing
from simulator.reproduce.verdicts import judged, undecided
from simulator.shards.configuration import Configuration
from simulator.shards.costs.one_layer import LayerCost
from traces.reproduction import Check

#: Relative difference within which a ratio of bytes is the published one.
_NEAR = 0.05
#: A layer on at most this share of the devices is on few of them.
_FEW = 0.5


def two_workers_cheapest(rows: list[LayerCost]) -> Check:
    """Judge: two workers by channel are the cheapest for fc6."""
    least = min(rows, key=lambda row: row.total_s)
    said = "; ".join(f"{row.configuration} {1e3 * row.total_s:.1f} ms" for row in sorted(rows, key=lambda row: row.total_s)[:4])
    figures = {f"total_s of {row.configuration}": row.total_s for row in rows}
    claim = "fc6 of AlexNet is cheapest on two workers"
    return judged("fc6", claim, least.configuration == Configuration(c=2), said, figures, "compute times are estimates from a data sheet")


def images_in_convolutions(divided: Found) -> Check:
    """Judge: AlexNet's convolutions and poolings divide images among all GPUs."""
    own, claim = divided.get(ALEXNET), "AlexNet: image parallelism on all GPUs for every convolution and pooling"
    if not isinstance(own, Divided):
        return undecided("AlexNet's convolutions", claim, "the network could not be captured")
    layers = [layer for layer in range(len(own.network.layers)) if own.kind(layer) in ("convolution", "max_pool2d_with_indices")]
    same = sum(own.best[layer] == own.image[layer] for layer in layers)
    figures = {"layers": float(len(layers)), "as published": float(same)}
    return judged(
        "AlexNet's convolutions", claim, same == len(layers), f"{same} of {len(layers)} layers", figures, "see the configurations"
    )


def few_for_linear(divided: Found) -> Check:
    """Judge: linear layers use model parallelism on few GPUs."""
    claim = "fully connected layers use model parallelism on a small number of GPUs"
    known = {network: own for network, own in divided.items() if isinstance(own, Divided)}
    workers = {
        f"{network.name} {own.network.layers[layer].name}": own.best[layer]
        for network, own in known.items()
        for layer in range(len(own.best))
        if own.is_linear(layer)
    }
    if not workers:
        return undecided("linear layers", claim, "no network could be captured")
    most = _FEW * max(len(own.machine.devices) for own in known.values())
    holds = all(c.replicas == 1 and c.workers <= most for c in workers.values())
    said = "; ".join(f"{name} {configuration}" for name, configuration in workers.items())
    return judged(
        "linear layers", claim, holds, said, {name: float(c.workers) for name, c in workers.items()}, "gradients of replicas would move"
    )


def four_for_last_of_vgg(divided: Found) -> Check:
    """Judge: VGG-16's last three convolutions use four GPUs, with height and width."""
    own, claim = divided.get(VGG16), "VGG-16: the last three convolutions use only four GPUs, and divide height and width"
    if not isinstance(own, Divided):
        return undecided("VGG-16's last convolutions", claim, "the network could not be captured")
    layers = [layer for layer in range(len(own.best)) if own.kind(layer) == "convolution"][-3:]
    chosen = [own.best[layer] for layer in layers]
    said = "; ".join(f"{own.network.layers[layer].name} {configuration}" for layer, configuration in zip(layers, chosen, strict=True))
    holds = all(c.workers == 4 and c.h * c.w > 1 for c in chosen)
    changed = list(own.best)
    for layer in layers:
        changed[layer] = Configuration(h=2, w=2)
    slower = own.tables.total(changed).step_s / own.tables.total(own.best).step_s
    reason = f"with h=2,w=2 for these three the sum of exact costs is {slower:.2f} times that of the configuration found"
    return judged("VGG-16's last convolutions", claim, holds, said, {"cost of h=2,w=2": slower}, reason)


def branches_differ(divided: Found) -> Check:
    """Judge: the branches of InceptionE1 have different configurations."""
    own, claim = divided.get(INCEPTION), "Inception-v3: the branches of the first InceptionE module are divided differently"
    if not isinstance(own, Divided):
        return undecided("InceptionE1", claim, "the network could not be captured")
    branches = {
        layer.name: own.best[number]
        for number, layer in enumerate(own.network.layers)
        if layer.name.startswith("Mixed_7b.") and own.kind(number) == "convolution"
    }
    kinds = sorted({str(configuration) for configuration in branches.values()})
    figures = {name: float(configuration.workers) for name, configuration in branches.items()}
    reason = "with exact costs a transfer between branches outweighs what another configuration of one branch gains"
    return judged("InceptionE1", claim, len(kinds) > 1, f"its convolutions have {' and '.join(kinds)}", figures, reason)


def fewer_bytes_by_owt(divided: Found) -> Check:
    """Judge: OWT moves as much less than image parallelism as published."""
    claim = "OWT moves 8.4 times less than image parallelism for AlexNet, 1.05 times for Inception-v3 (within 5 %)"
    ratios = {
        network: (own.paper_bytes(own.image) / own.paper_bytes(own.uneven_owt), PUBLISHED[network].owt_bytes)
        for network, own in divided.items()
        if isinstance(own, Divided) and PUBLISHED[network].owt_bytes
    }
    if not ratios:
        return undecided("bytes of OWT", claim, "no network could be captured")
    holds = all(abs(ratio / printed - 1) <= _NEAR for ratio, printed in ratios.values())
    said = "; ".join(f"{network.name} {ratio:.2f}x, published {printed}x" for network, (ratio, printed) in ratios.items())
    return judged("bytes of OWT", claim, holds, said, {network.name: ratio for network, (ratio, _) in ratios.items()}, "see the table")


def fewer_bytes_further(divided: Found) -> Check:
    """Judge: DeePa moves less than OWT, by a factor within the published range."""
    least, most = FURTHER
    claim = f"DeePa moves a further {least} to {most} times less than OWT"
    known = {n.name: own.paper_bytes(own.uneven_owt) / own.paper_bytes(own.best) for n, own in divided.items() if isinstance(own, Divided)}
    if not known:
        return undecided("bytes of DeePa", claim, "no network could be captured")
    holds = all(least * (1 - _NEAR) <= ratio <= most * (1 + _NEAR) for ratio in known.values())
    said = "; ".join(f"{name} {ratio:.2f}x" for name, ratio in known.items())
    reason = "the configurations are those of the exact costs, in which less moves than the paper counts"
    return judged("bytes of DeePa", claim, holds, said, known, reason)


def order_of_gains(steps: Mapping[Network, Predicted], names: Names) -> Check:
    """Judge: AlexNet gains most and Inception-v3 least, and DeePa is faster than OWT, which is faster than image parallelism."""
    claim = "DeePa is faster than OWT, and OWT than image parallelism; AlexNet gains most, Inception-v3 least"
    gains = {network.name: speedup(own, names.frameworks, names.deepa) for network, own in steps.items()}
    ranks = [(speedup(own, names.owt, names.deepa), speedup(own, names.image, names.owt)) for own in steps.values()]
    if None in gains.values() or any(None in pair for pair in ranks) or len(gains) < 2:
        return undecided("order of gains", claim, "not all networks could be predicted")
    ordered = list(gains.values()) == sorted(gains.values(), reverse=True)
    holds = ordered and all(factor > 1 for pair in ranks for factor in pair)
    said = "; ".join(f"{name} {gain:.2f}x" for name, gain in gains.items())
    return judged("order of gains", claim, holds, said, {k: float(v) for k, v in gains.items()}, "see the steps")


def owt_gains_little(steps: Mapping[Network, Predicted], names: Names) -> Check:
    """Judge: OWT's gain over image parallelism is as small as published."""
    claim = "in DeePa, OWT is 1.4, 1.2 and 1.07 times faster than image parallelism (within a quarter)"
    gains = {network: speedup(own, names.image, names.owt) for network, own in steps.items()}
    known = {network: gain for network, gain in gains.items() if gain is not None}
    if not known:
        return undecided("OWT over image parallelism", claim, "nothing could be predicted")
    holds = all(abs(gain / PUBLISHED[network].owt - 1) <= 0.25 for network, gain in known.items())
    said = "; ".join(f"{network.name} {gain:.2f}x" for network, gain in known.items())
    reason = (
        "on the pipe of 4.494 GB/s that table 2 implies, the gradients of AlexNet's linear layers alone take more than a second, which OWT"
        " saves: a gain of 1.4 contradicts table 2"
    )
    return judged("OWT over image parallelism", claim, holds, said, {network.name: gain for network, gain in known.items()}, reason)


def overlap_gains(steps: Mapping[Network, Predicted], names: Names) -> Check:
    """Judge: overlap gains 10 to 30 % of throughput for some configuration."""
    claim = "overlapping transfers with computation raises the throughput by 10 to 30 %"
    gains = {network.name: speedup(own, names.deepa_exposed, names.deepa) for network, own in steps.items()}
    known = {name: gain for name, gain in gains.items() if gain is not None}
    if not known:
        return undecided("overlap", claim, "nothing could be predicted")
    holds = all(OVERLAP[0] - 0.005 <= gain <= OVERLAP[1] + 0.005 for gain in known.values())
    said = "DeePa's plans: " + "; ".join(f"{name} {gain:.2f}x" for name, gain in known.items())
    return judged(
        "overlap", claim, holds, said, known, "how much there is to hide depends on the time of computing, which is from a data sheet"
    )


def steady_by_batch(batches: Mapping[tuple[Network, int], Predicted], names: Names) -> Check:
    """Judge: the speed-up is within the published range for every batch."""
    claim = "the speed-up is constant over batches: 4.6 to 6.5, 1.6 to 1.9 and 1.2 to 1.5 (within 10 %)"
    gains = {key: gain for key, own in batches.items() if (gain := speedup(own, names.frameworks, names.deepa)) is not None}
    if not gains:
        return undecided("speed-ups by batch", claim, "nothing could be predicted")
    within = [0.9 * PUBLISHED[network].batches[0] <= gain <= 1.1 * PUBLISHED[network].batches[1] for (network, _), gain in gains.items()]
    said = "; ".join(f"{network.name} {batch}: {gain:.2f}x" for (network, batch), gain in gains.items())
    figures = {f"{network.name} {batch}": gain for (network, batch), gain in gains.items()}
    reason = "gradients take as long for any batch and computation grows with it, so that the gain falls as the batch grows"
    return judged("speed-ups by batch", claim, all(within), said, figures, reason)


def more_with_nodes(node: Mapping[Network, Predicted], nodes: Mapping[Network, Predicted], names: Names) -> Check:
    """Judge: the gain on four nodes is larger than on one."""
    claim = "DeePa gains more on four nodes than on one"
    pairs = {
        network.name: (one, four)
        for network in node
        if (one := speedup(node[network], names.frameworks, names.deepa)) is not None
        and (four := speedup(nodes[network], names.image, names.deepa)) is not None
    }
    if not pairs:
        return undecided("gain by nodes", claim, "nothing could be predicted")
    said = "; ".join(f"{name} {one:.2f}x and {four:.2f}x" for name, (one, four) in pairs.items())
    reason = (
        "the plans of image parallelism hide the gradients of VGG-16 and Inception-v3 behind backward, which takes longer on a data sheet's"
        " P100 than gradients over NVLink and InfiniBand; the frameworks of 2017 reached far less of these links"
    )
    holds = all(four > one for one, four in pairs.values())
    figures = {f"{name}, {count}": gain for name, own in pairs.items() for count, gain in zip((1, 4), own, strict=True)}
    return judged("gain by nodes", claim, holds, said, figures, reason)


def as_fast_as_asynchronous(node: Mapping[Network, Predicted], names: Names) -> Check:
    """Judge: with overlap, synchronous training is as fast as asynchronous training on one node."""
    claim = "with overlap, synchronous training is as fast as asynchronous training (within 5 %)"
    ratios = {network.name: ratio for network, own in node.items() if (ratio := speedup(own, names.deepa, names.deepa_late)) is not None}
    if not ratios:
        return undecided("asynchronous", claim, "nothing could be predicted")
    said = "steps on 4 P100: " + "; ".join(f"{name} {ratio:.3f} times as long" for name, ratio in ratios.items())
    reason = "what backward does not hide of the gradients' sums is longer than the paper says"
    return judged("asynchronous", claim, all(abs(ratio - 1) <= _NEAR for ratio in ratios.values()), said, ratios, reason)


def large_networks(divided: Found, large: Found) -> Iterator[Check]:
    """Judge: what ImageNet-22K adds to the bytes of image parallelism and of DeePa, and how many times less DeePa moves."""
    pairs = {
        network.name: (own, wide)
        for network, own in divided.items()
        if isinstance(own, Divided) and isinstance(wide := large.get(network, Missing("")), Divided)
    }
    least, most = LARGE_RATIO
    claims = (
        "ImageNet-22K adds 5 to 10 GB to image parallelism (within 10 %)",
        "ImageNet-22K adds 40 MB to DeePa (at most twice that)",
        f"on ImageNet-22K, DeePa moves {least} to {most} times less than image parallelism (within 5 %)",
    )
    titles = ("ImageNet-22K, image", "ImageNet-22K, DeePa", "ImageNet-22K, ratio")
    if not pairs:
        yield from (undecided(title, claim, "not predicted") for title, claim in zip(titles, claims, strict=True))
        return
    image = {name: wide.paper_bytes(wide.image) - own.paper_bytes(own.image) for name, (own, wide) in pairs.items()}
    deepa = {name: wide.paper_bytes(wide.best) - own.paper_bytes(own.best) for name, (own, wide) in pairs.items()}
    ratio = {name: wide.paper_bytes(wide.image) / wide.paper_bytes(wide.best) for name, (_, wide) in pairs.items()}
    holds = (
        all(LARGE_IMAGE_BYTES[0] * 0.9 <= more <= LARGE_IMAGE_BYTES[1] * 1.1 for more in image.values()),
        all(more <= 2 * LARGE_DEEPA_BYTES for more in deepa.values()),
        all(least * (1 - _NEAR) <= factor <= most * (1 + _NEAR) for factor in ratio.values()),
    )
    reason = "counted by the paper's model for the configurations found"
    for title, claim, figures, true, unit in zip(titles, claims, (image, deepa, ratio), holds, ("MB", "MB", "x"), strict=True):
        said = "; ".join(
            f"{network} {value / 1e6:,.0f} MB" if unit == "MB" else f"{network} {value:.1f}x" for network, value in figures.items()
        )
        yield judged(title, claim, true, said, figures, reason)


def slower_with_more_classes(steps: Mapping[Network, Predicted], more: Mapping[Network, Predicted], names: Names) -> Check:
    """Judge: ImageNet-22K slows the frameworks by the published range, and DeePa by next to nothing."""
    claim = "on ImageNet-22K the frameworks lose 20 to 45 % of their throughput, DeePa 3 % (within 10 % of the step)"
    slower = {
        network.name: tuple(over(more[network][text], own[text]) for text in (names.frameworks, names.deepa))
        for network, own in steps.items()
    }
    known = {name: pair for name, pair in slower.items() if None not in pair}
    if not known:
        return undecided("ImageNet-22K, steps", claim, "nothing could be predicted")
    least, most = LARGE_FRAMEWORKS
    holds = all(0.9 * least <= rival <= 1.1 * most and own <= 1.1 * LARGE_DEEPA for rival, own in known.values())
    said = "; ".join(f"{name} {rival:.2f} and {own:.2f} times longer" for name, (rival, own) in known.items())
    figures = {f"{name}, {who}": value for name, pair in known.items() for who, value in zip(("frameworks", "DeePa"), pair, strict=True)}
    reason = "one pipe that all GPUs share takes longer for the gradients that image parallelism adds than the paper's throughput allows"
    return judged("ImageNet-22K, steps", claim, holds, said, figures, reason)
