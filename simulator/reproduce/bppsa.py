"""BPPSA (Wang et al., 2020): back-propagation through recurrent layers as a parallel scan, on a V100."""

from collections.abc import Iterator

from simulator.job import Job
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.reproduce import bppsa_flops, bppsa_sparse, bppsa_trends
from simulator.reproduce.bppsa_cases import BATCH, OUTLIER, RNN, TABLE_4, Case, Epoch, Scope
from simulator.reproduce.bppsa_charts import charts
from simulator.reproduce.bppsa_model import SCAN, Constants, Epochs, Workloads, fit
from simulator.reproduce.bppsa_tables import (
    TimesByCase,
    backward_table,
    constants_table,
    epochs_table,
    greatest_table,
    gru_table,
    machines_table,
    speedups_table,
)
from simulator.reproduce.predicting import Steps
from simulator.reproduce.registry import Measurement
from traces.reproduction import BppsaReproduction, Check, GruEpoch, Paper, RnnEpoch

NAME = "bppsa"
ABOUT = "BPPSA: back-propagation of recurrent layers as a parallel scan, on a V100"
MACHINE = "v100"
TITLE = "BPPSA: Scaling Back-propagation by Parallel Scan Algorithm"
REFERENCE = "Wang, Bai, Pekhimenko 2020, https://arxiv.org/abs/1907.10134"
FITTED_ON = f"table 4 (V100, B = {BATCH}): seconds per epoch of forward, baseline and BPPSA at its {len(TABLE_4)} lengths"
#: The fit that is tested uses the lengths up to this one, and predicts the others.
FITTED_TO = 300
SCOPE = Scope()
ALONE = "Total minus forward, as in appendix G."
UNSEEN = "The fit does not use these lengths."
NOTES = (
    "These steps are bound by launches, which no data sheet describes: six constants are fitted on table 4. The additional time of levels"
    " and Jacobians comes from their FLOPs and bytes, the card's data sheet and how well ops use other GPUs.",
    f"In table 4 the backward of BPPSA at T = {OUTLIER} takes as long as at 30000: an outlier of the paper itself, shown but not scored.",
    "Other mini-batches and the GRU follow from the same constants: a mini-batch changes bytes, FLOPs and iterations per epoch; a GRU's"
    " step is assumed to have as many launches as an RNN's, and loading a mini-batch is assumed to take the same time for any size.",
    "A GRU's gates are computed again and its Jacobians are made by the framework's ops; an RNN's are made by a kernel of BPPSA.",
    "The pruned VGG-11 keeps 3 % of every layer's weights at random positions. The paper prunes by magnitude (See et al. 2016),"
    " for which a trained network is needed.",
    "Speed-ups on RTX 2070 and RTX 2080 Ti depend on those machines' hosts, about which table 4 says nothing.",
)


def predictions() -> int:
    """Return the number of workloads that are planned, including the pruned network."""
    return len({*SCOPE.by_length, *SCOPE.by_batch, *SCOPE.gru, *published()}) + 1


def published() -> dict[Case, Epoch]:
    """Return table 4 by case."""
    return {Case(RNN, length, BATCH): epoch for length, epoch in TABLE_4.items()}


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
    rnn, other = ({case: predicted.of(case) for case in cases} for predicted in (epochs, other_epochs))
    gru = {case: epochs.of(case) for case in SCOPE.gru}
    held_out = [(case, early_epochs.of(case)) for case in SCOPE.by_length if case.length > FITTED_TO]
    by_length, by_batch = ([(case, rnn[case]) for case in group] for group in (SCOPE.by_length, SCOPE.by_batch))
    steps.report(bppsa_flops.MODEL)
    chain = bppsa_flops.operators()
    scan = bppsa_flops.steps(chain)
    return Paper(
        name=NAME,
        title=TITLE,
        reference=REFERENCE,
        machine=steps.machine_name,
        setting=f"Predicted for {steps.machine_name}: Adam in its for-loop form, fp32. Constants fitted on {FITTED_ON}.",
        shares=None,
        tables=(
            constants_table(constants, early, FITTED_TO),
            epochs_table("lengths", f"RNN, B = {BATCH}: seconds of an epoch", "Published: table 4.", by_length, TABLE_4),
            backward_table("backward", f"RNN, B = {BATCH}: seconds of an epoch's backward alone", ALONE, by_length, TABLE_4),
            speedups_table("speed-ups", f"RNN, B = {BATCH}: speed-up of BPPSA", "Published: from table 4.", by_length, TABLE_4),
            epochs_table("held-out", f"Fitted on T <= {FITTED_TO} only: seconds of an epoch", UNSEEN, held_out, TABLE_4),
            backward_table("held-out-backward", f"Fitted on T <= {FITTED_TO} only: the backward", f"{UNSEEN} {ALONE}", held_out, TABLE_4),
            epochs_table("batches", f"RNN, T = {SCOPE.length}: seconds of an epoch", "By mini-batch; only B = 16 is fitted.", by_batch, {}),
            speedups_table("batch-speed-ups", f"RNN, T = {SCOPE.length}: speed-up of BPPSA", "By mini-batch.", by_batch, {}),
            gru_table(SCOPE, gru),
            greatest_table(SCOPE, rnn, gru, steps.machine_name),
            machines_table(SCOPE, rnn, other, steps.machine_name),
            bppsa_sparse.sparsity_table(),
            bppsa_sparse.memory_table(),
            bppsa_sparse.steps_table(scan),
            bppsa_sparse.operators_table(chain),
        ),
        checks=(*_checks(rnn, gru, other), bppsa_sparse.steps_are_like_operators(scan, chain)),
        charts=(*charts(SCOPE, rnn, gru), bppsa_sparse.chart(scan, chain)),
        notes=NOTES,
    )


def _checks(rnn: TimesByCase, gru: TimesByCase, other: TimesByCase) -> Iterator[Check]:
    by_length, by_batch = SCOPE.by_length, SCOPE.by_batch
    yield bppsa_trends.grows_with_length([(case.length, rnn[case].speedup) for case in by_length])
    yield bppsa_trends.bound_by_workers([(case.length, rnn[case].bppsa_s - rnn[case].forward_overhead_s) for case in by_length])
    yield bppsa_trends.falls_with_batch([(case.batch, rnn[case].backward_speedup) for case in by_batch])
    yield bppsa_trends.longer_sets_gain_more(_shortest_and_longest(gru))
    named = {f"T = {case.length}, B = {case.batch}": times for case, times in rnn.items()}
    overall, backward = ({name: getattr(times, what) for name, times in named.items()} for what in ("speedup", "backward_speedup"))
    yield bppsa_trends.greatest_differ(overall, backward)
    lengths, batches = (
        [[(getattr(case, what), times[case].backward_speedup) for case in cases] for times in (rnn, other)]
        for what, cases in (("length", by_length), ("batch", by_batch))
    )
    yield bppsa_trends.larger_card_peaks_later(*lengths)
    yield bppsa_trends.larger_card_falls_slower(*batches)


def _shortest_and_longest(gru: TimesByCase) -> dict[int, tuple[float, float]]:
    """Return by mini-batch the backward's speed-up on the first and on the last set."""
    by_batch: dict[int, list[float]] = {}
    for case in SCOPE.gru:
        by_batch.setdefault(case.batch, []).append(gru[case].backward_speedup)
    return {batch: (gains[0], gains[-1]) for batch, gains in by_batch.items()}


def document(paper: Paper) -> BppsaReproduction:
    """Return the document of the paper, with its epochs as flat lists."""
    epochs = {(row.labels["T"], row.labels["B"]): row for name in ("lengths", "batches") for row in paper.table(name).rows}
    rnn = [
        RnnEpoch(T=int(length), B=int(batch), **{f"{name.lower()}_s": row.predicted(name) for name in ("forward", "baseline", "BPPSA")})
        for (length, batch), row in epochs.items()
    ]
    gru = [
        GruEpoch(
            set=row.labels["set"],
            B=int(row.labels["B"]),
            forward_s=row.predicted("forward"),
            forward_overhead_s=row.predicted("forward + overhead"),
            baseline_s=row.predicted("baseline"),
            bppsa_s=row.predicted("BPPSA"),
        )
        for row in paper.table("gru").rows
    ]
    return BppsaReproduction(papers=(paper,), fitted_on=FITTED_ON, rnn=tuple(rnn), gru=tuple(gru))


def measurements(gpu: bool) -> list[Measurement]:
    """Return the paper's own job on a GPU, or a job with shorter sequences on a CPU."""
    if gpu:
        return [Measurement(Case(RNN, SCOPE.length, BATCH).job, (SCAN, "bppsa"), "the paper's job on another card")]
    return [Measurement(Job(RNN, BATCH, image_size=100, optimizer="adam"), (SCAN, "bppsa"), "shorter sequences, on a CPU's cores")]
