"""`schedcast reproduce bppsa`: the recurrent workloads of the BPPSA paper, with three figures of the host fitted on its table 4."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.presets import load_machine
from simulator.papers import bppsa, bppsa_claims, bppsa_sparse
from simulator.papers import registry as reproduce
from simulator.papers.bppsa import BATCH, PAPER
from simulator.papers.bppsa_epochs import BASELINE, FITTED, GRU, RNN, SCAN, Case, Epoch, Epochs, Workloads, fit, with_fitted
from simulator.papers.predicting import Steps
from simulator.plan.bodies.csr.mask import Mask
from simulator.plan.bodies.csr.product import ProductPattern
from simulator.plan.bodies.csr.rules import ConvolutionRule, LinearRule
from simulator.strategies import registry as strategies
from traces.documents.reproduction import BppsaReproduction, Figure, PaperCase, Reproduction, Table
from ui.commands import reproducing
from ui.present import reproductions as reproduction_tables

SEEN = 300
TABLE_4 = {case.length: epoch for case, epoch in bppsa.published().items()}
#: The length at which the paper's own backward of BPPSA takes as long as at three times this length.
OUTLIER = 10000
SMALL = bppsa.SCOPE.model_copy(
    update={"lengths": (10, 1000, 3000), "batches": (64, 16), "sets": (("S", 12), ("L", 40)), "set_batches": (4, 16), "devices": (2, 4, 8)}
)


@pytest.fixture(scope="module")
def v100():
    return load_machine("v100")


@pytest.fixture(scope="module")
def workloads(v100):
    return Workloads(v100)


@pytest.fixture(scope="module")
def early(v100, workloads):
    """The machine whose host is fitted on lengths up to 300."""
    return bppsa.fitted(v100, workloads, SEEN)


@pytest.fixture(scope="module")
def unseen(workloads, early):
    """Predicted epochs by length, for the lengths that the fit does not use."""
    epochs = Epochs(early, workloads)
    return {length: epochs.epoch(Case(RNN, length, BATCH)) for length in TABLE_4 if length > SEEN}


@pytest.fixture
def small(monkeypatch):
    """A small scope, with two small layers instead of the pruned network."""
    monkeypatch.setattr(bppsa, "SCOPE", SMALL)
    monkeypatch.setattr(bppsa_sparse, "operators", lambda: [operator("2", 4, 3), operator("1", 5, 4)])


# ---- the fit, and lengths that it does not use


def test_the_fit_meets_what_it_has_seen(workloads, early):
    epochs = Epochs(early, workloads)
    for length, published in TABLE_4.items():
        if length <= SEEN:
            assert epochs.epoch(Case(RNN, length, BATCH)).totals == pytest.approx(published.totals, rel=0.06)


@pytest.mark.parametrize("length", [1000, 3000, 10000, 30000])
def test_totals_of_unseen_lengths_are_within_10_percent(unseen, length):
    assert unseen[length].totals == pytest.approx(TABLE_4[length].totals, rel=0.1)


@pytest.mark.parametrize("length", [1000, 3000, 30000])
def test_the_backward_alone_of_unseen_lengths_is_within_30_percent(unseen, length):
    assert length != OUTLIER
    assert unseen[length].backwards == pytest.approx(TABLE_4[length].backwards, rel=0.3)


def test_the_preset_has_what_table_4_gives(v100, workloads):
    """If this fails, the launches of a step have changed: write what `fit` returns to the host of 2016 in machines.json."""
    assert fit(bppsa.published(), v100, workloads) == pytest.approx([getattr(v100.hosts[0], name) for name in FITTED], rel=0.02)


def test_the_fit_recovers_the_figures_that_made_the_epochs(v100, workloads):
    true = (1.2e-5, 1.1e-5, 8e-4)
    epochs = Epochs(with_fitted(v100, true), workloads)
    cases = [Case(RNN, length, BATCH) for length in (10, 30, 100, 300)]
    assert fit({case: epochs.epoch(case) for case in cases}, v100, workloads) == pytest.approx(true, rel=1e-4)


# ---- one model: what `predict` says is what is compared with the paper


def iteration_s(machine, case: Case, text: str) -> float:
    strategy, options = strategies.parse(text)
    plan = strategy.plan(case.job, machine, None, options)
    return simulate(plan, machine, CostModel(machine).resolve(plan), iterations=1).step_s


def test_an_epoch_is_the_iterations_that_predict_simulates_and_loading_their_batches(v100, workloads):
    case, host = Case(RNN, 1000, BATCH), v100.hosts[0]
    epoch = Epochs(v100, workloads).epoch(case)
    for text, epoch_s in ((BASELINE, epoch.baseline_s), (SCAN, epoch.bppsa_s)):
        assert epoch_s == pytest.approx(case.iterations * (iteration_s(v100, case, text) + host.batch_s + BATCH * host.sample_s))


def test_predict_and_search_see_the_published_step_and_choose_a_scan_with_levels(v100):
    """Table 4: 53.33 s for 2,000 iterations of back-propagation, 29.29 s of BPPSA."""
    case, model = Case(RNN, 1000, BATCH), CostModel(v100)
    assert iteration_s(v100, case, BASELINE) == pytest.approx(53.33 / 2000, rel=0.05)
    strategy, options = strategies.parse("bppsa")
    chosen = strategy.plan(case.job, v100, model, options)
    assert chosen.semantics["scan_level"] > 0
    assert simulate(chosen, v100, model.resolve(chosen)).step_s == pytest.approx(29.29 / 2000, rel=0.06)


def test_levels_beat_the_linear_scan_of_a_long_sequence(v100):
    linear, levels = (iteration_s(v100, Case(RNN, 30000, BATCH), f"bppsa:scan={scan}") for scan in ("linear", "blelloch"))
    assert levels < linear - 1e-3


def test_only_a_gru_has_an_overhead_in_its_forward(v100, workloads):
    epochs = Epochs(v100, workloads)
    rnn, gru = epochs.epoch(Case(RNN, 10, BATCH)), epochs.epoch(Case(GRU, 12, 4))
    assert rnn.forward_overhead_s == rnn.forward_s
    assert gru.forward_s < gru.forward_overhead_s < gru.bppsa_s
    (added,) = set(workloads.plans(Case(GRU, 12, 4)).forward_overhead.tasks) - set(workloads.plans(Case(GRU, 12, 4)).forward.tasks)
    names = [step.body.target.split(".")[1] for step in added.body.steps]
    assert (len(names), names.count("bmm"), added.writes[0].shape) == (44, 2, (11, 4, 20, 20))


def test_an_epoch_has_whole_iterations():
    assert [Case(RNN, 10, batch).iterations for batch in (2, 16, 256)] == [16000, 2000, 125]
    assert [Case(GRU, 259, batch).iterations for batch in (16, 32, 64)] == [420, 210, 105]


def test_a_longer_sequence_and_a_smaller_mini_batch_take_longer(unseen, v100, workloads):
    for earlier, later in pairwise(unseen.values()):
        assert all(a < b for a, b in zip(earlier, later, strict=True))
    epochs = Epochs(v100, workloads)
    halves = [epochs.epoch(Case(RNN, 30, batch)) for batch in (64, 32, 16)]
    for fewer, more in pairwise(halves):
        assert all(a < b <= 2 * a for a, b in zip(fewer, more, strict=True))


def test_a_gpu_with_less_bandwidth_on_the_same_host_is_no_faster(v100, workloads):
    case, other = Case(RNN, 30000, BATCH), replace(load_machine("rtx2070"), hosts=v100.hosts)
    here, there = (Epochs(machine, workloads).epoch(case) for machine in (v100, other))
    assert all(a <= b for a, b in zip(here, there, strict=True))
    assert here.bppsa_s < there.bppsa_s


# ---- claims: each can hold and can fail


def test_claims():
    rising, falling = [(1, 1.1), (2, 1.2), (3, 1.3)], [(1, 1.3), (2, 1.2), (3, 1.1)]
    assert [PAPER.claim("length").trend(points).holds for points in (rising, falling, rising[:2])] == [True, False, None]
    assert [PAPER.claim("batch").trend(points).holds for points in (rising, falling, rising[:2])] == [False, True, None]
    flat, steep = [(10, 1.0), (100, 1.1), (1000, 9.0)], [(10, 1.0), (100, 9.0), (1000, 90.0)]
    assert [bppsa_claims.bound_by_workers(points).holds for points in (flat, steep, flat[:2])] == [True, False, None]
    assert [PAPER.claim("sets").each(gains).holds for gains in ({"a": (2.0, 3.0)}, {"a": (2.0, 2.0)}, {})] == [True, False, None]
    peaks = {"a": 2.0, "b": 1.0}
    assert [bppsa_claims.greatest_differ(peaks, other).holds for other in ({"a": 9.0, "b": 8.0}, {"a": 8.0, "b": 9.0})] == [False, True]
    early, late = [(1, 2.0), (2, 1.0), (3, 1.0)], [(1, 1.0), (2, 2.0), (3, 1.0)]
    assert [bppsa_claims.larger_card_peaks_later(*both).holds for both in ((late, early), (early, late), (rising[:1], rising))] == [
        True, False, None,
    ]  # fmt: skip
    level = [(1, 1.0), (2, 1.96), (3, 2.0)]
    assert [bppsa_claims.larger_card_peaks_later(*both).holds for both in ((rising, level), (level, rising))] == [True, False]
    flat_memory, growing = {2: (5, 1), 4: (6, 2), 8: (6, 3)}, {2: (5, 1), 4: (6, 2), 8: (7, 3)}
    judged = [bppsa_claims.memory_is_constant(peaks).holds for peaks in (flat_memory, growing, {2: (5, 1)})]
    assert judged == [True, False, None]
    slow, fast = [(256, 4.0), (2, 8.0)], [(2, 8.0), (256, 2.0)]
    assert [bppsa_claims.larger_card_falls_slower(*both).holds for both in ((slow, fast), (fast, slow), (slow[:1], fast))] == [
        True, False, None,
    ]  # fmt: skip


def test_the_step_of_rtx_2070_that_two_speed_ups_imply_gives_both(workloads):
    """Section 5.1: 2.73x and 16x. Their quotient is in the preset; that the forward is as long beside the scan is not."""
    overall, backward = Epochs(load_machine("rtx2070"), workloads).epoch(Case(RNN, 1000, BATCH)).speedups
    assert (overall, backward) == (pytest.approx(2.73, rel=0.05), pytest.approx(16, rel=0.1))


def test_an_experiment_says_on_what_the_claim_of_different_points_depends(workloads):
    """The paper's 2.73x and 16x at one point: with f = 1, (1 + b) / (1 + b / 16) = 2.73 for b = 2.0862."""
    places = {card: load_machine(preset) for card, preset in bppsa.SCOPE.cards.items()}
    cases = [Case(RNN, 1000, BATCH), Case(RNN, 30000, BATCH)]
    why = bppsa_claims.why_at_one_point(places, cases, workloads)
    assert "at one point of the RTX 2070 imply that a backward step takes 2.09 forward steps" in why
    assert "the claim holds from 1.3 to 2" in why


# ---- the paper, its document and the command


def test_published_figures():
    assert len(TABLE_4) == 8
    assert TABLE_4[1000].speedups[0] == pytest.approx(1.82, abs=0.005)
    assert TABLE_4[30000].speedups[1] == pytest.approx(52.8, abs=0.05)
    scope = bppsa.SCOPE
    assert len(scope.by_length) == len(scope.by_batch) == 8
    assert list(scope.gru.values()) == ["S"] * 3 + ["M"] * 3 + ["L"] * 3
    assert bppsa.predictions() == 29


def test_the_document_of_the_paper_alone(small, tmp_path, capfd):
    reproducing.reproduction("bppsa", fresh=True, out=tmp_path / "out", as_json=True)
    document = json.loads(capfd.readouterr().out)
    assert (document["schema"], document["paper"]) == ("schedcast.reproduction/1", "bppsa")
    assert "table 4" in document["fitted_on"]
    assert [(row["T"], row["B"]) for row in document["rnn"]] == [(10, 16), (1000, 16), (3000, 16), (1000, 64)]
    assert all(set(row) == {"T", "B", "forward_s", "baseline_s", "bppsa_s"} for row in document["rnn"])
    assert [(row["set"], row["B"]) for row in document["gru"]] == [("S", 4), ("S", 16), ("L", 4), ("L", 16)]
    assert all(row["forward_s"] < row["forward_overhead_s"] < row["bppsa_s"] for row in document["gru"])
    assert [paper["name"] for paper in document["papers"]] == ["bppsa"]
    kept = tmp_path / "out" / "reproduction.json"
    assert BppsaReproduction.load(kept).document() == document
    assert Reproduction.load(kept).papers[0].table("held-out").rows[0].labels == {"T": "1000", "B": "16"}
    pictures = {path.name for path in kept.parent.glob("*.svg")}
    assert pictures == {
        f"bppsa-{name}.svg" for name in ("lengths", "length-speedups", "batches", "batch-speedups", "gru", "devices", "flops")
    }


def test_with_other_papers_the_document_is_that_of_all(small):
    told = []
    paper = bppsa.reproduce(Steps("v100", told.append))
    assert len(told) == 7 + 4 + 3 + 1 + 1 == bppsa.PAPER.predictions()
    assert set(Reproduction(papers=(paper,)).document()) == {"schema", "claims", "papers"}
    assert type(reproduce.get("fusion").document(paper)) is Reproduction


def test_a_table_with_long_times_is_in_seconds():
    rows = [PaperCase(labels={"T": "1"}, figures=(Figure(name="epoch", unit="s", predicted=seconds),)) for seconds in (0.5, 25.0)]
    long = reproduction_tables.cells(Table(name="t", title="T", about="", rows=tuple(rows)))
    assert [row["epoch s"] for row in long] == ["0.500", "25.0"]
    short = reproduction_tables.cells(Table(name="t", title="T", about="", rows=(rows[0],)))
    assert short[0]["epoch ms"] == "500.0"


# ---- sparse Jacobians


def test_sparsity_and_memory_are_exact():
    sparsity, memory, *_ = bppsa_sparse.tables([], [])
    rows = {row.labels["first"]: row for row in sparsity.rows}
    assert {name: row.figures[0].published for name, row in rows.items()} == PAPER.values("sparsity")
    for row in rows.values():
        assert row.figures[0].predicted == pytest.approx(row.figures[0].published, abs=1e-5)
    memory = {row.labels["first"]: row for row in memory.rows}["convolution"]
    assert memory.predicted("dense") == 768 * 2**20
    assert memory.predicted("CSR values") / 2**20 == pytest.approx(6.47, abs=0.01)
    assert memory.predicted("CSR whole") / 2**20 == pytest.approx(12.96, abs=0.01)


def operator(layer: str, rows: int, cols: int) -> bppsa_sparse.Operator:
    return bppsa_sparse.Operator(layer, LinearRule(rows, cols, Mask(0.5, seed=rows)), 2.0 * rows * cols)


def test_steps_of_a_scan_count_the_pairs_that_meet():
    extents = [3, 4, 6, 5, 2]
    chain = [operator(str(number), extents[number - 1], extents[number]) for number in (4, 3, 2, 1)]
    full = {each.layer: dense(each.rule) for each in chain}
    scan = bppsa_sparse.steps(chain, 1)
    assert [(step.span, step.kind) for step in scan] == [
        ("4", "mv"), ("2 to 3", "mm"), ("2 to 3", "mv"), ("3", "mv"), ("1", "mv"),
    ]  # fmt: skip
    product = full["2"] @ full["3"]
    expected = [full["4"].sum(), product.sum(), (product > 0).sum(), full["3"].sum(), full["1"].sum()]
    assert [step.flops for step in scan] == [2.0 * count for count in expected]
    assert [step.dense_flops for step in scan] == [2 * 5 * 2, 2 * 4 * 6 * 5, 2 * 4 * 5, 2 * 6 * 5, 2 * 3 * 4]


def dense(rule) -> np.ndarray:
    pattern = rule.pattern()
    matrix = np.zeros((rule.rows, rule.cols), int)
    matrix[pattern.entry_rows, pattern.indices] = 1
    return matrix


def test_every_step_of_a_linear_scan_is_critical():
    chain = [operator("2", 4, 3), operator("1", 5, 4)]
    scan = bppsa_sparse.steps(chain, 0)
    assert [(step.kind, step.critical) for step in scan] == [("mv", True)] * 2
    assert bppsa_sparse.critical_flops(scan) == sum(each.sparse_flops for each in chain)
    assert list(bppsa_sparse.by_kind(scan)) == ["mv, critical"]


def test_entries_of_a_product_are_those_of_its_pattern(monkeypatch):
    monkeypatch.setattr(bppsa_sparse, "_ROWS", 7)
    product = ProductPattern(ConvolutionRule(2, 5, 5, 3, (3, 3), padding=(1, 1)), ConvolutionRule(3, 5, 5, 2, (3, 3)))
    assert bppsa_sparse.entries(product) == product.nnz
    assert bppsa_sparse.entries(product.left) == product.left.nnz


def test_table_1_has_the_first_layers_on_32x32_images():
    assert [rule.cols for rule in bppsa_sparse.FIRST.values()] == [65_536, 65_536, 16_384]


# ---- headlines, each with a linear scan beside it


def epochs(overall: float, backward: float, linear: float = 1.0) -> Epoch:
    """An epoch whose forward takes what gives these speed-ups; the linear scan's backward takes `linear` times that of Blelloch's."""
    bppsa_backward_s = 1.0
    forward_s = (backward - overall) / (overall - 1) * bppsa_backward_s
    forward, bppsa = forward_s, forward_s + bppsa_backward_s
    return Epoch(forward, forward, forward + backward * bppsa_backward_s, bppsa, forward + linear * bppsa_backward_s)


def test_an_epoch_with_a_linear_scan_has_its_backward():
    epoch = epochs(2.0, 10.0, linear=2.0)
    assert epoch.speedups == pytest.approx((2.0, 10.0))
    assert epoch.of_linear_scan.backwards == pytest.approx((10.0, 2.0))
    assert epoch.of_linear_scan.totals[:2] == epoch.totals[:2]


def test_a_scan_is_compared_with_a_linear_one():
    faster, slower = ({Case(RNN, 10, BATCH): epochs(2.0, 10.0, linear)} for linear in (2.0, 0.9))
    alone = {Case(RNN, 10, BATCH): (1.0, 3.0)}
    assert [bppsa_claims.faster_than_linear(own, alone).holds for own in (faster, slower)] == [True, False]
    assert bppsa_claims.faster_than_linear(faster, alone).said == "T = 10: 2.00x (3.00x of the kernels alone)"
    few, many, worse = (bppsa_claims.OnDevices(1, 1, seconds, 2 * seconds) for seconds in (1.0, 1.5, 9.0))
    flat = bppsa_claims.OnDevices(1, 1, 1.0, 5.0)
    assert [bppsa_claims.on_devices(own).holds for own in ({2: few, 16: flat}, {2: few, 16: many}, {2: few})] == [True, False, None]
    assert worse.scan_s == 9.0


def test_the_depth_of_a_scan_is_counted_on_its_products():
    """Of products over 21 Jacobians, 6 wait for each other, in a linear scan all 21."""
    check = bppsa_claims.depth([21])
    assert (check.verdict, check.said) == ("identity", "n = 21: 6 against 21")


def test_headlines_can_hold_and_fail():
    small = {Case(RNN, 1000, BATCH): epochs(2.75, 16.0), Case(GRU, 259, BATCH): epochs(2.36, 13.4)}
    large = {Case(RNN, 1000, BATCH): epochs(2.0, 108.0), Case(GRU, 259, BATCH): epochs(2.0, 9.0)}
    assert [check.holds for check in bppsa_claims.greatest_gains(small, large)] == [True] * 4
    assert [check.holds for check in bppsa_claims.greatest_gains(large, small)] == [False, False, True, True]
    printed = bppsa.published()
    table_4 = {case: epoch for case, epoch in printed.items() if case.length > SEEN}
    assert bppsa_claims.as_in_table_4(table_4, printed).holds
    slower = {case: epoch._replace(bppsa_s=1.1 * epoch.bppsa_s) for case, epoch in table_4.items()}
    assert bppsa_claims.as_in_table_4(slower, printed).holds is False
    assert [bppsa_claims.beyond_workers({"card": epochs(*gains)}).holds for gains in ((2.0, 9.0), (0.9, 0.5))] == [True, False]
    case = Case(RNN, 1000, BATCH)
    fast, slow = epochs(2.0, 10.0), epochs(2.0, 10.0)._replace(bppsa_s=99.0)
    assert [bppsa_claims.larger_card_is_faster({case: both}).holds for both in ((fast, slow), (slow, fast))] == [True, False]


def test_the_critical_path_of_a_pruned_network_is_judged_against_the_chain():
    chain = [operator("2", 4, 3), operator("1", 5, 4)]
    scan = bppsa_sparse.steps(chain, 0)
    assert bppsa_sparse.critical_path_is_shorter(scan, chain).holds, "sparse products of a linear scan"
    cheap = [replace(each, flops=1.0) for each in chain]
    assert bppsa_sparse.critical_path_is_shorter(scan, cheap).holds is False
    assert [check.verdict for check in bppsa_sparse.counted()] == ["identity", "identity"]
