"""The fit of costs on measured steps: rows of the shared table become jobs on presets or say why not; what it is scored on is left out."""

import csv

import pytest

from simulator.engine.costs import efficiencies
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.task import UPDATE
from tests.benchmarks import fit_steps
from tests.benchmarks.fit_steps import Group, StepOps, leave_out, step_ops, step_seconds, with_numbers
from tests.benchmarks.measured_steps import MODELS, PRESETS, TABLE, YEARS, Row, plan_of, predicted, read
from tests.benchmarks.step_scores import ScoredRow, group_lines, left_out_lines, total_line
from tests.support.shared_data import shared_folder

COLUMNS = ("source", "gpu", "model", "batch", "image_or_seq", "precision", "layout", "optimizer", "what", "value_ms", "note")
VGG = {
    "source": "rejunity/cnn-benchmarks README.md@13fc69dd", "gpu": "V100-16GB", "model": "vgg16", "batch": "16", "image_or_seq": "32",
    "precision": "fp32", "layout": "NCHW", "optimizer": "none", "what": "fwd+bwd", "value_ms": "76.45", "note": "tier B; Torch7",
}  # fmt: skip
REFUSED = (
    ({"gpu": "2xA100-80GB-SXM4"}, "several GPUs"),
    ({"gpu": "GTX 480"}, "no preset for GTX 480"),
    ({"model": "efficientnet_b0"}, "no workload for efficientnet_b0"),
    ({"precision": "apex-amp-O2-fp16"}, "all of the model in fp16, which is no precision of a job"),
    ({"note": "tier C; may be input-bound"}, "tier C: input-bound or of variable length"),
    ({"optimizer": "RMSprop"}, "no optimizer for RMSprop"),
)


@pytest.fixture
def table(tmp_path):
    """A function that writes a table of rows, each given as what differs from `VGG`, and returns its path."""

    def write(*changes):
        path = tmp_path / TABLE
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows({**VGG, **change} for change in changes)
        return path

    return write


def test_a_row_without_an_optimizer_has_no_update(table):
    (plain, trained), left_out = read(table({}, {"optimizer": "Adam (for-loop)", "batch": "4", "source": "pytorch/benchmark"}))
    assert not left_out
    assert (plain.machine, plain.chip, plain.model, plain.year, plain.published_s) == ("v100", "V100", "vgg16", 2017, 0.07645)
    assert (trained.job.optimizer, trained.job.form, trained.job.batch, trained.year) == ("adam", "for", 4, 2021)
    for row in (plain, trained):
        plan, machine, _ = plan_of(row)
        assert (plan.strategy, machine.name) == ("pytorch", "v100")
        assert any(task.phase == UPDATE for task in plan.tasks) == (row is trained)


def test_a_captured_step_is_a_graph_of_the_baseline(table):
    (row,), _ = read(table({"optimizer": "Adam (for-loop) captured", "model": "resnet18", "batch": "4"}))
    result = predicted(row)
    assert (result.plan.strategy, result.timeline.mode) == ("baseline", "graph")


def test_autocast_and_layout_are_those_of_the_row(table):
    (row,), _ = read(table({"precision": "amp-fp16(native autocast)", "layout": "NHWC"}))
    assert (row.job.precision, row.job.layout, row.mixed) == ("amp-fp16", "nhwc", True)


def test_what_cannot_be_predicted_is_left_out_with_the_reason(table):
    rows, left_out = read(table(*(change for change, _ in REFUSED)))
    assert not rows
    assert [item.why for item in left_out] == [why for _, why in REFUSED]
    assert list(left_out_lines(left_out))[1:] == [f"| {why} | 1 |" for _, why in REFUSED]


def test_scores_by_group(table):
    rows, _ = read(table({}, {"gpu": "L4"}))
    fast, slow = (ScoredRow(row, factor * row.published_s, (0.05, 0.08)) for row, factor in zip(rows, (0.9, 1.2), strict=True))
    assert [round(item.error, 2) for item in (fast, slow)] == [-0.1, 0.2]
    assert total_line("all", [fast, slow]) == "| all | 2 | 15% | +20% | +5% | 100% |"
    by_gpu = list(group_lines([slow, fast], "GPU"))[1:]
    assert by_gpu == ["| l4 | 1 | 20% | +20% | +20% | 100% |", "| v100 | 1 | 10% | -10% | -10% | 100% |"]


def test_every_name_of_the_table_leads_to_a_preset_and_a_workload():
    from simulator.model.workloads import registry as workloads

    assert set(MODELS.values()) <= set(workloads.names())
    assert all(load_machine(name) for name in PRESETS.values())


def test_most_of_the_shared_table_can_be_predicted():
    folder = shared_folder("")
    if folder is None or not (folder / TABLE).is_file():
        pytest.skip("no public measurements beside the repository; set SCHEDCAST_SHARED")
    rows, left_out = read(folder / TABLE)
    assert len(rows) + len(left_out) == 286
    assert len(rows) >= 135
    assert {row.source for row in rows} <= set(YEARS)


# The fit of costs on whole steps prices a step as the engine does, and leaves out what it is scored on.


GPU_TABLE = efficiencies.table()["gpu"]


def row(gpu: str, machine: str, workload: str, number: int = 0, published_s: float = 1.0) -> Row:
    """A row of a table: forward and backward of 16 small images."""
    job = Job(workload, 16, image_size=64, optimizer="sgd")
    return Row(number, "test", 2020, gpu, machine, workload, job, False, "eager", published_s, False)


@pytest.mark.parametrize(("gpu", "machine"), [("V100", "v100"), ("Titan-X-Pascal", "titan-x-pascal")])
def test_a_step_takes_as_long_as_the_engine_says(gpu, machine):
    entry = row(gpu, machine, "vgg11")
    step = step_ops(entry)
    reached = load_machine(machine).memories[0].reached
    assert step.hbm == (reached == 1.0)
    assert step_seconds(step.with_gddr(reached), GPU_TABLE) == pytest.approx(predicted(entry).timeline.step_s, rel=0.05)


def test_numbers_of_the_fit_become_rows_of_the_table():
    rows = with_numbers(
        GPU_TABLE, {**fit_steps.START, **fit_steps.HALF_START, "winograd": 0.5, "idle": 0.25}, {"fp32": 0.2, "tf32": 0.1, "amp-fp16": 0.4}
    )
    assert rows.row(efficiencies.WINOGRAD).compute["fp32"] == (0.5, 0.2, "published-steps")
    assert rows.row("conv").idle.value == rows.row(efficiencies.WINOGRAD).idle.value == 0.25
    assert rows.row("conv").compute["tf32"].error == 0.1
    assert rows.row(efficiencies.HALF).memory.error == 0.4
    assert rows.row("matmul") == GPU_TABLE.row("matmul")


def test_a_chip_is_predicted_without_its_own_steps(monkeypatch):
    groups = (Group("conv", "fp32", 1e12, 1e9, 1, 1e9, None, 1.0, 1),)
    site = step_ops(row("V100", "v100", "vgg11")).site
    steps = [StepOps(row(gpu, "v100", "vgg11", n), site, True, groups, 1, 0.0) for n, gpu in enumerate(("V100", "V100-PCIe-32GB", "A100"))]
    seen = []
    monkeypatch.setattr(
        fit_steps,
        "fit",
        lambda some, rows: (
            seen.append([s.row.chip for s in some]) or fit_steps.Fitted({**fit_steps.START, **fit_steps.HALF_START}, 1.0, 0.0)
        ),
    )
    assert set(leave_out(steps, [], GPU_TABLE, "chip")) == {0, 1, 2}
    assert seen == [["V100", "V100"], ["A100"]]
