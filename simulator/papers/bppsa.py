"""BPPSA (Wang et al., 2020): back-propagation through recurrent layers as a parallel scan, on a V100 and on the paper's two other cards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import log
from types import MappingProxyType

from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.papers import bppsa_sparse, registry
from simulator.papers.bppsa_epochs import FITTED, GRU, RNN, SCAN, Case, Epoch, Epochs, Workloads, fit, with_fitted
from simulator.papers.predicting import Steps
from simulator.papers.registry import EQUAL, Measurement, line, span
from traces.documents.base import Data
from traces.documents.reproduction import BppsaReproduction, Chart, Check, GruEpoch, Panel, Paper, PaperCase, RnnEpoch

PAPER = registry.get("bppsa")
#: Mini-batch of table 4.
BATCH = 16
#: The fit that is tested uses the lengths up to this one, and predicts the others.
FITTED_TO = 300
#: A time that grows with a smaller power of the length than _HARDLY hardly grows; with at least the power _BOUND, the work bounds it.
_HARDLY, _BOUND = 0.25, 0.5
#: Two runs of one configuration in the paper differ by up to this share.
NOISE = 0.05
#: Backward steps in forward steps that are tried to see on what a claim depends.
_RATIOS = tuple(number / 10 for number in range(10, 26))
#: The name of the line of published points in a chart.
PUBLISHED = "published, V100"
#: Predicted epochs by case.
EpochsByCase = Mapping[Case, Epoch]
#: Length or mini-batch, and a figure.
Points = Sequence[tuple[int, float]]


class BppsaScope(Data):
    """The scope of the predictions.

    `lengths`: compared at the mini-batch of table 4. `length`: where `batches` are compared, figure 8d to 8f. `sets`: audio features and
    their lengths, table 3. `constants`: what the fitted figures of the host are the times of, by name. `cards`: the presets of the paper's
    other cards by what it calls them, the smaller one first. `epochs`: those of the curves in figures 7 and 13, by model.
    """

    lengths: tuple[int, ...]
    length: int
    batches: tuple[int, ...]
    sets: tuple[tuple[str, int], ...]
    set_batches: tuple[int, ...]
    constants: dict[str, str]
    cards: dict[str, str]
    epochs: dict[str, int]

    @property
    def by_length(self) -> tuple[Case, ...]:
        """The cases of table 4 and figure 8a to 8c."""
        return tuple(Case(RNN, length, BATCH) for length in self.lengths)

    @property
    def by_batch(self) -> tuple[Case, ...]:
        """The cases of figure 8d to 8f."""
        return tuple(Case(RNN, self.length, batch) for batch in self.batches)

    @property
    def gru(self) -> dict[Case, str]:
        """The cases of figure 9, each with the name of its set."""
        return {Case(GRU, length, batch): name for name, length in self.sets for batch in self.set_batches}


SCOPE = PAPER.scope(BppsaScope)


def predictions() -> int:
    """Return the number of workloads that are planned, including the pruned network."""
    seen = [case for case in published() if case.length <= FITTED_TO]
    return len({*SCOPE.by_length, *SCOPE.by_batch, *SCOPE.gru, *seen}) + 1


def published() -> dict[Case, Epoch]:
    """Return table 4 by case."""
    values = PAPER.values("epochs").items()
    return {Case(RNN, int(length), BATCH): Epoch(forward, forward, *others) for length, (forward, *others) in values}


def fitted(machine: Machine, workloads: Workloads, up_to: int | None = None) -> Machine:
    """Return the machine with its host fitted on table 4, or on its lengths up to `up_to`."""
    seen = {case: epoch for case, epoch in published().items() if up_to is None or case.length <= up_to}
    return with_fitted(machine, fit(seen, machine, workloads))


def reproduce(steps: Steps) -> Paper:
    """Predict the paper's figures."""
    machine = load_machine(steps.machine_name)
    workloads = Workloads(machine, steps.report)
    early = fitted(machine, workloads, FITTED_TO)
    cases = tuple(dict.fromkeys((*SCOPE.by_length, *SCOPE.by_batch)))

    def on(place: Machine, of: Sequence[Case]) -> dict[Case, Epoch]:
        epochs = Epochs(place, workloads)
        return {case: epochs.epoch(case) for case in of}

    rnn, gru = on(machine, cases), on(machine, tuple(SCOPE.gru))
    held_out = on(early, [case for case in SCOPE.by_length if case.length > FITTED_TO])
    places = {card: load_machine(preset) for card, preset in SCOPE.cards.items()}
    cards = {card: on(place, (*cases, *SCOPE.gru)) for card, place in places.items()}
    by_length, by_batch = ({case: rnn[case] for case in group} for group in (SCOPE.by_length, SCOPE.by_batch))
    steps.report(bppsa_sparse.MODEL)
    chain = bppsa_sparse.operators()
    scan = bppsa_sparse.steps(chain)
    hosts = (machine.hosts[0], early.hosts[0])
    fits = (({"constant": SCOPE.constants[name]}, [getattr(host, name) for host in hosts]) for name in FITTED)
    everywhere = {steps.machine_name: rnn | gru, **cards}
    tables = (
        PAPER.table("constants", fits),
        PAPER.table("lengths", _rows(by_length, "totals", published())),
        PAPER.table("backward", _rows(by_length, "backwards", published())),
        PAPER.table("speed-ups", _rows(by_length, "speedups", published())),
        PAPER.table("held-out", _rows(held_out, "totals", published())),
        PAPER.table("held-out-backward", _rows(held_out, "backwards", published())),
        PAPER.table("batches", _rows(by_batch, "totals"), length=SCOPE.length),
        PAPER.table("batch-speed-ups", _rows(by_batch, "speedups"), length=SCOPE.length),
        PAPER.table("gru", (({"set": name, **_labels(c)}, (*gru[c], *gru[c].speedups)) for c, name in SCOPE.gru.items())),
        PAPER.table("greatest", _greatest(cards)),
        PAPER.table("training", _training(cards)),
        PAPER.table("cards", _by_card(everywhere, cases), machine=steps.machine_name),
        PAPER.table("gru-cards", _by_card(everywhere, tuple(SCOPE.gru)), machine=steps.machine_name),
        *bppsa_sparse.tables(scan, chain),
    )
    greatest = greatest_differ(*points(cards), reason=lambda: why_at_one_point(places, cases, workloads))
    checks = (*_checks(rnn, gru, cards), greatest, bppsa_sparse.steps_are_like_operators(scan, chain))
    return PAPER.paper(steps, tables, checks, (*_charts(everywhere, gru), bppsa_sparse.chart(scan, chain)))


def _rows(predicted: EpochsByCase, what: str, printed: EpochsByCase = MappingProxyType({})) -> Iterator[tuple]:
    """Yield figures of epochs. `what`: the name of their property."""
    for case, epoch in predicted.items():
        yield _labels(case), getattr(epoch, what), getattr(printed[case], what) if case in printed else ()


def _labels(case: Case) -> dict[str, object]:
    return {"T": case.length, "B": case.batch}


def _by_card(everywhere: Mapping[str, EpochsByCase], cases: Sequence[Case]) -> Iterator[tuple]:
    """Yield the speed-ups of each case, card after card."""
    for case in cases:
        labels = {"set": SCOPE.gru[case]} if case in SCOPE.gru else {}
        yield labels | _labels(case), [gain for epochs in everywhere.values() for gain in epochs[case].speedups]


def _greatest(cards: Mapping[str, EpochsByCase]) -> Iterator[tuple]:
    """Yield section 5's greatest speed-ups, on the cards that the paper names."""
    small, large = cards
    gru, example = frozenset(SCOPE.gru), {Case(RNN, SCOPE.length, BATCH)}
    rnn = frozenset(cards[small]) - gru
    scopes = (((small,), (large,), rnn), ((small,), (small,), example), ((small, large), (small, large), gru))
    for (*names, cases), (what, printed) in zip(scopes, PAPER.values("greatest").items(), strict=True):
        greatest = [
            max((cards[card][case].speedups[position] for card in own for case in cases if case in cards[card]), default=None)
            for position, own in enumerate(names)
        ]
        yield {"workload": what, "cards": " and ".join(dict.fromkeys(name for own in names for name in own))}, greatest, printed


def _training(cards: Mapping[str, EpochsByCase]) -> Iterator[tuple]:
    """Yield what the curves of figures 7 and 13 take on the smaller card, whose points are one for each epoch."""
    card, epochs = next(iter(cards.items()))
    for case, epoch in epochs.items():
        if case in (*SCOPE.gru, Case(RNN, SCOPE.length, BATCH)) and case.batch == BATCH:
            count = SCOPE.epochs[case.model]
            printed = [None, None, PAPER.values("greatest")["RNN, T = 1000, B = 16"][0] if case.model == RNN else None]
            labels = {"workload": f"GRU, set {SCOPE.gru[case]}" if case in SCOPE.gru else "RNN", **_labels(case), "epochs": count}
            yield labels | {"card": card}, (count * epoch.baseline_s, count * epoch.bppsa_s, epoch.speedups[0]), printed


def _checks(rnn: EpochsByCase, gru: EpochsByCase, cards: Mapping[str, EpochsByCase]) -> Iterator[Check]:
    by_length, by_batch = SCOPE.by_length, SCOPE.by_batch
    yield PAPER.claim("length").trend([(case.length, rnn[case].speedups[0]) for case in by_length])
    yield bound_by_workers([(case.length, rnn[case].backwards[1]) for case in by_length])
    yield PAPER.claim("batch").trend([(case.batch, rnn[case].speedups[1]) for case in by_batch])
    yield longer_sets_gain_more(gru)
    small, large = cards.values()
    yield larger_card_peaks_later(*([(case.length, epochs[case].speedups[1]) for case in by_length] for epochs in (large, small)))
    yield larger_card_falls_slower(*([(case.batch, epochs[case].speedups[1]) for case in by_batch] for epochs in (large, small)))


def bound_by_workers(points: Points) -> Check:
    """Judge: BPPSA's backward takes Theta(n/p + log p). `points`: length and seconds of BPPSA's backward."""
    claim = PAPER.claim("workers")
    if len(points) < 3:
        return claim.unjudged(f"{len(points)} of at least 3 lengths could be predicted")
    low, high = _power(*points[:2]), _power(*points[-2:])
    said = f"it grows as T^{low:.2f} from {points[0][0]} to {points[1][0]} steps, as T^{high:.2f} from {points[-2][0]} to {points[-1][0]}"
    return claim.judged(low < _HARDLY and high >= _BOUND, said, {"first power": low, "last power": high})


def _power(one: tuple[int, float], other: tuple[int, float]) -> float:
    return log(other[1] / one[1]) / log(other[0] / one[0])


def longer_sets_gain_more(gru: EpochsByCase) -> Check:
    """Judge: at every mini-batch, the GRU's backward gains more on the last set than on the first."""
    by_batch: dict[str, list[float]] = {}
    for case, epoch in gru.items():
        by_batch.setdefault(f"B = {case.batch}", []).append(epoch.speedups[1])
    return PAPER.claim("sets").each({batch: (gains[0], gains[-1]) for batch, gains in by_batch.items()})


def points(cards: Mapping[str, EpochsByCase]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the RNN's speed-ups by card and point: of the whole epoch, and of the backward."""
    of_rnn = [
        (f"{card}, T = {c.length}, B = {c.batch}", e.speedups) for card, own in cards.items() for c, e in own.items() if c.model == RNN
    ]
    return {name: gains[0] for name, gains in of_rnn}, {name: gains[1] for name, gains in of_rnn}


def greatest_differ(overall: Mapping[str, float], backward: Mapping[str, float], reason: Callable[[], str] = str) -> Check:
    """Judge: the greatest overall speed-up and the greatest backward speed-up are at different points. Both mappings: by point name.

    `reason` finds out why, if it does not hold.
    """
    best, best_backward = max(overall, key=overall.get), max(backward, key=backward.get)
    said = f"{overall[best]:.2f}x at {best}, the backward's {backward[best_backward]:.1f}x at {best_backward}"
    figures = {"overall": overall[best], "backward": backward[best_backward]}
    differ = best != best_backward
    return PAPER.claim("greatest").judged(differ, said, figures, "" if differ else reason())


def why_at_one_point(places: Mapping[str, Machine], cases: Sequence[Case], workloads: Workloads) -> str:
    """Return what an experiment finds: with how long a backward step on the larger card the claim holds, if the smaller one's is known.

    On the smaller card the paper's overall and backward speed-ups at one point imply that back-propagation's backward takes
    (a - 1) b / (b - a) times as long as the forward, as forward and backward / b together take an a-th of forward and backward.
    """
    overall, backward = PAPER.values("greatest")["RNN, T = 1000, B = 16"]
    implied = (overall - 1) * backward / (backward - overall)
    (small, of_small), (large, of_large) = places.items()
    known = {small: Epochs(_with_ratio(of_small, implied), workloads)}
    holds = []
    for ratio in _RATIOS:
        epochs = known | {large: Epochs(_with_ratio(of_large, ratio), workloads)}
        tried = points({card: {case: own.epoch(case) for case in cases} for card, own in epochs.items()})
        if greatest_differ(*tried, reason=str).holds:
            holds.append(ratio)
    own = of_large.hosts[0].backward_step_s / of_large.hosts[0].forward_step_s
    span_of_ratios = f"from {holds[0]:g} to {holds[-1]:g}" if holds else "at none"
    return (
        f"cuDNN's steps on these cards are not published, and here a backward step takes {own:.2f} forward steps on both, as on the V100, "
        f"whose table 4 has both greatest at one point, too. The paper's {overall:g}x and {backward:g}x imply {implied:.2f} on the {small}."
        f" With that, and {_RATIOS[0]:g} to {_RATIOS[-1]:g} tried on the {large}, the claim holds {span_of_ratios}"
    )


def _with_ratio(machine: Machine, ratio: float) -> Machine:
    """The machine on which a backward step takes `ratio` forward steps."""
    host = machine.hosts[0]
    return replace(machine, hosts=(replace(host, backward_step_s=ratio * host.forward_step_s),))


def larger_card_peaks_later(large: Points, small: Points) -> Check:
    """Judge: the GPU with more SMs reaches its greatest backward speed-up, within the noise, at a greater length.

    Points: length and speed-up, by length. A speed-up that does not fall again levels out, so the first length within NOISE of it counts.
    """
    claim = PAPER.claim("peak")
    if min(len(large), len(small)) < 2:
        return claim.unjudged("fewer than 2 lengths were predicted on both")
    peaks = [next(x for x, gain in of if gain >= max(y for _, y in of) * (1 - NOISE)) for of in (large, small)]
    greatest = [max(gain for _, gain in of) for of in (large, small)]
    said = f"{greatest[0]:.1f}x from T = {peaks[0]} on the larger, {greatest[1]:.1f}x from T = {peaks[1]} on the smaller"
    return claim.judged(peaks[0] > peaks[1], said, {"larger": peaks[0], "smaller": peaks[1]})


def larger_card_falls_slower(large: Points, small: Points) -> Check:
    """Judge: as the mini-batch grows, the backward speed-up falls less on the larger GPU. Points: mini-batch and speed-up."""
    claim = PAPER.claim("cards")
    if min(len(large), len(small)) < 2:
        return claim.unjudged()
    shares = [max(points)[1] / min(points)[1] for points in (large, small)]
    said = f"of its {span([g for _, g in large])} the larger keeps {shares[0]:.0%} at the largest mini-batch, the smaller {shares[1]:.0%}"
    return claim.judged(shares[0] > shares[1] + EQUAL, said, {"larger": shares[0], "smaller": shares[1]})


def _charts(everywhere: Mapping[str, EpochsByCase], gru: EpochsByCase) -> Iterator[Chart]:
    """Figures 8 and 9, with the points of table 4: epochs and speed-ups over the length and the mini-batch."""
    table_4 = published()
    machine = next(iter(everywhere))
    for over, charts, cases in (
        ("length", ("lengths", "length-speedups"), SCOPE.by_length),
        ("batch", ("batches", "batch-speedups"), sorted(SCOPE.by_batch)),
    ):
        lines = {card: {getattr(case, over): epochs[case] for case in cases} for card, epochs in everywhere.items()}
        printed = {PUBLISHED: {getattr(case, over): table_4[case] for case in cases if case in table_4}}
        yield PAPER.chart(charts[0], _panels({machine: lines[machine]} | printed, "totals"), length=SCOPE.length)
        yield PAPER.chart(charts[1], _panels(lines | printed, "speedups"), length=SCOPE.length)
    sets: dict[str, dict[int, Epoch]] = {}
    for case, name in SCOPE.gru.items():
        sets.setdefault(f"set {name}", {})[case.batch] = gru[case]
    yield PAPER.chart("gru", _panels(sets, "speedups"))


def _panels(lines: Mapping[str, Mapping[int, Epoch]], what: str) -> Iterator[Panel]:
    """Yield a panel for each figure of an epoch. `what`: the name of the property."""
    for position, title in enumerate({"totals": ("forward", "baseline", "BPPSA"), "speedups": ("whole epoch", "backward")}[what]):
        series = (
            line(name, ((x, getattr(epoch, what)[position]) for x, epoch in epochs.items()), published=name == PUBLISHED)
            for name, epochs in lines.items()
        )
        yield Panel(title=title, series=tuple(series))


def document(paper: Paper) -> BppsaReproduction:
    """Return the document of the paper, with its epochs as flat lists."""
    epochs = {tuple(row.labels.items()): row for name in ("lengths", "batches") for row in paper.table(name).rows}
    rnn = tuple(RnnEpoch.model_validate(_flat(row)) for row in epochs.values())
    gru = tuple(GruEpoch.model_validate(_flat(row)) for row in paper.table("gru").rows)
    return BppsaReproduction(papers=(paper,), fitted_on=PAPER.published["epochs"].source, rnn=rnn, gru=gru)


def _flat(row: PaperCase) -> dict[str, object]:
    names = {"forward": "forward_s", "forward + overhead": "forward_overhead_s", "baseline": "baseline_s", "BPPSA": "bppsa_s"}
    return row.labels | {names[figure.name]: figure.predicted for figure in row.figures if figure.name in names}


def measurements(gpu: bool) -> list[Measurement]:
    """Return the paper's own job on a GPU, or a job with shorter sequences on a CPU."""
    if gpu:
        return [Measurement(Case(RNN, SCOPE.length, BATCH).job, (SCAN, "bppsa"), "the paper's job on another card")]
    return [Measurement(Job(RNN, BATCH, image_size=100, optimizer="adam"), (SCAN, "bppsa"), "shorter sequences, on a CPU's cores")]
