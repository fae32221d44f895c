"""BPPSA (Wang et al., 2020): back-propagation through recurrent layers as a parallel scan, on a V100."""

from collections.abc import Iterator, Mapping, Sequence
from math import log
from types import MappingProxyType

from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.papers import bppsa_sparse, registry
from simulator.papers.bppsa_model import GRU, RNN, SCAN, Case, Constants, Epoch, Epochs, Workloads, fit
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
#: Predicted epochs by case.
EpochsByCase = Mapping[Case, Epoch]
#: Length or mini-batch, and a figure.
Points = Sequence[tuple[int, float]]


class BppsaScope(Data):
    """The scope of the predictions.

    `lengths`: compared at the mini-batch of table 4. `length`: where `batches` are compared, figure 8d to 8f. `sets`: audio features and
    their lengths, table 3. `constants`: what the fitted constants are the times of, by name. `other_machine`: a GPU with fewer SMs and
    less bandwidth, for the claims that compare two.
    """

    lengths: tuple[int, ...]
    length: int
    batches: tuple[int, ...]
    sets: tuple[tuple[str, int], ...]
    set_batches: tuple[int, ...]
    constants: dict[str, str]
    other_machine: str

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
    return len({*SCOPE.by_length, *SCOPE.by_batch, *SCOPE.gru, *published()}) + 1


def published() -> dict[Case, Epoch]:
    """Return table 4 by case."""
    values = PAPER.values("epochs").items()
    return {Case(RNN, int(length), BATCH): Epoch(forward, forward, *others) for length, (forward, *others) in values}


def fitted(machine: Machine, workloads: Workloads, up_to: int | None = None) -> Constants:
    """Fit the constants on table 4, or on its lengths up to `up_to`."""
    return fit({case: epoch for case, epoch in published().items() if up_to is None or case.length <= up_to}, machine, workloads)


def reproduce(steps: Steps) -> Paper:
    """Predict the paper's figures."""
    machine, other_machine = load_machine(steps.machine_name), load_machine(SCOPE.other_machine)
    workloads = Workloads(machine, steps.report)
    constants, early = fitted(machine, workloads), fitted(machine, workloads, FITTED_TO)
    epochs = Epochs(machine, constants, workloads)
    other_epochs, early_epochs = Epochs(other_machine, constants, workloads), Epochs(machine, early, workloads)
    cases = tuple(dict.fromkeys((*SCOPE.by_length, *SCOPE.by_batch)))
    rnn, other = ({case: predicted.epoch(case) for case in cases} for predicted in (epochs, other_epochs))
    gru = {case: epochs.epoch(case) for case in SCOPE.gru}
    held_out = {case: early_epochs.epoch(case) for case in SCOPE.by_length if case.length > FITTED_TO}
    by_length, by_batch = ({case: rnn[case] for case in group} for group in (SCOPE.by_length, SCOPE.by_batch))
    steps.report(bppsa_sparse.MODEL)
    chain = bppsa_sparse.operators()
    scan = bppsa_sparse.steps(chain)
    both = {"machine": steps.machine_name, "other": SCOPE.other_machine}
    fits = (({"constant": what}, (getattr(constants, name), getattr(early, name))) for name, what in SCOPE.constants.items())
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
        PAPER.table("greatest", _greatest(rnn, gru), machine=steps.machine_name),
        PAPER.table("machines", ((_labels(case), (*rnn[case].speedups, *other[case].speedups)) for case in cases), **both),
        *bppsa_sparse.tables(scan, chain),
    )
    checks = (*_checks(rnn, gru, other), bppsa_sparse.steps_are_like_operators(scan, chain))
    return PAPER.paper(steps, tables, checks, (*_charts(rnn, gru), bppsa_sparse.chart(scan, chain)))


def _rows(predicted: EpochsByCase, what: str, printed: EpochsByCase = MappingProxyType({})) -> Iterator[tuple]:
    """Yield figures of epochs. `what`: the name of their property."""
    for case, epoch in predicted.items():
        yield _labels(case), getattr(epoch, what), getattr(printed[case], what) if case in printed else ()


def _labels(case: Case) -> dict[str, object]:
    return {"T": case.length, "B": case.batch}


def _greatest(rnn: EpochsByCase, gru: EpochsByCase) -> Iterator[tuple]:
    """Yield section 5's greatest speed-ups, on other cards."""
    example = [epoch for case, epoch in rnn.items() if case == Case(RNN, 1000, BATCH)]
    cards = {"RTX 2070 and RTX 2080 Ti": rnn.values(), "RTX 2070": example, "either": gru.values()}
    for (card, epochs), (what, printed) in zip(cards.items(), PAPER.values("greatest").items(), strict=True):
        greatest = [max(gains) for gains in zip(*(epoch.speedups for epoch in epochs), strict=True)] or (None, None)
        yield {"workload": what, "published card": card}, greatest, printed


def _checks(rnn: EpochsByCase, gru: EpochsByCase, other: EpochsByCase) -> Iterator[Check]:
    by_length, by_batch = SCOPE.by_length, SCOPE.by_batch
    overall, backward = ({case: epoch.speedups[position] for case, epoch in rnn.items()} for position in (0, 1))
    yield PAPER.claim("length").trend([(case.length, overall[case]) for case in by_length])
    yield bound_by_workers([(case.length, rnn[case].backwards[1]) for case in by_length])
    yield PAPER.claim("batch").trend([(case.batch, backward[case]) for case in by_batch])
    yield longer_sets_gain_more(gru)
    yield greatest_differ(*({f"T = {c.length}, B = {c.batch}": gain for c, gain in gains.items()} for gains in (overall, backward)))
    yield larger_card_peaks_later(*([(case.length, epochs[case].speedups[1]) for case in by_length] for epochs in (rnn, other)))
    yield larger_card_falls_slower(*([(case.batch, epochs[case].speedups[1]) for case in by_batch] for epochs in (rnn, other)))


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


def greatest_differ(overall: Mapping[str, float], backward: Mapping[str, float]) -> Check:
    """Judge: the greatest overall speed-up and the greatest backward speed-up are at different points. Both arguments: by point name."""
    best, best_backward = max(overall, key=overall.get), max(backward, key=backward.get)
    said = f"{overall[best]:.2f}x at {best}, the backward's {backward[best_backward]:.1f}x at {best_backward}"
    figures = {"overall": overall[best], "backward": backward[best_backward]}
    return PAPER.claim("greatest").judged(best != best_backward, said, figures)


def larger_card_peaks_later(large: Points, small: Points) -> Check:
    """Judge: the GPU with more SMs has its greatest backward speed-up at a greater length. Points: length and speed-up, by length."""
    claim = PAPER.claim("peak")
    peaks = [max(points, key=lambda point: point[1])[0] for points in (large, small)]
    longest = max(length for length, _ in large)
    if peaks == [longest, longest]:
        return claim.unjudged(f"on both it still rises at T = {longest}, the greatest length")
    said = f"at T = {peaks[0]} on the larger, {peaks[1]} on the smaller"
    return claim.judged(peaks[0] > peaks[1], said, {"larger": peaks[0], "smaller": peaks[1]})


def larger_card_falls_slower(large: Points, small: Points) -> Check:
    """Judge: as the mini-batch grows, the backward speed-up falls less on the larger GPU. Points: mini-batch and speed-up."""
    claim = PAPER.claim("cards")
    if min(len(large), len(small)) < 2:
        return claim.unjudged()
    shares = [max(points)[1] / min(points)[1] for points in (large, small)]
    said = f"of its {span([g for _, g in large])} the larger keeps {shares[0]:.0%} at the largest mini-batch, the smaller {shares[1]:.0%}"
    return claim.judged(shares[0] > shares[1] + EQUAL, said, {"larger": shares[0], "smaller": shares[1]})


def _charts(rnn: EpochsByCase, gru: EpochsByCase) -> Iterator[Chart]:
    """Figures 8 and 9, with the points of table 4: epochs and speed-ups over the length and the mini-batch."""
    table_4 = published()
    for over, charts, cases in (
        ("length", ("lengths", "length-speedups"), SCOPE.by_length),
        ("batch", ("batches", "batch-speedups"), sorted(SCOPE.by_batch)),
    ):
        lines = {
            "predicted": {getattr(case, over): rnn[case] for case in cases},
            "published": {getattr(case, over): table_4[case] for case in cases if case in table_4},
        }
        for name, what in zip(charts, ("totals", "speedups"), strict=True):
            yield PAPER.chart(name, _panels(lines, what), length=SCOPE.length)
    sets: dict[str, dict[int, Epoch]] = {}
    for case, name in SCOPE.gru.items():
        sets.setdefault(f"set {name}", {})[case.batch] = gru[case]
    yield PAPER.chart("gru", _panels(sets, "speedups"))


def _panels(lines: Mapping[str, Mapping[int, Epoch]], what: str) -> Iterator[Panel]:
    """Yield a panel for each figure of an epoch. `what`: the name of the property."""
    for position, title in enumerate({"totals": ("forward", "baseline", "BPPSA"), "speedups": ("whole epoch", "backward")}[what]):
        series = (
            line(name, ((x, getattr(epoch, what)[position]) for x, epoch in epochs.items()), published=name == "published")
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
