"""The fit of costs on whole steps prices a step as the engine does, and leaves out what it is scored on."""

import pytest

from simulator.engine.costs import efficiencies
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from tests.benchmarks import fit_steps
from tests.benchmarks.fit_steps import Group, StepOps, leave_out, step_ops, step_seconds, with_numbers
from tests.benchmarks.measured_steps import Row, predicted

TABLE = efficiencies.table()["gpu"]


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
    assert step_seconds(step.with_gddr(reached), TABLE) == pytest.approx(predicted(entry).timeline.step_s, rel=0.05)


def test_numbers_of_the_fit_become_rows_of_the_table():
    rows = with_numbers(
        TABLE, {**fit_steps.START, **fit_steps.HALF_START, "winograd": 0.5, "idle": 0.25}, {"fp32": 0.2, "tf32": 0.1, "amp-fp16": 0.4}
    )
    assert rows.row(efficiencies.WINOGRAD).compute["fp32"] == (0.5, 0.2, "published-steps")
    assert rows.row("conv").idle.value == rows.row(efficiencies.WINOGRAD).idle.value == 0.25
    assert rows.row("matmul").compute["tf32"].error == 0.1
    assert rows.row("matmul").compute["bf16"].error == rows.row(efficiencies.HALF).memory.error == 0.4
    assert rows.row("matmul").memory == TABLE.row("matmul").memory


def test_a_chip_is_predicted_without_its_own_steps(monkeypatch):
    groups = (Group("conv", "fp32", 1e12, 1e9, 1, 1e9, 1.0, 1),)
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
    assert set(leave_out(steps, [], TABLE, "chip")) == {0, 1, 2}
    assert seen == [["V100", "V100"], ["A100"]]
