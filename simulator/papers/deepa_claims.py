"""The DeePa paper's claims, judged from predicted steps and the networks' best configurations. Networks go by the paper's names."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import numpy as np

from simulator.papers import registry
from simulator.papers.deepa_network import Divided
from simulator.papers.predicting import StepsByStrategy, figure, ratio, speedup
from simulator.papers.registry import EQUAL
from simulator.strategies.sharding import search
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.costs.exact import CostTables, LayerCost
from traces.documents.reproduction import Check
from traces.errors import Refusal

#: Networks with the configurations found, or why there are none, by the paper's name.
Found = Mapping[str, Divided | Refusal]


#: The paper's systems as strategies. Neither framework sums gradients while backward runs, which section 5 gives as DeePa's own merit.
#: TensorFlow: variables on the CPU, which sums the gradients of all towers ("parameter servers are located in CPU memory", section 5).
#: PyTorch 0.2, torch.nn.DataParallel without NCCL: `Broadcast` copies all parameters from the first GPU before forward, and its backward,
#: one function that runs last, adds all gradients there (torch/nn/parallel/_functions.py, torch/cuda/comm.py).
TENSORFLOW, PYTORCH = "data-parallel:server=host,overlap=off", "data-parallel:server=first,overlap=off"
#: TensorFlow on several nodes: a parameter server in each, with an equal part of the variables.
TENSORFLOW_NODES = "data-parallel:server=distributed,overlap=off"
FRAMEWORKS = (TENSORFLOW, PYTORCH)
IMAGE = "data-parallel:server=distributed"
OWT = "owt:server=distributed"
DEEPA = "deepa:server=distributed"
IMAGE_EXPOSED, DEEPA_EXPOSED, DEEPA_LATE = f"{IMAGE},overlap=off", f"{DEEPA},overlap=off", f"{DEEPA},update=asynchronous"
#: DeePa's plan with the paper's choice of configurations.
DEEPA_CHOICE = f"{DEEPA},cost=repaired"
ALL = (*FRAMEWORKS, IMAGE, OWT, DEEPA, IMAGE_EXPOSED, DEEPA_EXPOSED, DEEPA_CHOICE)
#: The share of its time to compute at which VGG-16's last convolutions are divided again: table 2 prints 0.16 and 0.34 of ours for fc6.
QUARTER = 0.25
#: The share of the links' rates at which 16 K80 are predicted again. On two Xeons of that time, copies through the other processor's memory
#: reached 0.31 and 0.20 of direct ones: 3.8 of 12.2 GB/s to a P100, 2.5 of 12.9 from it (mpicbg-scicomp/gearshifft, pull request 82).
THIRD = 1 / 3
#: A layer on at most this share of the devices is on few of them.
_FEW = 0.5

#: Predicted steps by network, and by network and batch.
Networks = Mapping[str, StepsByStrategy]
Batches = Mapping[tuple[str, int], StepsByStrategy]
#: Steps with all links at a share of their rates, by network, next to those at the full rate.
Slower = Mapping[str, StepsByStrategy]

claim = registry.get("deepa").claim
published = registry.get("deepa").values


def _at_rates(slower: Slower, text: str, over: str) -> str:
    gains = ((name, speedup(own, text, over)) for name, own in slower.items())
    return "; ".join(f"{name} {gain:.2f}x" for name, gain in gains if gain is not None) or "not predicted"


def gains_over(own: StepsByStrategy, rivals: Iterable[str], text: str = DEEPA) -> tuple[float | None, float | None]:
    """Return the least and the largest speed-up of DeePa, or of `text`, over the frameworks; None if one of them is missing."""
    gains = [speedup(own, text, rival) for rival in rivals]
    known = [gain for gain in gains if gain is not None]
    return (min(known), max(known)) if len(known) == len(gains) else (None, None)


def _over_frameworks(name: str, steps: Networks, rivals: Sequence[str], printed: Mapping[str, float], **words: object) -> Check:
    """Judge that what the paper prints lies between the speed-ups over both frameworks; and those of image parallelism with overlap."""
    own_claim = claim(name).because(**words)

    def judged(text: str) -> Check:
        cases = {network: (printed[network], *gains_over(own, rivals, text)) for network, own in steps.items() if network in printed}
        known = {network: values for network, values in cases.items() if None not in values}
        return own_claim.each(cases, {network: (values[1:],) for network, values in known.items()})

    return own_claim.beside(judged(DEEPA), judged(IMAGE))


def two_workers_cheapest(costs: Sequence[LayerCost]) -> Check:
    """Judge: two workers by channel are the cheapest for fc6; and if sums of gradients took no time."""
    own = claim("fc6")

    def judged(seconds: Mapping[Configuration, float]) -> Check:
        ordered = sorted(seconds, key=seconds.__getitem__)
        said = "; ".join(f"{each} {1e3 * seconds[each]:.1f} ms" for each in ordered[:4])
        return own.judged(ordered[0] == Configuration(c=2), said, {f"total_s of {each}": value for each, value in seconds.items()})

    totals = {cost.configuration: cost.total_s for cost in costs}
    return own.beside(judged(totals), judged({cost.configuration: cost.total_s - cost.update_s for cost in costs}))


def of_configurations(divided: Found) -> Iterator[Check]:
    """Judge what the search finds, and the bytes that it moves."""
    known = {name: own for name, own in divided.items() if isinstance(own, Divided)}
    yield _images_in_convolutions(known.get("AlexNet"))
    yield _few_for_linear(known)
    yield _four_for_last_of_vgg(known.get("VGG-16"))
    yield _branches_differ(known.get("Inception-v3"))
    printed, owt = published("owt_bytes"), {name: own.paper_bytes(own.uneven_owt) for name, own in known.items()}
    ratios = {name: (own.paper_bytes(own.image) / owt[name], printed[name]) for name, own in known.items() if name in printed}
    yield claim("bytes of OWT").each(ratios, _around(printed))
    yield claim("bytes of DeePa").each({name: (owt[name] / own.paper_bytes(own.best),) for name, own in known.items()})
    yield claim("AlexNet's bytes").each(
        {"AlexNet": (owt["AlexNet"] / known["AlexNet"].paper_bytes(known["AlexNet"].best),)} if "AlexNet" in known else {}
    )
    yield claim("nodes").each({name: (len(own.network.layers), own.nodes_left) for name, own in known.items() if name == "Inception-v3"})
    yield _bytes_of_inception(known.get("Inception-v3"))
    less = {name: own.paper_bytes(own.image) / own.paper_bytes(own.best) for name, own in known.items()}
    yield claim("most bytes").each({name: (most,) for name, most in less.items() if most == max(less.values())})
    took = {name: (own.search_s, own.costs_s) for name, own in known.items()}
    yield claim("search").each(took)


def _around(printed: Mapping[str, float]) -> dict[str, tuple[tuple[float, float]]]:
    return {name: ((value, value),) for name, value in printed.items()}


def _images_in_convolutions(own: Divided | None) -> Check:
    """Judge: AlexNet's convolutions and poolings divide images among all GPUs."""
    if own is None:
        return claim("AlexNet's convolutions").unjudged()
    layers = [layer for layer in range(len(own.best)) if own.kind(layer) in ("convolution", "max_pool2d_with_indices")]
    same = sum(own.best[layer] == own.image[layer] for layer in layers)
    figures = {"layers": len(layers), "as published": same}
    return claim("AlexNet's convolutions").judged(same == len(layers), f"{same} of {len(layers)} layers", figures)


def _few_for_linear(known: Mapping[str, Divided]) -> Check:
    """Judge: linear layers use model parallelism on few GPUs; and if sums of gradients took no time."""
    own_claim = claim("linear layers")
    most = _FEW * max((len(own.machine.devices) for own in known.values()), default=0)

    def judged(update: float) -> Check:
        chosen = {
            f"{name} {own.network.layers[layer].name}": each
            for name, own in known.items()
            for layer, each in enumerate(search.cheapest_of(own.repaired, update))
            if own.is_linear(layer)
        }
        if not chosen:
            return own_claim.unjudged()
        holds = all(c.replicas == 1 and c.workers <= most for c in chosen.values())
        said = "; ".join(f"{name} {configuration}" for name, configuration in chosen.items())
        return own_claim.judged(holds, said, {name: c.workers for name, c in chosen.items()})

    return own_claim.beside(judged(1.0), judged(0.0))


def _four_for_last_of_vgg(own: Divided | None) -> Check:
    """Judge: VGG-16's last three convolutions use four GPUs, with height and width."""
    own_claim = claim("VGG-16's last convolutions")
    if own is None:
        return own_claim.unjudged()
    layers = [layer for layer in range(len(own.best)) if own.kind(layer) == "convolution"][-3:]
    holds = all(own.best[layer].workers == 4 and own.best[layer].h * own.best[layer].w > 1 for layer in layers)
    said = "; ".join(f"{own.network.layers[layer].name} {own.best[layer]}" for layer in layers)
    costs = own.repaired
    changed = [Configuration(h=2, w=2) if layer in layers else best for layer, best in enumerate(own.best)]
    slower = costs.total(changed).step_s / costs.total(own.best).step_s
    quick = own.if_computing(QUARTER)
    few = [number for number in range(len(quick)) if own.kind(number) == "convolution" and quick[number].workers == 4]
    chosen = ", ".join(f"{own.network.layers[number].name} {quick[number]}" for number in few) or "none"
    split, by_image = (costs.compute_s[layers[-1]][costs.place(layers[-1], each)] for each in (Configuration(h=2, w=2), Configuration(n=4)))
    words = {"slower": slower, "chosen": chosen, "halos": split / by_image}
    figures = {
        "cost of h=2,w=2": slower,
        "on four if computing is four times as fast": len(few),
        "h=2,w=2 over n=4": float(split / by_image),
    }
    return own_claim.because(**words).judged(holds, said, figures)


def _branches_differ(own: Divided | None) -> Check:
    """Judge: the branches of InceptionE1 have different configurations, which saves more than EQUAL by what really moves."""
    if own is None:
        return claim("InceptionE1").unjudged()
    branches = {
        layer.name: number
        for number, layer in enumerate(own.network.layers)
        if layer.name.startswith("Mixed_7b.") and own.kind(number) == "convolution"
    }

    def saved(tables: CostTables) -> tuple[list[Configuration], float]:
        """The cheapest choice, and how much less it costs than the one whose convolutions in all InceptionE divide images."""
        chosen = search.cheapest_of(tables)
        modules = [layer.name.startswith(("Mixed_7b.", "Mixed_7c.")) for layer in own.network.layers]
        alike = [image if inside else each for each, image, inside in zip(chosen, own.image, modules, strict=True)]
        return chosen, 1 - tables.total(chosen).step_s / tables.total(alike).step_s

    (chosen, gain), (_, slower) = saved(own.tables), saved(own.at_links(THIRD))
    kinds, printed = (sorted({str(each[number]) for number in branches.values()}) for each in (chosen, own.best))
    said = f"its convolutions have {' and '.join(kinds)}, which saves {gain:.1%}; by the paper's costs {' and '.join(printed)}"
    figures = {
        **{name: chosen[number].workers for name, number in branches.items()},
        "saved": gain,
        "saved at a third of the rates": slower,
    }
    holds = len(kinds) > 1 and gain > EQUAL
    return claim("InceptionE1").because(gain=gain, slower=slower).judged(holds, said, figures)


def _bytes_of_inception(own: Divided | None) -> Check:
    """Judge: that InceptionE modules are not divided by image on all GPUs saves a fifth of all bytes."""
    if own is None:
        return claim("bytes of InceptionE").unjudged()
    inside = [layer.name.startswith(("Mixed_7b", "Mixed_7c")) for layer in own.network.layers]
    alike = [image if within else each for each, image, within in zip(own.best, own.image, inside, strict=True)]
    return claim("bytes of InceptionE").each({"Inception-v3": (1 - own.paper_bytes(own.best) / own.paper_bytes(alike),)})


def of_fc6(costs: Sequence[LayerCost]) -> Check:
    """Judge: one bandwidth, fitted to the transfer of c=16, explains the update of n=16."""
    printed = published("fc6")["n=16"][2]
    seconds = {str(cost.configuration): cost.update_s for cost in costs}
    return claim("table 2").each({"n=16": (seconds["n=16"],)}, {"n=16": ((printed, printed),)})


def on_four(own: Divided | None) -> Check:
    """Judge figure 15b: on four P100, images of convolutions on all GPUs, and linear layers on two."""
    if own is None:
        return claim("figure 15b").unjudged()
    layers = [layer for layer in range(len(own.best)) if own.kind(layer) in ("convolution", "max_pool2d_with_indices")]
    linear = [own.best[layer] for layer in range(len(own.best)) if own.is_linear(layer)]
    by_image = sum(own.best[layer] == own.image[layer] for layer in layers)
    said = f"{by_image} of {len(layers)} layers by image on four; linear layers {', '.join(map(str, linear))}"
    holds = by_image == len(layers) and all(each.replicas == 1 and each.workers == 2 for each in linear)
    return claim("figure 15b").judged(holds, said, {"by image": by_image, "layers": len(layers)})


def of_steps(steps: Networks, slower: Slower, batches: Batches, rates: Mapping[float, StepsByStrategy]) -> Iterator[Check]:
    """Judge the speed-ups on 16 K80. `slower`: the same with links at a share of their rates; `rates`: by other shares, AlexNet's."""
    between = {name: " to ".join(f"{gain:.2f}" for gain in gains_over(own, FRAMEWORKS) if gain) for name, own in slower.items()}
    cases = "; ".join(f"{name} {gains}x" for name, gains in between.items())
    yield _over_frameworks("speed-ups", steps, FRAMEWORKS, published("speedup"), cases=cases)
    by_image = claim("image parallelism")
    usual, exposed = (by_image.each({name: (over_best(own, text),) for name, own in steps.items()}) for text in (IMAGE, IMAGE_EXPOSED))
    yield by_image.beside(usual, exposed)
    networks = claim("order of networks")
    yield networks.beside(*(networks.each(_in_order(steps, text)) for text in (DEEPA, IMAGE)))
    yield _order_of_gains(steps, slower)
    pairs = ((share, speedup(own, OWT, IMAGE), speedup(own, DEEPA, OWT)) for share, own in rates.items())
    other = "; ".join(f"{share:g} times: {owt:.2f}x and {further:.2f}x" for share, owt, further in pairs if owt and further)
    owt = claim("OWT over image parallelism").because(cases=_at_rates(slower, OWT, IMAGE), other=other)
    yield owt.each(_gains(steps, OWT, IMAGE), _around(published("owt")))
    further = claim("DeePa over OWT").because(cases=_at_rates(slower, DEEPA, OWT), choice=_gain(steps, "AlexNet", DEEPA_CHOICE, OWT))
    yield further.each({name: own for name, own in _gains(steps, DEEPA, OWT).items() if name == "AlexNet"})
    hidden = claim("overlap").because(cases=_at_rates(slower, DEEPA, DEEPA_EXPOSED), image=_at_rates(steps, IMAGE, IMAGE_EXPOSED))
    yield hidden.each(_gains(steps, DEEPA, DEEPA_EXPOSED))
    by_batch = _gains({f"{name} {batch}": own for (name, batch), own in batches.items()}, DEEPA, TENSORFLOW)
    ranges = {f"{name} {batch}": (published("batches")[name],) for name, batch in batches if name in published("batches")}
    yield claim("speed-ups by batch").because(cases=_lines(batches)).each(by_batch, ranges)


def _gain(steps: Networks, name: str, text: str, over: str) -> str:
    gain = speedup(steps[name], text, over) if name in steps else None
    return "not predicted" if gain is None else f"{gain:.2f}x"


def _in_order(steps: Networks, text: str) -> dict[str, tuple[float, ...]]:
    """The least gain over a framework of the networks in the order of the paper's gains; none if one is missing."""
    gains = [gains_over(steps[name], FRAMEWORKS, text)[0] if name in steps else None for name in published("speedup")]
    known = [gain for gain in gains if gain is not None]
    return {"gains": tuple(reversed(known))} if len(known) == len(gains) else {}


def over_best(own: StepsByStrategy, text: str = IMAGE) -> float | None:
    """DeePa's image parallelism over the better framework."""
    gains = [speedup(own, text, rival) for rival in FRAMEWORKS]
    return None if None in gains else min(gain for gain in gains if gain is not None)


def _lines(batches: Batches) -> str:
    """What TensorFlow's and DeePa's steps are made of: a part that is equal for all batches, and one that each image adds."""
    words = []
    for name in dict.fromkeys(name for name, _ in batches):
        for who, text in (("TensorFlow", TENSORFLOW), ("DeePa", DEEPA)):
            known = [(batch, step) for (other, batch), own in batches.items() if other == name and (step := figure(own[text])) is not None]
            if len(known) > 1:
                slope, fixed = np.polyfit([batch for batch, _ in known], [step for _, step in known], 1)
                words.append(f"{name} {who} {1e3 * fixed:.0f} ms + {1e3 * slope:.2f} ms an image")
    return "; ".join(words)


def _gains(steps: Networks, text: str, over: str) -> dict[str, tuple[float | None]]:
    return {name: (speedup(own, text, over),) for name, own in steps.items()}


def _order_of_gains(steps: Networks, slower: Slower) -> Check:
    """Judge: DeePa is faster than OWT, which is faster than image parallelism."""
    pairs = {"DeePa over OWT": (DEEPA, OWT), "OWT over image": (OWT, IMAGE)}
    words = "; ".join(f"{what}: {_at_rates(slower, *pair)}" for what, pair in pairs.items())
    return (
        claim("order of gains")
        .because(cases=words)
        .each({n: tuple(speedup(own, *pair) for pair in pairs.values()) for n, own in steps.items()})
    )


def of_clusters(node: Networks, nodes: Networks, slower: Sequence[Slower]) -> Iterator[Check]:
    """Judge the speed-ups on one node and on four, with those of links at a share of their rates (`slower`), and asynchronous training."""
    rivals = {"p100x4": (node, FRAMEWORKS), "4xp100x4": (nodes, (TENSORFLOW_NODES, IMAGE))}
    for (name, (own, frameworks)), reduced in zip(rivals.items(), slower, strict=True):
        gains = {network: gains_over(each, frameworks) for network, each in reduced.items()}
        cases = "; ".join(f"{network} {least:.2f} to {most:.2f}x" for network, (least, most) in gains.items() if least and most)
        yield _over_frameworks(name, own, frameworks, published(name), cases=cases or "not predicted")
    by_nodes = claim("gain by nodes")

    def on_both(text: str) -> dict[str, tuple[float | None, ...]]:
        pairs = ((node, FRAMEWORKS), (nodes, (TENSORFLOW_NODES, IMAGE)))
        return {name: tuple(gains_over(own[name], frameworks, text)[1] for own, frameworks in pairs) for name in node}

    yield by_nodes.beside(*(by_nodes.each(on_both(text)) for text in (DEEPA, IMAGE)))
    by_image = {name: (over_best(own),) for name, own in node.items() if name == "VGG-16"}
    yield claim("image parallelism on P100").each(by_image)
    yield as_fast_as_asynchronous(node)


def as_fast_as_asynchronous(node: Networks) -> Check:
    """Judge: with overlap, synchronous training is as fast as asynchronous training on one node."""
    own = claim("asynchronous")
    return own.beside(*(own.each(_gains(node, DEEPA_LATE, text)) for text in (DEEPA, DEEPA_EXPOSED)))


def of_large_networks(divided: Found, large: Found, steps: Networks, more: Networks) -> Iterator[Check]:
    """Judge what ImageNet-22K adds to the bytes and steps of image parallelism and of DeePa, and how many times less DeePa moves."""
    pairs = {n: (own, wide) for n, own in divided.items() if isinstance(own, Divided) and isinstance(wide := large.get(n), Divided)}

    def added(chosen: Callable[[Divided], Sequence[Configuration]]) -> dict[str, tuple[float, float]]:
        more = {n: wide.paper_bytes(chosen(wide)) - own.paper_bytes(chosen(own)) for n, (own, wide) in pairs.items()}
        return {name: (value, value / 1e6) for name, value in more.items()}

    yield claim("ImageNet-22K, image").each(added(attrgetter("image")))
    best = claim("ImageNet-22K, DeePa")
    yield best.beside(*(best.each(added(attrgetter(chosen))) for chosen in ("best", "image")))
    ratios = {name: (wide.paper_bytes(wide.image) / wide.paper_bytes(wide.best),) for name, (_, wide) in pairs.items()}
    yield claim("ImageNet-22K, ratio").each(ratios)
    slower = {n: tuple(ratio(figure(more[n][text]), figure(own[text])) for text in (TENSORFLOW, DEEPA)) for n, own in steps.items()}
    left = published("large, throughput")
    least, most = left["frameworks"]
    words = "; ".join(f"{n} {_last_linear(wide)}" for n, (_, wide) in pairs.items())
    own_claim = claim("ImageNet-22K, steps").because(cases=words)
    yield own_claim.each(slower, dict.fromkeys(slower, ((1 / most, 1 / least), (None, 1 / left["DeePa"]))))


def _last_linear(own: Divided) -> str:
    """The time of the last linear layer in the cheapest configuration."""
    layer = max(number for number in range(len(own.fastest)) if own.is_linear(number))
    chosen = own.fastest[layer]
    place = own.tables.place(layer, chosen)
    compute_s, update_s = (float(table[layer][place]) for table in (own.tables.compute_s, own.tables.update_s))
    return f"{chosen}, {1e3 * compute_s:.0f} ms to compute and {1e3 * update_s:.0f} ms to update"
