"""The tables of the BPPSA paper's recurrent workloads, with published and predicted figures."""

from collections.abc import Collection, Iterable, Mapping

from simulator.reproduce.bppsa_cases import (
    BATCH,
    GREATEST_BACKWARD,
    GREATEST_GRU_BACKWARD,
    GREATEST_GRU_OVERALL,
    GREATEST_OVERALL,
    RNN,
    RTX_2070_BACKWARD,
    RTX_2070_OVERALL,
    Case,
    Epoch,
    Scope,
)
from simulator.reproduce.bppsa_model import Constants, Times
from traces.reproduction import Figure, Row, Table

#: Predicted epochs by case.
TimesByCase = Mapping[Case, Times]
_WHAT = {
    "iteration_s": "an iteration: Python, loading data, reading the loss",
    "op_s": "an op that the framework launches",
    "forward_step_s": "a step of a recurrent layer's forward in cuDNN",
    "backward_step_s": "a step of its backward in cuDNN",
    "backward_call_s": "calling this backward, in addition to its steps",
    "launch_s": "a kernel of BPPSA: a level, Jacobians, products with the scan's results",
}


def constants_table(constants: Constants, held_out: Constants, fitted_to: int) -> Table:
    """The fitted constants, and those that are fitted on lengths up to `fitted_to`."""
    rows = []
    for name, what in _WHAT.items():
        both = {"fitted": constants, f"T <= {fitted_to}": held_out}
        figures = tuple(Figure(name=which, unit="s", predicted=getattr(values, name)) for which, values in both.items())
        rows.append(Row(labels={"constant": what}, figures=figures))
    about = "Least squares of relative errors of table 4; all other times come from FLOPs, bytes and the data sheet."
    return Table(name="constants", title="Times that do not depend on the amount of computation", about=about, rows=tuple(rows))


def epochs_table(name: str, title: str, about: str, predicted: Iterable[tuple[Case, Times]], published: Mapping[int, Epoch]) -> Table:
    """Totals: forward, baseline, BPPSA. `published`: by length."""
    rows = []
    for case, times in predicted:
        epoch = published.get(case.length)
        figures = (
            Figure(name="forward", unit="s", predicted=times.forward_s, published=epoch and epoch.forward_s),
            Figure(name="baseline", unit="s", predicted=times.baseline_s, published=epoch and epoch.baseline_s),
            Figure(name="BPPSA", unit="s", predicted=times.bppsa_s, published=epoch and epoch.bppsa_s),
        )
        rows.append(Row(labels=_labels(case), figures=figures))
    return Table(name=name, title=title, about=about, rows=tuple(rows))


def backward_table(name: str, title: str, about: str, predicted: Iterable[tuple[Case, Times]], published: Mapping[int, Epoch]) -> Table:
    """The backward alone: total minus forward. `published`: by length."""
    rows = []
    for case, times in predicted:
        epoch = published.get(case.length)
        figures = (
            Figure(name="baseline", unit="s", predicted=times.baseline_s - times.forward_s, published=epoch and epoch.baseline_backward_s),
            Figure(name="BPPSA", unit="s", predicted=times.bppsa_s - times.forward_overhead_s, published=epoch and epoch.bppsa_backward_s),
        )
        rows.append(Row(labels=_labels(case), figures=figures))
    return Table(name=name, title=title, about=about, rows=tuple(rows))


def speedups_table(name: str, title: str, about: str, predicted: Iterable[tuple[Case, Times]], published: Mapping[int, Epoch]) -> Table:
    """The speed-ups of the whole epoch and of the backward alone. `published`: by length."""
    rows = []
    for case, times in predicted:
        epoch = published.get(case.length)
        figures = (
            Figure(name="overall", unit="x", predicted=times.speedup, published=epoch and epoch.speedup),
            Figure(name="backward", unit="x", predicted=times.backward_speedup, published=epoch and epoch.backward_speedup),
        )
        rows.append(Row(labels=_labels(case), figures=figures))
    return Table(name=name, title=title, about=about, rows=tuple(rows))


def _labels(case: Case) -> dict[str, str]:
    return {"T": str(case.length), "B": str(case.batch)}


def gru_table(scope: Scope, predicted: TimesByCase) -> Table:
    """Figure 9, whose bars have no numbers."""
    rows = []
    for case, name in scope.gru.items():
        times = predicted[case]
        figures = (
            Figure(name="forward", unit="s", predicted=times.forward_s),
            Figure(name="forward + overhead", unit="s", predicted=times.forward_overhead_s),
            Figure(name="baseline", unit="s", predicted=times.baseline_s),
            Figure(name="BPPSA", unit="s", predicted=times.bppsa_s),
            Figure(name="overall", unit="x", predicted=times.speedup),
            Figure(name="backward", unit="x", predicted=times.backward_speedup),
        )
        rows.append(Row(labels={"set": name, "T": str(case.length), "B": str(case.batch)}, figures=figures))
    about = (
        "Predicted only; no figure of the GRU is fitted. Overhead: the gates, which are computed again, and the Jacobians, both in the"
        " forward (appendix E); the backward's speed-up leaves it out, as the paper does."
    )
    return Table(name="gru", title="GRU on audio features, seconds of an epoch", about=about, rows=tuple(rows))


def greatest_table(scope: Scope, rnn: TimesByCase, gru: TimesByCase, machine: str) -> Table:
    """Section 5's greatest speed-ups, on other cards."""
    example = rnn.get(Case(RNN, 1000, BATCH))
    rows = (
        _greatest("RNN, greatest", rnn.values(), GREATEST_OVERALL, GREATEST_BACKWARD, "RTX 2070 and RTX 2080 Ti"),
        _greatest("RNN, T = 1000, B = 16", [example] if example else [], RTX_2070_OVERALL, RTX_2070_BACKWARD, "RTX 2070"),
        _greatest("GRU, greatest", gru.values(), GREATEST_GRU_OVERALL, GREATEST_GRU_BACKWARD, "either"),
    )
    about = f"Published for RTX 2070 (36 SMs) and RTX 2080 Ti (68 SMs) on other hosts, predicted for {machine}: not the same quantity."
    return Table(name="greatest", title="Speed-ups compared with those of other cards", about=about, rows=rows)


def _greatest(what: str, epochs: Collection[Times], overall: float, backward: float, card: str) -> Row:
    figures = (
        Figure(name="overall", unit="x", predicted=max((times.speedup for times in epochs), default=None), published=overall),
        Figure(name="backward", unit="x", predicted=max((times.backward_speedup for times in epochs), default=None), published=backward),
    )
    return Row(labels={"workload": what, "published card": card}, figures=figures)


def machines_table(scope: Scope, predicted: TimesByCase, other: TimesByCase, machine: str) -> Table:
    """Section 5.1's comparison of two GPUs, for two other GPUs."""
    rows = []
    for case in dict.fromkeys((*scope.by_length, *scope.by_batch)):
        figures = tuple(
            Figure(name=f"{name} {what}", unit="x", predicted=value)
            for name, times in ((machine, predicted[case]), (scope.other_machine, other[case]))
            for what, value in (("overall", times.speedup), ("backward", times.backward_speedup))
        )
        rows.append(Row(labels=_labels(case), figures=figures))
    about = "Both with the host and the launches of table 4's machine: only FLOP/s, bandwidth and cache differ."
    return Table(name="machines", title=f"{scope.other_machine} compared with {machine}", about=about, rows=tuple(rows))
