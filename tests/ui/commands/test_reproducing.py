"""`schedcast reproduce`: published and predicted figures of papers, with few jobs each."""

import json
from dataclasses import replace
from functools import partial

import pytest

from calibrate import reproduction as measuring
from calibrate.cpu.testbed import CpuTestbed
from calibrate.validation import Outcome
from simulator.machine.presets import machine_names
from simulator.model.job import Job
from simulator.papers import fusion, fusion_claims, turbodl
from simulator.papers import registry as reproduce
from simulator.papers.predicting import BASELINE, PredictedStep, Steps
from simulator.papers.turbodl import ASYNC, CUDNN, TURBODL
from tests.support.html_pages import figures_of_page
from tests.support.sample_runs import comparisons, sample_validation
from traces.documents.reproduction import OK, Figure, Paper, PaperCase, Reproduction, Table
from traces.documents.spans import overlapped_kernel_seconds, overlapped_seconds, phase_stretches
from traces.documents.timeline import Span, Timeline
from traces.errors import Code, Refusal, SchedcastError, UnknownNameError, UnusableFileError
from ui.commands import bench, reproducing
from ui.present import reproductions
from ui.present.blocks import Group
from ui.service.progress import progress_bar

SMALL = fusion.FusionScope(
    phases=("lenet5", 8),
    transformer=("lenet5", 8, (32,)),
    sweeps=(("lenet5", (1, 8, 64)), ("no_such_net", (1,))),
    same_batch=8,
    optimizers=("sgd", "adam"),
    cards=("v100",),
    replicas=("4xtitan-xp", 16),
)
TURBO = turbodl.TurbodlScope(
    networks=(("lenet5", 64), ("no_such_net", 32)),
    by_batch={"lenet5": (8, 16)},
    depths=(("lenet5", 4), ("resnet18", 1)),
    one_batch=2,
    other_machine="k20",
    flops="lenet5",
    places=0.25,
    cluster="p100x4",
    replicas=(("lenet5", 8),),
)


@pytest.fixture
def small(monkeypatch):
    """Both papers with few jobs to predict."""
    monkeypatch.setattr(fusion, "SCOPE", SMALL)
    monkeypatch.setattr(turbodl, "SCOPE", TURBO)


@pytest.fixture(scope="module")
def paper() -> Paper:
    """The fusion paper with few jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fusion, "SCOPE", SMALL)
        return fusion.reproduce(Steps("titan-xp"))


# ---- discovery


def test_papers_are_discovered_and_whole():
    assert {"fusion", "turbodl"} <= set(reproduce.names())
    for name in reproduce.names():
        source = reproduce.get(name)
        assert source.name == name
        assert source.about
        assert source.machine in machine_names()
        assert source.predictions() > 0
        assert callable(source.module.reproduce)
        assert all(published.values for published in source.published.values())
        assert all(isinstance(each, reproduce.Measurement) for gpu in (False, True) for each in source.measurements(gpu))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"source": "Table 2."', '"source": ""', "at published > speed-ups > source: "),
        ('"published": "12 % (figure 3)"', '"published": ""', "at claims > 0 > published: "),
        ('"speed-up": "x"', '"speed-up": "ms"', "at tables > 1 > figures > speed-up: "),
        ('"sign": -1', '"sign": 0', "at claims > 19 > sign: "),
        ('"y_label"', '"y_lable"', "at charts > 1 > y_lable: "),
        ('"name": "fusion",', "", "at name: "),
        ('"same_batch": 32', '"same_batch": "all"', "in its cases, is damaged at same_batch: "),
    ],
)
def test_a_damaged_file_is_refused_with_one_line(monkeypatch, tmp_path, old, new, fault):
    text = (reproduce.FOLDER / "fusion.json").read_text()
    assert old in text
    (tmp_path / "broken.json").write_text(text.replace(old, new, 1))
    monkeypatch.setattr(reproduce, "FOLDER", tmp_path)
    with pytest.raises(UnusableFileError) as raised:
        reproduce.get.__wrapped__("broken").scope(fusion.FusionScope)
    assert fault in str(raised.value)
    assert str(raised.value).endswith("; install schedcast again")
    assert "\n" not in str(raised.value)


def test_an_unknown_paper_is_refused_with_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"unknown paper 'fuson' \(did you mean 'fusion'\?\); expected one of: .*fusion.*, all"):
        reproduce.get("fuson")


# ---- overlapping kernels


def spans(*times: tuple[float, float], phase: str = "forward", period: int = 0) -> list[Span]:
    return [Span(f"t{i}", "cuda:0", str(i), start, end, phase, period=period) for i, (start, end) in enumerate(times)]


@pytest.mark.parametrize(
    ("times", "window", "expected"),
    [
        ([], (0, 10), 0.0),
        ([(0, 10)], (0, 10), 0.0),
        ([(0, 4), (4, 8)], (0, 10), 0.0),
        ([(0, 4), (3, 8)], (0, 10), 1.0),
        ([(0, 8), (2, 5)], (0, 10), 3.0),
        ([(0, 8), (0, 8), (0, 8)], (0, 10), 8.0),
        ([(0, 4), (1, 5), (2, 6)], (0, 10), 4.0),
        ([(0, 2), (1, 3), (7, 9), (8, 12)], (0, 10), 2.0),
        ([(-5, 3), (-1, 2), (9, 20), (9.5, 30)], (0, 10), 2.5),
        ([(-5, -3), (-4, -2), (11, 12), (11, 12)], (0, 10), 0.0),
        ([(1, 1), (0, 4)], (0, 10), 0.0),
    ],
)
def test_overlapped_seconds_are_exact(times, window, expected):
    assert overlapped_seconds(spans(*times), *window) == expected
    assert overlapped_seconds(reversed(spans(*times)), *window) == expected


def test_copies_are_no_kernels():
    kernels, copies = spans((0, 4), (3, 6)), spans((0, 6), phase="transfer")
    assert overlapped_kernel_seconds(Timeline("predicted", (*kernels, *copies), 6.0, (0.0, 6.0))) == 1.0


def test_a_period_is_cut_where_its_phases_end():
    own = (*spans((11, 13), period=1), *spans((13, 16), phase="backward", period=1), *spans((15, 18), phase="update", period=1))
    before = (*spans((1, 4)), *spans((4, 9), phase="backward"), *spans((9, 10), phase="update"))
    next_forward = spans((18, 21), period=2)
    timeline = Timeline("predicted", (*before, *own, *next_forward), 8.0, (10.0, 18.0))
    assert phase_stretches(timeline) == {"forward": 3.0, "backward": 3.0, "update": 2.0}
    assert sum(phase_stretches(timeline).values()) == 8.0


# ---- claims: each can hold and can fail


def points(*rows: tuple[int, float, float, float]) -> fusion.Points:
    return {batch: times for batch, *times in rows}


RISING, FALLING = [(1, 1.1), (2, 1.2), (3, 1.3)], [(1, 1.3), (2, 1.2), (3, 1.1)]


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([1, 2, 3], [4, 5, 9], 1.0), ([1, 2, 3], [9, 5, 4], -1.0), ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
        ([1, 2, 3], [1.0001, 1.0002, 1.0], None), ([1, 2], [1, 2], None),
    ],
)  # fmt: skip
def test_rank_correlation(x, y, expected):
    correlation = reproduce.rank_correlation(x, y)
    assert correlation == (None if expected is None else pytest.approx(expected))


def test_a_trend_within_what_counts_as_equal_is_none():
    rises, falls = (reproduce.Claim(name="n", claim="c", published="p", mechanism="m", reason="r", said="w", sign=sign) for sign in (1, -1))
    assert rises.trend([(1, 1.0), (2, 1.004), (3, 1.008)]).holds is False
    assert rises.trend([(1, 1.0), (2, 1.04), (3, 1.08)]).holds is True
    assert falls.trend([(1, 1.0), (2, 1.04), (3, 1.08)]).holds is False
    assert rises.trend([(1, 1.0), (2, 1.04)]).holds is None


def test_a_claim_about_each_case():
    claim = reproduce.Claim(
        name="n", claim="c", published="p", mechanism="m", reason="r", undecided="none",
        said="{case} {0:.1f} and {1:.1f}", summary="{right} of {count}: {cases}",
        figures=("small", "large"), order=("small", "large"), margin=0.1, within=((1.0, None), (None, 2.0)), tolerance=0.1, rounding=0.05,
    )  # fmt: skip
    check = claim.each({"a": (0.86, 2.24), "b": (1.0, 2.0), "c": (None, 9.0)})
    assert (check.holds, check.said, check.reason) == (True, "2 of 2: a 0.9 and 2.2; b 1.0 and 2.0", "")
    assert check.figures == {"a, small": 0.86, "a, large": 2.24, "b, small": 1.0, "b, large": 2.0}
    for wrong in ((0.84, 2.0), (1.0, 2.26), (1.0, 1.1)):
        assert claim.each({"a": wrong}).holds is False
    assert claim.each({"a": (5.0, 6.0)}, {"a": ((5.0, 5.0), (6.0, 6.0))}).holds is True
    assert claim.each({"a": (5.0, 6.0)}).reason == "r"
    assert (claim.each({"c": (None, 9.0)}).holds, claim.each({}).said) == (None, "none")


def test_saved_time():
    steady = fusion.saved_is_independent(points((1, 1.0, 1.0, 1.0), (8, 2.0, 1.8, 1.7), (64, 9.0, 8.79, 8.7)))
    assert steady.holds is True
    assert steady.reason == ""
    assert steady.figures == {"FF stray": pytest.approx(0.005 / 0.205), "BF stray": pytest.approx(0.0)}
    growing = fusion.saved_is_independent(points((1, 1.0, 1.0, 1.0), (8, 2.0, 1.9, 1.9), (64, 9.0, 8.0, 8.0)))
    assert growing.holds is False
    assert growing.reason
    assert fusion.saved_is_independent(points((1, 1.0, 1.0, 1.0), (8, 1.1, 1.0, 1.0))).holds is None
    assert fusion.saved_is_independent({}).holds is None


def test_parallelism_at_small_batch():
    converging = points((1, 1.0, 1.0, 1.0), (8, 1.2, 1.1, 1.0), (64, 9.0, 8.8, 8.75))
    bound = {"net": {1: 0.5, 8: 0.7}, "other": {8: 1.0}}
    assert fusion.parallelism_helps_small_batches({"net": converging}, bound).holds is True
    behind = points((8, 1.2, 1.0, 1.1), (64, 9.0, 8.8, 8.75))
    assert fusion.parallelism_helps_small_batches({"net": converging, "other": behind}, bound).holds is False
    apart = points((8, 1.2, 1.1, 1.0), (64, 9.0, 8.8, 7.0))
    assert fusion.parallelism_helps_small_batches({"net": apart}, bound).holds is False
    assert fusion.parallelism_helps_small_batches({"net": points((1, 1.0, 1.0, 1.0))}, bound).holds is None


def test_control_at_tiny_batch():
    slower = points((1, 1.0, 1.1, 1.2), (8, 2.0, 1.0, 1.0))
    bound = {"net": {1: 0.5}, "other": {1: 0.97}}
    assert fusion.control_costs_at_tiny_batch({"net": slower}, bound).holds is True
    faster = fusion.control_costs_at_tiny_batch({"net": slower, "other": points((1, 1.0, 1.1, 1.0))}, bound)
    assert (faster.holds, "other 0.909x, 1.000x at 1 (the GPU alone: 97% of the step)" in faster.said) == (False, True)
    assert fusion.control_costs_at_tiny_batch({}, bound).holds is None


def test_curves_fit_on_their_axes():
    inside = {"net": points((1, 0.05, 0.055, 0.06), (8, 0.1, 0.09, 0.085))}
    assert fusion.within_axes(inside, "net", [1.02, 1.15]).holds is True
    assert fusion.within_axes(inside, "net", [1.02, 1.2]).holds is False, "figure 7 ends at 1.15"
    assert fusion.within_axes({"net": points((8, 1.0, 0.5, 0.5))}, "other", []).holds is False, "figure 5 ends at 1.2"
    assert fusion.within_axes({}, "net", []).holds is None


def gains(usual: float, off: float) -> fusion_claims.Gains:
    every = [dict.fromkeys(("FF", "BF one stream", "BF own stream"), gain) for gain in (usual, off, 1.02, 1.0)]
    return fusion_claims.Gains(*every)


def test_gains_of_one_step_hold_by_locality_only_if_they_need_the_cache():
    for own, verdicts in ((gains(1.15, 1.0), {"holds"}), (gains(1.15, 1.145), {"other"}), (gains(1.02, 1.0), {"refuted"})):
        checks = list(fusion_claims.of_table_2(own))
        assert {check.verdict for check in checks} == verdicts
        assert all("without the host's waits 1.020x; with a host that takes no time 1.000x" in check.without for check in checks)
    assert fusion_claims.locality_gains({"card": gains(1.2, 1.0)}, {"card": (3 * 2**20, 0.0004)}).holds is False
    assert fusion_claims.locality_gains({}, {}).holds is None
    assert [fusion_claims.greatest([1.2], [gain]).verdict for gain in (1.0, 1.2)] == ["holds", "other"]
    ordered = {"mobilenet_v2": 1.2, "resnet18": 1.1, "resnet50": 1.05, "vgg19_bn": 1.0}
    assert [fusion_claims.by_model(own, {}, "BF one stream").holds for own in (ordered, ordered | {"resnet18": 1.3}, {})] == [
        True,
        False,
        None,
    ]


def test_the_depth_of_an_iteration_falls_only_with_a_second_stream():
    check = fusion_claims.shallower(fusion_claims.depths("titan-xp"))
    assert (check.holds, check.holds_without) == (True, False)
    assert check.said.startswith("n = 4: baseline 12, FF 12, BF 9; n = 8: ")
    assert "one stream: n = 4: baseline 12, FF 12, BF 12" in check.without


def test_layer_size_and_share():
    assert [fusion.PAPER.claim("layer-size").trend(points).holds for points in (FALLING, RISING)] == [True, False]
    assert [fusion.PAPER.claim("optimizer-share").trend(points).holds for points in (RISING, FALLING)] == [True, False]


def test_turbodl_claims():
    methods, card = turbodl.PAPER.claim("methods"), turbodl.PAPER.claim("card")
    for gains, holds in (({"a": (1.1, 1.2)}, True), ({"a": (1.1, 1.2), "b": (1.1, 1.1)}, False), ({"a": (1.0, 1.2)}, False), ({}, None)):
        assert methods.each(gains).holds is holds
    for gains, holds in (({"a": (1.3, 1.1), "b": (1.1, 1.0)}, True), ({"a": (1.3, 1.1), "b": (1.1, 1.2)}, False), ({}, None)):
        assert turbodl.PAPER.claim("batch").each(gains).holds is holds
    assert [turbodl.PAPER.claim("depth").trend(points).holds for points in (RISING, FALLING)] == [True, False]
    for gains, holds in (({"a": (1.3, 1.1)}, True), ({"a": (1.3, 1.1), "b": (1.1, 1.1)}, False), ({}, None)):
        assert card.each(gains).holds is holds


# ---- fusion


def test_published_figures_of_fusion(small):
    paper = fusion.reproduce(FakeSteps("titan-xp"))
    published = [(row.labels["phase"], round(row.figures[0].published * 1e3, 2)) for row in paper.table("phases").rows]
    assert published[:8] == [
        ("forward", 21.9), ("backward", 55.61), ("optimizer", 16.7), ("total", 94.21),
        ("forward + update", 28.65), ("backward", 55.77), ("total", 84.42), ("forward", 21.99),
    ]  # fmt: skip
    assert published[8:10] == [("backward + update", 58.93), ("total", 80.92)]
    step = [figure.published for row in paper.table("step").rows for figure in row.figures]
    assert step == [0.09877, 0.08452, 1.17, 0.08299, 1.19, 0.08299, 1.19]
    assert [row.figures[1].published for row in paper.table("transformer").rows[1:]] == [1.03, 1.019, 1.019]


def test_published_phases_add_up():
    for phases in fusion.PAPER.values("phases, ms").values():
        assert sum(ms for phase, ms in phases.items() if phase != "total") == pytest.approx(phases["total"], abs=0.005)


def test_predicted_phases_add_up(paper):
    by_schedule: dict[str, list[float]] = {}
    for row in paper.table("phases").rows:
        by_schedule.setdefault(row.labels["schedule"], []).append(row.figures[0].predicted)
    assert len(by_schedule) == 4
    for *parts, total in by_schedule.values():
        assert sum(parts) == pytest.approx(total)


def test_what_the_gains_owe_to_launches(paper):
    usual, free = Steps("titan-xp"), Steps("titan-xp").under(free_launches=True)
    job = fusion.job("lenet5", 8)
    steps = [each.predict(job, [fusion.FF])[fusion.FF].step_s for each in (usual, free)]
    assert steps[1] < steps[0] / 2, "lenet5 waits for the host"
    rows = paper.table("origins").rows
    assert [row.labels["schedule"] for row in rows] == list(fusion.CALLED.values())[1:]
    expected = free.predict(job, [], fusion.LOOP)[fusion.LOOP].step_s / steps[1]
    assert rows[0].predicted("speed-up, free launches") == pytest.approx(expected)
    no_waits = usual.predict(job, fusion.FREE.values())
    assert rows[0].predicted("speed-up, no waits") == pytest.approx(
        no_waits[fusion.FREE["none"]].step_s / no_waits[fusion.FREE["forward"]].step_s
    )


def test_what_cannot_be_predicted_keeps_its_row(paper):
    sweeps = paper.table("sweeps").rows
    assert [(row.labels["model"], row.status) for row in sweeps] == [
        *[("lenet5", OK)] * 3,
        ("no_such_net", "not available: unknown model 'no_such_net'"),
    ]
    trends = [check for check in paper.checks if check.name.startswith(("saved-time", "converging", "tiny", "axes", "layer", "optimizer"))]
    assert [check.holds is None for check in trends] == 2 * [True, False, False, False, True, True]
    assert {check.holds for check in paper.checks if check.name.startswith("models")} == {None}


def test_a_step_beyond_the_cards_memory_is_reported():
    large = PredictedStep(
        step_s=1.0, interval_s=(0.9, 1.1), peak_bytes=20_000_000_000, memory_bytes=12_884_901_888, stretches={}, streams=1, overlapped_s=0.0
    )
    assert large.status == "does not fit: needs 18.6 GiB of 12 GiB"
    assert large.model_copy(update={"peak_bytes": 12_884_901_888}).status == OK


def test_a_step_is_predicted_once():
    told = []
    steps = Steps("titan-xp", told.append)
    job = Job("lenet5", 8, optimizer="adam", form="for")
    first = steps.predict(job, ["forward-fusion"])
    assert list(first) == [BASELINE, "forward-fusion"]
    assert steps.predict(replace(job), ["forward-fusion"])["forward-fusion"] is first["forward-fusion"]
    assert told == ["lenet5-b8"] * 2
    assert steps.shares.guessed == pytest.approx(1.0)
    assert steps.predict(job, ["no-such-strategy"])["no-such-strategy"].code is Code.NAME


def test_progress_counts_every_prediction(small):
    for module, machine in ((fusion, "titan-xp"), (turbodl, "p100")):
        told = []
        module.reproduce(FakeSteps(machine, told.append))
        assert len(told) == module.PAPER.predictions()


# ---- turbodl


class FakeSteps(Steps):
    """Steps with given times: no model is captured, and nothing is simulated."""

    TIMES = {BASELINE: 2.0, CUDNN: 1.5, ASYNC: 1.25, TURBODL: 1.0}

    def __init__(self, machine: str = "p100", progress=lambda text: None):
        super().__init__(machine, progress)

    def on(self, machine):
        return FakeSteps(machine, self._progress)

    def under(self, **changed):
        return self

    def predict(self, job, strategies, over=BASELINE):
        self._progress(job.label)
        if job.model == "no_such_net":
            return {text: Refusal(Code.NAME, "unknown model") for text in (over, *strategies)}
        slow = 0.4 if self.machine_name == "k20" else 0.0
        stretches = {"forward": 0.3, "backward": 0.5, "update": 0.2}
        return {
            text: PredictedStep(
                step_s=self.TIMES.get(text, 1.9) + slow,
                interval_s=(0.9, 1.1),
                peak_bytes=10**9,
                memory_bytes=10**10,
                stretches=stretches,
                streams=3,
                overlapped_s=0.25,
                least_s=0.75,
            )
            for text in dict.fromkeys((over, *strategies))
        }


def test_turbodl_has_both_denominators(small):
    paper = turbodl.reproduce(FakeSteps())
    rows = {row.labels["configuration"]: row for row in paper.table("networks").rows if row.labels["network"] == "lenet5"}
    assert [row.predicted("over one stream") for row in rows.values()] == pytest.approx([1.0, 2 / 1.5, 1.6, 2.0])
    assert [row.predicted("over cuDNN") for row in rows.values()] == pytest.approx([0.75, 1.0, 1.2, 1.5])
    assert [row.figures[2].published for row in rows.values()] == [None, 1.0, None, 1.38]
    streams = paper.table("streams").rows[3]
    assert (streams.predicted("streams"), streams.predicted("overlapped"), streams.predicted("overlapped share")) == (3, 0.25, 0.25)
    machines = paper.table("machines").rows[0]
    assert machines.predicted("p100 gain") == pytest.approx(1.5)
    assert machines.predicted("k20 gain") == pytest.approx(1.9 / 1.4)
    causes = paper.table("causes").rows[0]
    assert (causes.predicted("at least"), causes.predicted("limit"), causes.predicted("over cuDNN")) == (0.75, 2.0, 1.5)
    assert {check.name: check.holds for check in paper.checks}["card"] is True


def test_published_figures_of_turbodl():
    paper = turbodl.reproduce(FakeSteps())
    last = {row.labels["network"]: row.figures[2].published for row in paper.table("networks").rows[3::4]}
    assert last == {
        "lenet5": 1.38,
        "vgg16": 1.27,
        "alexnet_grouped": 1.21,
        "googlenet": 1.30,
        "resnet50": 1.35,
        "caffenet": 1.31,
        "vgg16_cifar": 1.27,
    }
    assert paper.table("networks").rows[18].figures[2].published == 1.15
    assert [row.figures[2].published for row in paper.table("depth").rows] == [1.27, 1.29, 1.35, 1.38, 1.40]
    printed = {row.labels["batch"]: row.figures[2].published for row in paper.table("batch").rows if row.labels["network"] == "vgg16_cifar"}
    assert printed == {"100": 1.27, "200": None, "400": 1.18}
    streams = paper.table("streams").rows[4:8]
    assert [row.figures[0].published for row in streams] == [None, 38, None, 3]
    assert [row.predicted("streams") for row in streams] == [3, 2, 3, 3], "Caffe does not create the default stream"


def test_an_absent_network_is_one_row_with_what_was_published(small):
    last = turbodl.reproduce(FakeSteps()).table("networks").rows[-1]
    assert (last.labels["network"], last.status) == ("no_such_net", "not available: unknown model")
    assert all(figure.predicted is None for figure in last.figures)


# ---- tables, page and command


def test_a_published_quantity_has_columns_for_both_and_for_the_ratio():
    figures = (Figure(name="step", unit="s", predicted=0.012, published=0.01, interval=(0.01, 0.02)), Figure(name="gain", unit="x"))
    rows = (PaperCase(labels={"model": "a"}, figures=figures), PaperCase(labels={"model": "b"}, figures=(), status="not available: why"))
    cells = reproductions.cells(Table(name="t", title="T", about="", rows=rows))
    assert cells[0] == {
        "model": "a", "step ms published": "10.0", "step ms predicted": "12.0", "step pred. / publ.": "1.20",
        "step 90 % interval": "10.0 to 20.0", "gain": "-", "note": "",
    }  # fmt: skip
    assert cells[1]["step ms predicted"] == "-"
    assert cells[1]["note"] == "not available: why"


@pytest.mark.thorough
def test_the_command_prints_one_document_and_writes_a_folder(small, tmp_path, capfd):
    reproducing.reproduction("fusion", fresh=True, out=tmp_path / "new" / "fusion", as_json=True)
    shown = capfd.readouterr()
    document = json.loads(shown.out)
    assert document["schema"] == "schedcast.reproduction/1"
    assert [each["name"] for each in document["papers"]] == ["fusion"]
    checks = document["papers"][0]["checks"]
    assert [each["claim"] for each in document["claims"]] == [check["claim"] for check in checks]
    assert {each["verdict"] for each in document["claims"]} <= {"holds", "other", "refuted", "open", "identity"}
    assert all(each["published"] and each["mechanism"] for each in document["claims"])
    assert all(each["cause"] for each in document["claims"] if each["verdict"] == "refuted")
    total = next(row for row in document["papers"][0]["tables"][1]["rows"] if row["labels"]["phase"] == "total")
    assert set(total["figures"][0]) == {"name", "unit", "predicted", "published", "interval", "ratio"}
    assert total["figures"][0]["ratio"] == pytest.approx(total["figures"][0]["predicted"] / 0.09421)
    folder = tmp_path / "new" / "fusion"
    assert shown.err.splitlines() == [
        f"schedcast: fusion: {fusion.PAPER.predictions()} predictions, which take a minute or more",
        f"report: {folder / 'index.html'}",
    ]
    page = (folder / "index.html").read_text()
    assert "94.2" in page
    assert "does not hold" in page
    pictures = {path.name for path in folder.iterdir()} - {"index.html", "reproduction.json"}
    assert {f"fusion-{name}.svg" for name in ("sweeps", "saved", "layers", "optimizers")} == pictures
    assert all(name in page for name in pictures)
    assert len(figures_of_page(page)) == 4
    assert json.loads((folder / "reproduction.json").read_text()) == document
    assert Reproduction.load(folder / "reproduction.json").document() == document


@pytest.mark.thorough
def test_the_command_shows_tables(small, capsys, monkeypatch):
    monkeypatch.setattr(turbodl, "measurements", lambda gpu: [])
    reproducing.reproduction("turbodl", measure=True)
    shown = capsys.readouterr()
    assert "Each method on top of the one before" in shown.out
    assert "1.380x" in shown.out
    assert "no_such_net 32 + priorities: not available: unknown model 'no_such_net'" in " ".join(shown.out.split())
    assert len(shown.err.splitlines()) == 2
    assert shown.err.splitlines()[1].startswith("schedcast: Nothing was measured for turbodl: it has nothing to measure on this machine")


def test_the_answer_is_that_of_the_package_unless_a_fresh_one_is_asked_for(monkeypatch, capfd):
    """A line says so, and it is the whole document with all claims."""
    monkeypatch.setattr(reproducing, "reproduced", None)
    reproducing.reproduction("all", as_json=True)
    shown = capfd.readouterr()
    document = json.loads(shown.out)
    assert [paper["name"] for paper in document["papers"]] == reproduce.names()
    assert len(document["claims"]) == sum(len(paper["checks"]) for paper in document["papers"])
    assert [line.endswith("that come with this version; --fresh predicts again") for line in shown.err.splitlines()] == [True] * 5


@pytest.mark.thorough
@pytest.mark.parametrize("same", [True, False])
def test_a_measurement_is_shown_beside(small, monkeypatch, paper, tmp_path, same):
    outcome = Outcome(sample_validation([run.result for run in comparisons()]), {}, {}, same, 0)
    monkeypatch.setattr(measuring, "validate", lambda *given, **more: outcome)
    monkeypatch.setattr(CpuTestbed, "measure_machine", lambda self, profile: None)
    looks = []
    with_measurements, numbers = measuring.measure_paper(reproduce.get("fusion"), paper, partial(progress_bar, quiet=True), looks.append)
    assert (len(with_measurements.measured), numbers) == (1, same)
    assert [testbed.identity.kind for testbed in looks] == ["cpu"]
    assert with_measurements.notes[-1].startswith("Measured on this machine: ")
    assert "Measured: resnet50" in reproductions.write(tmp_path, Reproduction(papers=(with_measurements,))).read_text()
    titles = [block.title for block in reproductions.blocks(with_measurements) if isinstance(block, Group)]
    assert any(title.startswith("Measured: resnet50, batch 32") for title in titles)


@pytest.mark.thorough
def test_measuring_says_that_the_machine_is_busy(paper, monkeypatch, capsys):
    """The look is that of the other commands that measure; `--wait` gives it seconds."""
    waits = []
    monkeypatch.setattr(bench, "wait_until_quiet", lambda monitor, wait_s, progress: waits.append(wait_s) or 0.4)
    monkeypatch.setattr(
        measuring, "validate", lambda *given, **more: Outcome(sample_validation([run.result for run in comparisons()]), {}, {}, True, 0)
    )
    monkeypatch.setattr(CpuTestbed, "measure_machine", lambda self, profile: None)
    reproducing._measured(reproduce.get("fusion"), paper, quiet=True, wait_s=7.0)
    assert waits == [7.0]
    assert "busy machine: not a measurement. Other processes took 40 % of the cores" in capsys.readouterr().err


def test_papers_are_listed(schedcast):
    shown = schedcast.call("reproduce")
    assert (shown.status, shown.err) == (0, "")
    assert "turbodl" in shown.out
    document = schedcast.call("reproduce", "--json").document
    assert document["schema"] == "schedcast.papers/1"
    assert {"name": "fusion", "about": fusion.PAPER.about, "machine": "titan-xp"} in document["papers"]


@pytest.mark.parametrize(
    ("given", "fragment"),
    [
        (["fuson"], "unknown paper 'fuson' (did you mean 'fusion'?); expected one of: "),
        (["fusion", "--out", "file"], "cannot write file: it is a file"),
        (["--measure"], "--measure needs a paper"),
        (["--out", "folder"], "--out needs a paper"),
        (["--fresh"], "--fresh needs a paper"),
        (["fusion", "turbodl"], "unexpected extra argument"),
    ],
)
def test_unusable_requests(schedcast, given, fragment):
    (schedcast.folder / "file").touch()
    done = schedcast.call("reproduce", *given)
    assert (done.status, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert fragment in done.err


def test_a_paper_without_measurements_says_so(paper, monkeypatch):
    monkeypatch.setattr(turbodl, "measurements", lambda gpu: [])
    monkeypatch.setattr(measuring, "gpu_here", lambda: None)
    with pytest.raises(SchedcastError, match="nothing to measure on this machine, which has no GPU"):
        measuring.measure_paper(reproduce.get("turbodl"), paper, partial(progress_bar, quiet=True), print)
