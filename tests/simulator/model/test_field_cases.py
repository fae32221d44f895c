"""Models of the shared cases: what users predicted and got wrong numbers for."""

from functools import cache

import pytest

from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.forecast import Forecast, answer
from simulator.predict.target import Target
from tests.support.shared_data import shared_folder
from traces.errors import required

CASES = shared_folder("cases")
pytestmark = pytest.mark.skipif(CASES is None, reason="no shared/data/cases beside the repository")


@cache
def job_of(case: str, batch: int, **fields: str) -> Job:
    """The job of a case's model, `FILE:FACTORY`. It is captured once for all strategies."""
    return Job(str(CASES / "models" / case), batch, **fields).on("gpu")


def predicted(case: str, batch: int, machine: str, strategy: str, **fields: str) -> Forecast:
    """The prediction of a case's model by a strategy."""
    return required(answer(job_of(case, batch, **fields), strategy, Target.of(CostModel(load_machine(machine)))))


@pytest.mark.parametrize(
    ("machine", "strategy"),
    [
        ("a100", "baseline"),
        ("2xa100", "data-parallel"),
        ("2xa100", "pytorch-ddp"),
        ("2xa100", "fsdp:tp=2"),
        ("4xa100", "1f1b:stages=2,tp=2"),
    ],
)
def test_attention_with_dropout_costs_as_much_as_without(machine, strategy):
    """PyTorch's fused kernel drops weights. Divided heads would have masks of their own, which the plan says."""
    dropped, kept = (
        predicted(f"attention_dropout.py:{factory}", 16, machine, strategy, precision="amp", optimizer="adamw", form="fused")
        for factory in ("with_dropout", "without")
    )
    assert dropped.timeline.step_s == pytest.approx(kept.timeline.step_s, rel=0.1)
    assert max(dropped.peak_bytes.values()) == pytest.approx(max(kept.peak_bytes.values()), rel=0.1)
    assert "attention_dropout" not in kept.plan.semantics
    assert ("predicted only" in dropped.plan.semantics.get("attention_dropout", "")) is ("tp=" in strategy)


def test_a_memory_layout_changes_no_type():
    peaks = [predicted("half_nhwc.py:make", 8, "a100", "baseline", layout=layout).peak_bytes for layout in ("nchw", "nhwc")]
    assert peaks[1] == pytest.approx(peaks[0], rel=1e-3)
