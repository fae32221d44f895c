"""The fit of costs on whole steps prices a step as the engine does, and leaves out what it is scored on."""

import math

import pytest

from simulator.engine.costs import efficiencies
from simulator.engine.costs.cost import Z_90
from simulator.model.job import Job
from simulator.predict.scoreboard.predicted import predicted
from simulator.predict.scoreboard.rows import Row
from tools import fit_steps
from tools.fit_steps import leave_out, with_numbers
from tools.step_work import Group, StepOps, Work, step_ops, step_seconds

GPU_TABLE = efficiencies.table()["gpu"]
FIGURES = {"gddr": 0.7, "gddr6": 0.9, "gddr6x": 1.0, "boost": 1.2}


def row(machine: str, workload: str, number: int = 0, published_s: float = 1.0, **more) -> Row:
    """A row of a table: forward and backward of 16 small images."""
    job = Job(workload, 16, image_size=64, optimizer="sgd", **more)
    return Row(number, "test", machine, machine, workload, job, False, "eager", published_s, False)


@pytest.mark.parametrize(
    ("machine", "precision", "layout"),
    [("v100", "fp32", "nchw"), ("titan-x-pascal", "fp32", "nchw"), ("rtx3070", "amp", "nhwc"), ("a100", "tf32", "nchw")],
)
def test_a_step_takes_as_long_as_the_engine_says(machine, precision, layout):
    entry = row(machine, "vgg11", precision=precision, layout=layout)
    step = step_ops(entry)
    assert step_seconds(step, GPU_TABLE) == pytest.approx(predicted(entry).timeline.step_s, rel=0.05)


def test_many_steps_are_priced_as_each_of_them():
    steps = [step_ops(row(machine, "resnet18", precision="amp")) for machine in ("v100", "rtx3070", "rtx4090", "titan-x-pascal")]
    for names in (fit_steps.START, fit_steps.TENSOR_START):
        together = Work(steps, GPU_TABLE, FIGURES, names).seconds(GPU_TABLE, FIGURES)
        assert together == pytest.approx([step_seconds(step._replace(host_s=0.0), GPU_TABLE, FIGURES) for step in steps])


def test_numbers_of_the_fit_become_rows_of_the_table():
    numbers = {**fit_steps.START, **fit_steps.TENSOR_START, "winograd": 0.512, "idle": 0.25}
    rows = with_numbers(GPU_TABLE, numbers, {"fp32": 0.2, "tf32": 0.1, "mixed": 0.4})
    assert rows.row(efficiencies.WINOGRAD).compute["fp32"] == (0.51, 0.2, "published-steps")
    assert rows.row("conv").idle.value == rows.row(efficiencies.WINOGRAD).idle.value == 0.25
    assert rows.row("conv").fed == rows.row(efficiencies.HALF).fed == (1500, 0.4, "published-steps")
    assert rows.row("matmul") == GPU_TABLE.row("matmul")
    tensor = with_numbers(GPU_TABLE, fit_steps.TENSOR_START)
    assert tensor.row(efficiencies.WINOGRAD) == GPU_TABLE.row(efficiencies.WINOGRAD), "the numbers of the first stage stay"


def test_fitted_numbers_are_those_that_made_the_steps():
    rows = with_numbers(GPU_TABLE, {"fed": 1200.0, "half memory": 0.4, "channels-last memory": 0.7})
    made, figures = [], FIGURES | {"gddr6": 0.8, "boost": 1.3}
    for number, (machine, layout) in enumerate((m, lay) for m in ("v100", "rtx3070", "rtx-a4000", "rtx2080ti") for lay in ("nchw", "nhwc")):
        step = step_ops(row(machine, "vgg11", number, precision="amp-fp16", layout=layout))._replace(host_s=0.0, launches=0)
        seconds = step_seconds(step, rows, figures)
        made.append(step._replace(row=step.row._replace(published_s=seconds)))
    fitted = fit_steps.fit(made, GPU_TABLE, again=False)
    again = with_numbers(GPU_TABLE, fitted.numbers)
    assert [step_seconds(step, again, fitted.numbers) for step in made] == pytest.approx([step.row.published_s for step in made], rel=0.05)


@pytest.mark.thorough
def test_a_chip_is_predicted_without_its_own_steps(monkeypatch):
    groups = (Group("conv", "fp32", 1e12, 1e9, 1, 1e9, None, 1.0, 1),)
    site, seen = step_ops(row("v100", "vgg11")).site, []
    machines = ("v100", "v100-pcie-32gb", "a100")
    steps = [StepOps(row(name, "vgg11", n), site, "hbm", False, groups, 1, 0.0) for n, name in enumerate(machines)]

    def fit(some, rows, again):
        seen.append([step.row.chip for step in some])
        return fit_steps.Fitted({**fit_steps.START, **fit_steps.TENSOR_START, "gddr": 0.7}, 0.0)

    monkeypatch.setattr(fit_steps, "fit", fit)
    assert set(leave_out(steps, [], GPU_TABLE, "chip")) == {("", 0), ("", 1), ("", 2)}
    assert seen == [["v100", "v100"], ["a100"]]


def test_a_host_is_known_as_well_as_those_of_other_sources():
    site = step_ops(row("v100", "vgg11")).site

    def step(source: str, number: int, host_s: float) -> StepOps:
        """A step of 20 ms and 1,000 launches, of which the GPU takes 1 ms."""
        return StepOps(row("v100", "vgg11", number, 0.02)._replace(source=source), site, "hbm", False, (), 1000, host_s)

    steps = [step("a", 0, 0.02 * math.e**0.1), step("b", 1, 0.02 / math.e**0.1), step("c", 2, 0.005)]
    device_s = {one.place: 0.001 for one in steps}
    assert fit_steps.host_errors(steps, device_s) == pytest.approx({"a": 0.1, "b": 0.1, "c": math.log(4)})
    two_hosts = 2.92  # Student's t of two at 95 %
    assert Z_90 * fit_steps.host_error("c", steps, device_s) == pytest.approx(0.1 * two_hosts, rel=1e-3)
    assert fit_steps.host_error("c", steps[:1], device_s) > fit_steps.host_error("c", steps, device_s), "fewer hosts are less sure"
    busy = device_s | {("", 0): 0.019}
    assert set(fit_steps.host_errors(steps, busy)) == {"b", "c"}, "a GPU that is busy most of the time says little of the host"
