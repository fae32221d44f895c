"""BPPSA (Wang et al., 2020): back-propagation through recurrent layers as a parallel scan, on a V100 and on the paper's two other cards."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from simulator.papers.bppsa_epochs import BASELINE, FITTED, GRU, RNN, SCAN, Case, Epoch, Epochs, Workloads, fit, with_fitted
from simulator.papers.pipeline_trainings import Trained
from simulator.papers.predicting import Steps
from simulator.papers.registry import Measurement, line
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
    other cards by what it calls them, the smaller one first. `epochs`: those of the curves in figures 7 and 13, by model.
    `cluster`: a machine for scans over several numbers of `devices`. `kept`: see `bppsa_sparse.KEPT`.
    `stale`: trainings in pairs, plain ones and PipeDream's (appendix C).
    """

    lengths: tuple[int, ...]
    length: int
    batches: tuple[int, ...]
    sets: tuple[tuple[str, int], ...]
    set_batches: tuple[int, ...]
    constants: dict[str, str]
    cards: dict[str, str]
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
    held = {count: peak_bytes(count, steps.report) for count in SCOPE.devices}
    steps.report(bppsa_sparse.MODEL)
    chain = bppsa_sparse.operators()
    scan = bppsa_sparse.steps(chain)
    hosts = (machine.hosts[0], early.hosts[0])
    fits = (({"constant": SCOPE.constants[name]}, [getattr(host, name) for host in hosts]) for name in FITTED)
    asked = {case: steps.asks(case.job, BASELINE, SCAN) for case in (*cases, *SCOPE.gru)}
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
        PAPER.table("devices", (({"devices": count, "layers": 2 * count}, own) for count, own in held.items())),
        PAPER.table("cards", _by_card(everywhere, cases), machine=steps.machine_name),
        PAPER.table("gru-cards", _by_card(everywhere, tuple(SCOPE.gru)), machine=steps.machine_name),
        *bppsa_sparse.tables(scan, chain),
    )
    greatest = claims.greatest_differ(*claims.points(cards), reason=lambda: claims.why_at_one_point(places, cases, workloads))
    alike = bppsa_sparse.steps_are_like_operators(scan, chain)
    checks = (*_checks(rnn, gru, cards), greatest, claims.memory_is_constant(held), alike, *claims.of_executions({}))
    charts = (*_charts(everywhere, gru), _devices_chart(held), bppsa_sparse.chart(scan, chain))
    return PAPER.paper(steps, tables, checks, charts)


def _rows(
    predicted: EpochsByCase,
    what: str,
    printed: EpochsByCase = MappingProxyType({}),
    asked: Mapping[Case, Mapping[str, tuple[str, ...]]] = MappingProxyType({}),
) -> Iterator[tuple]:
    """Yield figures of epochs. `what`: the name of their property. `asked`: what asks for an iteration."""
    for case, epoch in predicted.items():
        published = getattr(printed[case], what) if case in printed else ()
        yield _labels(case), getattr(epoch, what), published, OK, (), asked.get(case, {})


def _gru_rows(gru: EpochsByCase, asked: Mapping[Case, Mapping[str, tuple[str, ...]]]) -> Iterator[tuple]:
    for case, name in SCOPE.gru.items():
        yield {"set": name, **_labels(case)}, (*gru[case], *gru[case].speedups), (), OK, (), asked[case]


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
    yield claims.bound_by_workers([(case.length, rnn[case].backwards[1]) for case in by_length])
    yield PAPER.claim("batch").trend([(case.batch, rnn[case].speedups[1]) for case in by_batch])
    yield claims.longer_sets_gain_more(gru)
    small, large = cards.values()
    yield claims.larger_card_peaks_later(*([(case.length, epochs[case].speedups[1]) for case in by_length] for epochs in (large, small)))
    yield claims.larger_card_falls_slower(*([(case.batch, epochs[case].speedups[1]) for case in by_batch] for epochs in (large, small)))


def peak_bytes(count: int, report: Callable[[str], None]) -> tuple[int, int]:
    """Return the peak bytes of a device among `count` that share twice as many layers: of a scan, and of GPipe as in appendix B.

    GPipe has as many microbatches as devices, each as large as the scan's batch, and repeats forwards. The figure counts what a method
    needs: a value from its first access to its last, without the time until the stream that allocated it has its memory again.
    """
    machine, model = load_machine(SCOPE.cluster, devices=count), f"{chains.__file__}:tanh_{2 * count}"
    report(f"{2 * count} layers on {count} devices")
    most = []
    for text, batch in ((f"bppsa:scan=blelloch,devices={count}", BATCH), (f"gpipe:microbatches={count},rematerialize=on", BATCH * count)):
        strategy, options = strategies.parse(text)
        plan = strategy.plan(Job(model, batch), machine, None, options)
        spans = forecast(plan, Target.of(CostModel(machine))).timeline.spans
        most.append(max(peaks(memory_over_time(plan, spans)).values()))
    return most[0], most[1]


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
