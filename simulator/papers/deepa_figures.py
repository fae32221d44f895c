"""Figures 1 to 3 of the DeePa paper: single layers by configuration and by number of workers; and the pictures of figures 9 to 12."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from simulator.machine.scaled import AS_IT_IS, MOST, Scale
from simulator.papers import registry
from simulator.papers.deepa_network import Divided
from simulator.papers.registry import EQUAL, line, span
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.configurations import layer_called
from simulator.strategies.sharding.costs import exact
from traces.documents.reproduction import Chart, Check, DividedLayer, DividedNetwork, Panel, Table
from traces.errors import Refusal

PAPER = registry.get("deepa")
#: Image parallelism on all GPUs; numbers of workers of figure 2.
IMAGE, WORKERS = Configuration(n=16), (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Layers:
    """The layers of the figures.

    `convolutions`: by name in table 1, the network and the layer. `layers`: those of Inception-v3 in figure 2, the third layer first and
    the last one last. `batches`: those of figure 3.
    """

    divided: Mapping[str, Divided | Refusal]
    convolutions: Mapping[str, tuple[str, str]]
    layers: tuple[str, ...]
    batches: tuple[int, ...]

    def _known(self, network: str) -> Divided | None:
        own = self.divided.get(network)
        return own if isinstance(own, Divided) else None

    @cached_property
    def throughputs(self) -> dict[str, dict[Configuration, float]]:
        """By convolution, images per second in each configuration on 16 GPUs, over those of the worst (figure 1)."""
        speeds_by_name = {}
        for name, (network, layer) in self.convolutions.items():
            if own := self._known(network):
                speeds = own.throughputs(layer_called(own.network, layer))
                speeds_by_name[name] = {each: speed / min(speeds.values()) for each, speed in speeds.items()}
        return speeds_by_name

    def next_best(self, scale: Scale = AS_IT_IS) -> dict[str, float]:
        """By convolution, how many times as long as by image the best configuration takes that divides anything else.

        `scale`: factors of the machine's figures.
        """
        ratios = {}
        for name, (network, layer) in self.convolutions.items():
            if own := self._known(network):
                speeds = own.throughputs(layer_called(own.network, layer), scale)
                ratios[name] = speeds[IMAGE] / max(speed for each, speed in speeds.items() if each != IMAGE)
        return ratios

    @cached_property
    def seconds(self) -> dict[str, dict[int, float]]:
        """By layer, the seconds of image parallelism by number of workers (figure 2)."""
        own = self._known("Inception-v3")
        if own is None:
            return {}
        return {name: {count: own.by_image_s(layer_called(own.network, name), count) for count in WORKERS} for name in self.layers}

    @cached_property
    def saved(self) -> dict[int, float]:
        """By batch, the bytes of n=2 over those of c=2 for VGG-16's first linear layer (figure 3). Inputs grow with the batch."""
        own = self._known("VGG-16")
        if own is None:
            return {}
        fc6 = layer_called(own.network, "fc6")
        edge = next(edge for edge in own.network.edges if edge.target == fc6)
        inputs = exact.transfer_bytes(own.network, edge, Configuration(n=2), Configuration(c=2)) / own.job.batch
        return {batch: exact.update_bytes(own.network, fc6, Configuration(n=2)) / (inputs * batch) for batch in self.batches}

    def tables(self) -> Iterator[Table]:
        """Yield the three figures as tables."""
        rows = []
        for name, speeds in self.throughputs.items():
            best, worst = max(speeds, key=speeds.__getitem__), min(speeds, key=speeds.__getitem__)
            labels = {"convolution": name, "layer": " ".join(self.convolutions[name]), "best": best, "worst": worst}
            rows.append((labels, (speeds[best], speeds[IMAGE])))
        yield PAPER.table("convolutions", rows)
        counts = WORKERS if self.seconds else ()
        yield PAPER.table("workers", (({"workers": count}, [own[count] for own in self.seconds.values()]) for count in counts))
        printed = PAPER.values("figure 3")["bytes"]
        yield PAPER.table("one linear layer", (({"batch": batch}, [value], [printed]) for batch, value in self.saved.items()))

    def checks(self) -> Iterator[Check]:
        """Judge the three figures."""
        cases = {name: (max(own.values()) / own[IMAGE], max(own.values())) for name, own in self.throughputs.items()}
        yield self._with_experiment(PAPER.claim("figure 1").each(cases), self._without_bytes)
        yield from self._third_and_last()
        claim, printed = PAPER.claim("figure 3"), PAPER.values("figure 3")["bytes"]
        if not self.saved:
            yield claim.unjudged()
            return
        said = "; ".join(f"{batch} images {value:.1f}x" for batch, value in self.saved.items())
        figures = {f"{batch} images": value for batch, value in self.saved.items()}
        yield claim.judged(min(self.saved.values()) <= printed <= max(self.saved.values()), said, figures)

    @staticmethod
    def _with_experiment(check: Check, figures: Callable[[], tuple]) -> Check:
        """A check that does not hold, whose reason, a format, has the figures of an experiment."""
        return check.model_copy(update={"reason": check.reason.format(*figures())}) if check.reason else check

    def _without_bytes(self) -> tuple[str, str]:
        """The next best configurations, and on a machine whose memory takes no time."""
        usual, quick = (self.next_best(scale) for scale in (AS_IT_IS, Scale(memory=MOST)))
        return (span(tuple(usual.values())), "; ".join(f"{name} {ratio:.3f}x" for name, ratio in quick.items()))

    def _without_sums(self, own: Divided) -> tuple[str, str]:
        """The last layer on two and four workers: its computation and sums of gradients, and both on a machine whose links take no time."""
        last = layer_called(own.network, self.layers[-1])
        words = []
        for tables in (own.tables, own.at_links(MOST)):
            seconds = {count: own.by_image_s(last, count, tables) for count in WORKERS}
            words.append(", ".join(f"{1e3 * each:.2f} ms on {count}" for count, each in seconds.items()))
        return words[0], words[1]

    def _third_and_last(self) -> Iterator[Check]:
        """Judge figure 2's third layer and its last one."""
        own, seconds = self._known("Inception-v3"), self.seconds
        last_claim = PAPER.claim("figure 2, last layer")
        for name, layer, most in (("figure 2, third layer", self.layers[0], 16), ("figure 2, last layer", self.layers[-1], 4)):
            if own is None:
                yield PAPER.claim(name).unjudged()
                continue
            best = min(seconds[layer], key=seconds[layer].__getitem__)
            slower = seconds[layer][most] / seconds[layer][best]
            said = f"{layer} is fastest on {best}; on {most} it takes {slower:.3f} times as long"
            check = PAPER.claim(name).judged(slower <= 1 + EQUAL, said, {"fastest on": float(best), f"on {most}": slower})
            yield self._with_experiment(check, partial(self._without_sums, own)) if name == last_claim.name else check

    def charts(self) -> Iterator[Chart]:
        """Yield figures 1 and 2."""
        if self.throughputs:
            by_kind: dict[str, list[tuple[float, float]]] = {"best": [], "image": [], "worst": []}
            for at, own in enumerate(self.throughputs.values(), 1):
                for kind, value in zip(by_kind, (max(own.values()), own[IMAGE], min(own.values())), strict=True):
                    by_kind[kind].append((at, value))
            series = tuple(line(kind, points) for kind, points in by_kind.items())
            yield PAPER.chart("convolutions", [Panel(title="forward and backward", series=series)], list(self.throughputs))
        if self.seconds:
            lines = {name: [(count, 1e3 * seconds) for count, seconds in own.items()] for name, own in self.seconds.items()}
            yield PAPER.chart("workers", [Panel(title=name, series=(line("predicted", points),)) for name, points in lines.items()])


def pictures(divided: Mapping[str, Divided | Refusal], batch: int) -> Iterator[DividedNetwork]:
    """Yield figures 9 to 12: each network with its layers as the search divides them."""
    for name, own in divided.items():
        if isinstance(own, Divided):
            title = f"{name} on 16 K80, batch {batch}: how the search divides each layer"
            yield DividedNetwork(name=own.job.model.replace("_", "-"), title=title, layers=tuple(_layers(own)))


def _layers(own: Divided) -> Iterator[DividedLayer]:
    inputs: dict[int, dict[int, None]] = {}
    for edge in own.network.edges:
        inputs.setdefault(edge.target, {})[edge.source] = None
    for number, (layer, configuration) in enumerate(zip(own.network.layers, own.best, strict=True)):
        read, degrees = tuple(inputs.get(number, ())), configuration.degrees
        yield DividedLayer(name=layer.name, kind=own.kind(number), shape=layer.shape, degrees=degrees, inputs=read)
