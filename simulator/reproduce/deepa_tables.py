"""The tables of the DeePa paper, with published and predicted figures."""

from collections.abc import Iterable, Mapping, Sequence

from simulator.reproduce.deepa_cases import BATCH, FC6, LARGE_DEEPA, LARGE_DEEPA_BYTES, NODE, NODES, PUBLISHED, Network
from simulator.reproduce.deepa_networks import Divided
from simulator.reproduce.predicting import Missing, Step
from simulator.shards.costs.one_layer import LayerCost
from traces.reproduction import OK, Figure, Row, Table

#: Found configurations by network, or why there are none.
Found = Mapping[Network, Divided | Missing]
#: Predicted steps of the rivals of a network, by strategy text.
Predicted = Mapping[str, Step | Missing]


class Names:
    """The strategies that stand for the paper's systems, as texts."""

    frameworks = "image-parallel:server=host"
    image = "image-parallel:server=distributed"
    owt = "owt:server=distributed"
    deepa = "deepa:server=distributed"
    image_exposed = f"{image},overlap=off"
    deepa_exposed = f"{deepa},overlap=off"
    deepa_late = f"{deepa},update=asynchronous"

    @property
    def all(self) -> tuple[str, ...]:
        """All of them."""
        return self.frameworks, self.image, self.owt, self.deepa, self.image_exposed, self.deepa_exposed

    @property
    def steps(self) -> Sequence[tuple[str, str]]:
        """(label, text) of those whose seconds are shown."""
        return ("frameworks", self.frameworks), ("image", self.image), ("OWT", self.owt), ("DeePa", self.deepa)


def speedup(steps: Predicted, over: str, of: str) -> float | None:
    """How many times faster `of` is than `over`; None if one of them is missing."""
    slow, fast = steps.get(over), steps.get(of)
    return slow.step_s / fast.step_s if isinstance(slow, Step) and isinstance(fast, Step) else None


def status(steps: Predicted, *names: str) -> str:
    """ "ok", or what is wrong with the first of the steps that is missing or does not fit."""
    return next((steps[name].status for name in names if steps[name].status != OK), OK)


def fc6_table(rows: Iterable[LayerCost]) -> Table:
    """Table 2: the first linear layer of AlexNet."""
    shown = []
    for row in rows:
        transfer_s, update_s, total_s = FC6.get(row.configuration, (None, None, None))
        figures = (
            Figure(name="transfer", unit="s", predicted=row.transfer_s, published=transfer_s),
            Figure(name="compute", unit="s", predicted=row.compute_s, published=0.00128 if row.configuration in FC6 else None),
            Figure(name="update", unit="s", predicted=row.update_s, published=update_s),
            Figure(name="total", unit="s", predicted=row.total_s, published=total_s),
        )
        shown.append(Row(labels={"configuration": str(row.configuration), "workers": str(row.configuration.workers)}, figures=figures))
    about = (
        "Published: table 2. One bandwidth, 4.494 GB/s, explains both rows; it was fitted to the transfer of c=16 alone. The published"
        " compute of 1.28 ms is above the peak of a K80 and is no target."
    )
    return Table(name="fc6", title="fc6 of AlexNet, by configuration", about=about, rows=tuple(shown))


def bytes_table(networks: Iterable[Network], divided: Found) -> Table:
    """Figure 8: bytes that move in a step."""
    rows = []
    for network in networks:
        own = divided[network]
        if isinstance(own, Missing):
            rows.append(Row(labels={"network": network.name}, figures=(), status=own.status))
            continue
        image, uneven, even, best = (own.paper_bytes(chosen) for chosen in (own.image, own.uneven_owt, own.owt, own.best))
        exact = [own.exact_bytes(chosen) for chosen in (own.image, own.owt, own.best)]
        figures = (
            Figure(name="image", unit="bytes", predicted=image),
            Figure(name="OWT", unit="bytes", predicted=uneven),
            Figure(name="DeePa", unit="bytes", predicted=best),
            Figure(name="image / OWT", unit="x", predicted=image / uneven, published=PUBLISHED[network].owt_bytes),
            Figure(name="image / OWT, equal parts", unit="x", predicted=image / even),
            Figure(name="OWT / DeePa", unit="x", predicted=uneven / best),
            Figure(name="exact image", unit="bytes", predicted=exact[0]),
            Figure(name="exact OWT, equal parts", unit="bytes", predicted=exact[1]),
            Figure(name="exact DeePa", unit="bytes", predicted=exact[2]),
        )
        rows.append(Row(labels={"network": network.name}, figures=figures))
    about = (
        f"16 K80, batch {BATCH}. Published: section 7.1. By the paper's model: whole tensors, and gradients and new weights for every"
        " holder. OWT divides each linear layer by channel among 16 workers, also the last one, whose 1,000 channels do not divide by 16."
        " Equal parts: the last one is divided by image instead, as `owt` runs it. Exact: what a plan moves, with every device as the"
        " parameter server of its share."
    )
    return Table(name="bytes", title="Bytes that move in a step", about=about, rows=tuple(rows))


def speedups_table(networks: Iterable[Network], steps: Mapping[Network, Predicted], names: Names) -> Table:
    """Figure 7: on 16 K80."""
    rows = []
    for network in networks:
        own, published = steps[network], PUBLISHED[network]
        figures = (
            Figure(name="DeePa / frameworks", unit="x", predicted=speedup(own, names.frameworks, names.deepa), published=published.speedup),
            Figure(name="OWT / image", unit="x", predicted=speedup(own, names.image, names.owt), published=published.owt),
            Figure(name="DeePa / OWT", unit="x", predicted=speedup(own, names.owt, names.deepa)),
            Figure(name="overlap, image", unit="x", predicted=speedup(own, names.image_exposed, names.image)),
            Figure(name="overlap, DeePa", unit="x", predicted=speedup(own, names.deepa_exposed, names.deepa)),
        )
        rows.append(Row(labels={"network": network.name}, figures=figures, status=status(own, *names.all)))
    about = (
        f"16 K80, batch {BATCH}. Published: section 7.1. Predicted by simulating the plans; gradients move while backward runs. Frameworks:"
        " image parallelism that sums gradients on the host. Image and OWT: every device is the parameter server of its share, as in DeePa."
        " Overlap: the step without it over the step with it; the paper says 1.1 to 1.3."
    )
    return Table(name="speedups", title="Speed-ups on 16 K80", about=about, rows=tuple(rows))


def steps_table(networks: Iterable[Network], steps: Mapping[Network, Predicted], names: Names) -> Table:
    """The steps behind figure 7."""
    rows = [
        Row(
            labels={"network": network.name},
            figures=tuple(Figure(name=label, unit="s", predicted=_seconds(steps[network][text])) for label, text in names.steps),
            status=status(steps[network], *names.all),
        )
        for network in networks
    ]
    about = f"16 K80, batch {BATCH}, {', '.join(f'{label}: {text}' for label, text in names.steps)}."
    return Table(name="steps", title="Steps on 16 K80", about=about, rows=tuple(rows))


def _seconds(step: Step | Missing) -> float | None:
    return step.step_s if isinstance(step, Step) else None


def clusters_table(
    networks: Iterable[Network], node: Mapping[Network, Predicted], nodes: Mapping[Network, Predicted], names: Names
) -> Table:
    """Figure 14: 4 P100, and 4 nodes of them."""
    rows = []
    for network in networks:
        for machine, steps, rival in ((NODE, node[network], names.frameworks), (NODES, nodes[network], names.image)):
            published = PUBLISHED[network].node if machine == NODE else PUBLISHED[network].nodes
            figures = (
                Figure(name="DeePa / frameworks", unit="x", predicted=speedup(steps, rival, names.deepa), published=published),
                Figure(name="frameworks", unit="s", predicted=_seconds(steps[rival])),
                Figure(name="DeePa", unit="s", predicted=_seconds(steps[names.deepa])),
                Figure(name="synchronous / asynchronous", unit="x", predicted=speedup(steps, names.deepa, names.deepa_late)),
            )
            rows.append(
                Row(labels={"network": network.name, "machine": machine}, figures=figures, status=status(steps, rival, names.deepa))
            )
    about = (
        "32 images a GPU. Published: section 7.3. Frameworks: image parallelism, whose gradients are summed on the host of a node, or by"
        " all GPUs of four nodes as parameter servers. Asynchronous: DeePa with update=asynchronous, which hides sums of gradients behind"
        " the next step, on one node; section 5 says that synchronous training, overlapped, is as fast."
    )
    return Table(name="clusters", title="Speed-ups on P100", about=about, rows=tuple(rows))


def batches_table(steps: Mapping[tuple[Network, int], Predicted], names: Names) -> Table:
    """Figure 13: other batches on 16 K80."""
    rows = []
    for (network, batch), own in steps.items():
        figures = (Figure(name="DeePa / frameworks", unit="x", predicted=speedup(own, names.frameworks, names.deepa)),)
        least, most = PUBLISHED[network].batches
        labels = {"network": network.name, "batch": str(batch), "published": f"{least}x to {most}x"}
        rows.append(Row(labels=labels, figures=figures, status=status(own, names.frameworks, names.deepa)))
    about = "16 K80. Published: the ranges of section 7.2; figure 13 prints no numbers."
    return Table(name="batches", title="Speed-ups by batch", about=about, rows=tuple(rows))


def large_table(
    networks: Iterable[Network],
    divided: Found,
    large: Found,
    steps: Mapping[Network, Predicted],
    more: Mapping[Network, Predicted],
    names: Names,
) -> Table:
    """Figure 16: ImageNet-22K."""
    rows = []
    for network in networks:
        small, wide = divided[network], large[network]
        missing = next((own for own in (small, wide) if isinstance(own, Missing)), None)
        if missing is not None:
            rows.append(Row(labels={"network": network.name}, figures=(), status=missing.status))
            continue
        image, best = (wide.paper_bytes(wide.image), wide.paper_bytes(wide.best))
        figures = (
            Figure(name="image adds", unit="bytes", predicted=image - small.paper_bytes(small.image)),
            Figure(name="DeePa adds", unit="bytes", predicted=best - small.paper_bytes(small.best), published=LARGE_DEEPA_BYTES),
            Figure(name="image / DeePa", unit="x", predicted=image / best),
            Figure(name="frameworks slower", unit="x", predicted=over(more[network][names.frameworks], steps[network][names.frameworks])),
            Figure(
                name="DeePa slower",
                unit="x",
                predicted=over(more[network][names.deepa], steps[network][names.deepa]),
                published=LARGE_DEEPA,
            ),
        )
        rows.append(Row(labels={"network": network.name}, figures=figures, status=status(more[network], names.frameworks, names.deepa)))
    about = (
        f"21,841 classes in place of 1,000 on 16 K80, batch {BATCH}. Published: appendix A.4; image parallelism adds 5 to 10 GB, DeePa"
        " moves 3.7 to 44.5 times less, and the frameworks lose 20 to 45 % of their throughput (1.25 to 1.82 times slower). Bytes are"
        " those of the paper's model."
    )
    return Table(name="imagenet-22k", title="ImageNet-22K", about=about, rows=tuple(rows))


def over(step: Step | Missing, other: Step | Missing) -> float | None:
    """How many times longer a step takes than another."""
    return step.step_s / other.step_s if isinstance(step, Step) and isinstance(other, Step) else None


def configurations_table(networks: Iterable[Network], divided: Found) -> Table:
    """Figures 9 to 12: the configuration of each layer."""
    rows: list[Row] = []
    for network in networks:
        own = divided[network]
        if isinstance(own, Missing):
            rows.append(Row(labels={"network": network.name, "layers": "", "configuration": ""}, figures=(), status=own.status))
            continue
        for first, last, configuration in own.stretches():
            labels = {"network": network.name, "layers": _span(own, first, last), "configuration": str(configuration)}
            rows.append(Row(labels=labels, figures=(Figure(name="workers", unit="count", predicted=configuration.workers),)))
    about = "Found by the search for the sum of exact costs, in forward order. Worker k of each layer runs on device k."
    return Table(name="configurations", title=f"Configurations on 16 K80, batch {BATCH}", about=about, rows=tuple(rows))


def _span(own: Divided, first: int, last: int) -> str:
    names = [own.network.layers[layer].name for layer in (first, last)]
    return names[0] if first == last else f"{names[0]} to {names[1]}"
