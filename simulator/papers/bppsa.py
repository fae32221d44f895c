"""BPPSA (Wang et al., 2020): back-propagation through recurrent layers as a parallel scan, on a V100 and on the paper's two other cards."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from simulator.engine.costs.model import CostModel
from simulator.engine.memory.over_time import memory_over_time, peaks
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.model.workloads.networks import chains
from simulator.papers import bppsa_claims as claims
from simulator.papers import bppsa_sparse, registry
from simulator.papers.bppsa_claims import EpochsByCase
from simulator.papers.bppsa_epochs import BASELINE, FITTED, GRU, LINEAR, RNN, SCAN, Case, Epoch, Epochs, Workloads, fit, with_fitted
from simulator.papers.pipeline_trainings import Trained
from simulator.papers.predicting import Steps
from simulator.papers.registry import Measurement, gain_words, line
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from traces.documents.base import Data
from traces.documents.reproduction import OK, BppsaReproduction, Chart, Check, GruEpoch, Panel, Paper, PaperCase, RnnEpoch, Table

PAPER = registry.get("bppsa")
#: Mini-batch of table 4.
BATCH = 16
#: The fit that is tested uses the lengths up to this one, and predicts the others.
FITTED_TO = 300
#: The name of the line of published points in a chart.
PUBLISHED = "published, V100"


class BppsaScope(Data):
    """The scope of the predictions.

    `lengths`: compared at the mini-batch of table 4. `length`: where `batches` are compared, figure 8d to 8f. `sets`: audio features and
    their lengths, table 3. `constants`: what the fitted figures of the host are the times of, by name. `cards`: the presets of the paper's
    other cards by what it calls them, the smaller one first; `fitted`: those whose preset has a figure of the paper. `epochs`: those of the
    curves in figures 7 and 13, by model. `cluster`: a machine for scans over several numbers of `devices`. `kept`: see
    `bppsa_sparse.KEPT`. `stale`: trainings in pairs, plain ones and PipeDream's (appendix C).
    """

    lengths: tuple[int, ...]
    length: int
    batches: tuple[int, ...]
    sets: tuple[tuple[str, int], ...]
    set_batches: tuple[int, ...]
    constants: dict[str, str]
    cards: dict[str, str]
    fitted: tuple[str, ...]
    epochs: dict[str, int]
    cluster: str
    devices: tuple[int, ...]
    kept: dict[str, float]
    stale: Trained

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
    return len({*SCOPE.by_length, *SCOPE.by_batch, *SCOPE.gru, *seen}) + 1 + len(SCOPE.devices)


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
    shared = {count: on_devices(count, steps.report) for count in SCOPE.devices}
    held = {count: (own.scan_bytes, own.gpipe_bytes) for count, own in shared.items()}
    steps.report(bppsa_sparse.MODEL)
    chain = bppsa_sparse.operators()
    scan = bppsa_sparse.steps(chain)
    hosts = (machine.hosts[0], early.hosts[0])
    fits = (({"constant": SCOPE.constants[name]}, [getattr(host, name) for host in hosts]) for name in FITTED)
    asked = {case: steps.asks(case.job, BASELINE, SCAN, LINEAR) for case in (*cases, *SCOPE.gru)}
    everywhere = {steps.machine_name: rnn | gru, **cards}
    tables = (
        PAPER.table("constants", fits),
        PAPER.table("lengths", _rows(by_length, "totals", published(), asked)),
        PAPER.table("backward", _rows(by_length, "backwards", published())),
        PAPER.table("speed-ups", _rows(by_length, "speedups", published())),
        PAPER.table("held-out", _rows(held_out, "totals", published())),
        PAPER.table("held-out-backward", _rows(held_out, "backwards", published())),
        PAPER.table("batches", _rows(by_batch, "totals", asked=asked), length=SCOPE.length),
        PAPER.table("batch-speed-ups", _rows(by_batch, "speedups"), length=SCOPE.length),
        PAPER.table("gru", _gru_rows(gru, asked)),
        PAPER.table("greatest", _greatest(cards)),
        PAPER.table("training", _training(cards)),
        PAPER.table("devices", (({"devices": count, "layers": 2 * count}, own) for count, own in shared.items())),
        PAPER.table("cards", _by_card(everywhere, cases), machine=steps.machine_name),
        PAPER.table("gru-cards", _by_card(everywhere, tuple(SCOPE.gru)), machine=steps.machine_name),
        *bppsa_sparse.tables(scan, chain),
    )
    usual = claims.Predicted(rnn, gru, held_out, cards)
    of_cards = {card: _of_linear_scans(epochs) for card, epochs in cards.items()}
    linear = claims.Predicted(_of_linear_scans(rnn), _of_linear_scans(gru), _of_linear_scans(held_out), of_cards)
    why = partial(claims.why_at_one_point, places, cases, workloads)
    checks = (
        claims.faster_than_linear(by_length, {case: Epochs(machine, workloads).kernels_s(case) for case in SCOPE.by_length}),
        claims.on_devices(shared),
        claims.depth([case.length for case in SCOPE.by_length]),
        *_beside(_checks(usual, why), _checks(linear)),
        claims.memory_is_constant(held),
        bppsa_sparse.steps_are_like_operators(scan, chain),
        bppsa_sparse.critical_path_is_shorter(scan, chain),
        *bppsa_sparse.counted(),
        *claims.of_executions({}),
    )
    charts = (*_charts(everywhere, gru), _devices_chart(held), bppsa_sparse.chart(scan, chain))
    at_1000 = rnn[Case(RNN, SCOPE.length, BATCH)]
    finding = [gain_words(own.speedups[0]) for own in (at_1000.of_linear_scan, at_1000)]
    return PAPER.paper(steps, tables, checks, charts, finding=finding)


def _of_linear_scans(epochs: EpochsByCase) -> EpochsByCase:
    return {case: epoch.of_linear_scan for case, epoch in epochs.items()}


def _beside(checks: Iterable[Check], off: Iterable[Check]) -> Iterator[Check]:
    """The checks, each with that of linear scans beside it."""
    for check, without in zip(checks, off, strict=True):
        claim = PAPER.claim(check.name)
        yield claim.beside(check, without) if claim.off else check


def _both(epoch: Epoch, what: str) -> tuple[float, ...]:
    """Figures of an epoch, then those of its linear scan that differ."""
    own, linear = (getattr(each, what) for each in (epoch, epoch.of_linear_scan))
    return (*own, *(linear if what == "speedups" else linear[-1:]))


def _rows(
    predicted: EpochsByCase,
    what: str,
    printed: EpochsByCase = MappingProxyType({}),
    asked: Mapping[Case, Mapping[str, tuple[str, ...]]] = MappingProxyType({}),
) -> Iterator[tuple]:
    """Yield figures of epochs. `what`: the name of their property. `asked`: what asks for an iteration."""
    for case, epoch in predicted.items():
        published = getattr(printed[case], what) if case in printed else ()
        yield _labels(case), _both(epoch, what), published, OK, (), asked.get(case, {})


def _gru_rows(gru: EpochsByCase, asked: Mapping[Case, Mapping[str, tuple[str, ...]]]) -> Iterator[tuple]:
    for case, name in SCOPE.gru.items():
        yield {"set": name, **_labels(case)}, (*gru[case], *_both(gru[case], "speedups")), (), OK, (), asked[case]


def _labels(case: Case) -> dict[str, object]:
    return {"T": case.length, "B": case.batch}


def _by_card(everywhere: Mapping[str, EpochsByCase], cases: Sequence[Case]) -> Iterator[tuple]:
    """Yield the speed-ups of each case, card after card."""
    for case in cases:
        labels = {"set": SCOPE.gru[case]} if case in SCOPE.gru else {}
        yield labels | _labels(case), [gain for epochs in everywhere.values() for gain in _both(epochs[case], "speedups")]


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
        yield {"workload": what, "cards": " and ".join(dict.fromkeys(called(name) for own in names for name in own))}, greatest, printed


def called(card: str) -> str:
    """The name of a card in tables, which says whether a figure of the paper is in its preset."""
    return f"{card} (fitted)" if card in SCOPE.fitted else card


def _training(cards: Mapping[str, EpochsByCase]) -> Iterator[tuple]:
    """Yield what the curves of figures 7 and 13 take on the smaller card, whose points are one for each epoch."""
    card, epochs = next(iter(cards.items()))
    for case, epoch in epochs.items():
        if case in (*SCOPE.gru, Case(RNN, SCOPE.length, BATCH)) and case.batch == BATCH:
            count = SCOPE.epochs[case.model]
            printed = [None, None, PAPER.values("greatest")["RNN, T = 1000, B = 16"][0] if case.model == RNN else None]
            labels = {"workload": f"GRU, set {SCOPE.gru[case]}" if case in SCOPE.gru else "RNN", **_labels(case), "epochs": count}
            yield labels | {"card": called(card)}, (count * epoch.baseline_s, count * epoch.bppsa_s, epoch.speedups[0]), printed


def _checks(predicted: claims.Predicted, why_at_one_point: Callable[[], str] = str) -> Iterator[Check]:
    """Judge epochs, those of Blelloch's scan or of linear ones."""
    rnn, gru, cards = predicted.rnn, predicted.gru, predicted.cards
    by_length, by_batch = SCOPE.by_length, SCOPE.by_batch
    small, large = cards.values()
    yield claims.as_in_table_4(predicted.held_out, published())
    yield claims.beyond_workers({card: epochs[by_length[-1]] for card, epochs in cards.items()} | {PAPER.machine: rnn[by_length[-1]]})
    yield from claims.greatest_gains(*cards.values())
    yield claims.fitted_point(small[Case(RNN, SCOPE.length, BATCH)])
    yield PAPER.claim("length").trend([(case.length, rnn[case].speedups[0]) for case in by_length])
    yield claims.bound_by_workers([(case.length, rnn[case].backwards[1]) for case in by_length])
    yield PAPER.claim("batch").trend([(case.batch, rnn[case].speedups[1]) for case in by_batch])
    yield claims.longer_sets_gain_more(gru)
    yield claims.larger_card_peaks_later(*([(case.length, epochs[case].speedups[1]) for case in by_length] for epochs in (large, small)))
    yield claims.larger_card_falls_slower(*([(case.batch, epochs[case].speedups[1]) for case in by_batch] for epochs in (large, small)))
    yield claims.larger_card_is_faster({case: (large[case], small[case]) for case in by_length})
    yield claims.greatest_differ(*claims.points(cards), reason=why_at_one_point)


def on_devices(count: int, report: Callable[[str], None]) -> claims.OnDevices:
    """Simulate `count` devices that share twice as many layers: scans, and GPipe as in appendix B.

    GPipe has as many microbatches as devices, each as large as the scan's batch, and repeats forwards. Bytes are those that a method needs:
    a value from its first access to its last, without the time until the stream that allocated it has its memory again.
    """
    machine, model = load_machine(SCOPE.cluster, devices=count), f"{chains.__file__}:tanh_{2 * count}"
    report(f"{2 * count} layers on {count} devices")
    jobs = {
        f"{SCAN},devices={count}": BATCH,
        f"gpipe:microbatches={count},rematerialize=on": BATCH * count,
        f"{LINEAR},devices={count}": BATCH,
    }
    most, seconds = [], []
    for text, batch in jobs.items():
        strategy, options = strategies.parse(text)
        plan = strategy.plan(Job(model, batch), machine, None, options)
        timeline = forecast(plan, Target.of(CostModel(machine))).timeline
        most.append(max(peaks(memory_over_time(plan, timeline.spans)).values()))
        seconds.append(timeline.step_s)
    return claims.OnDevices(most[0], most[1], seconds[0], seconds[2])


def _devices_chart(held: Mapping[int, tuple[int, int]]) -> Chart:
    lines = (line(name, ((count, own[position]) for count, own in held.items())) for position, name in enumerate(("BPPSA", "GPipe")))
    return PAPER.chart("devices", [Panel(title="", series=tuple(lines))])


def _charts(everywhere: Mapping[str, EpochsByCase], gru: EpochsByCase) -> Iterator[Chart]:
    """Figures 8 and 9, with the points of table 4: epochs and speed-ups over the length and the mini-batch."""
    table_4 = published()
    machine = next(iter(everywhere))
    for over, charts, cases in (
        ("length", ("lengths", "length-speedups"), SCOPE.by_length),
        ("batch", ("batches", "batch-speedups"), sorted(SCOPE.by_batch)),
    ):
        shown = {**everywhere, f"{machine}, linear scan": _of_linear_scans(everywhere[machine])}
        lines = {card: {getattr(case, over): epochs[case] for case in cases} for card, epochs in shown.items()}
        printed = {PUBLISHED: {getattr(case, over): table_4[case] for case in cases if case in table_4}}
        yield PAPER.chart(
            charts[0],
            _panels({name: own for name, own in lines.items() if name.startswith(machine)} | printed, "totals"),
            length=SCOPE.length,
        )
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


def judged(paper: Paper) -> Paper:
    """Return the paper with the claims that executed trainings decide, and with their curves."""
    tables = {table.name: table for table in paper.tables}
    decided = {check.name: check for check in claims.of_executions(tables)}
    charts = {chart.name: chart for chart in paper.charts}
    if "losses" in tables:
        charts["losses"] = _losses_chart(tables["losses"])
    checks = tuple(decided.get(check.name, check) for check in paper.checks)
    return paper.model_copy(update={"checks": checks, "charts": tuple(charts.values())})


def _losses_chart(table: Table) -> Chart:
    panels = []
    for network, rows in claims.by_network(table).items():
        lines = {
            name: [(int(row.labels["after"]), loss) for row in rows if (loss := row.predicted(name)) is not None]
            for name in ("back-propagation", "BPPSA")
        }
        panels.append(Panel(title=network, series=tuple(line(name, points) for name, points in lines.items())))
    return PAPER.chart("losses", panels)


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
