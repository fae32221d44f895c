"""Searches of language models, division by division; and what occupies a memory, in one bar."""

from tests.support.page_samples import prediction
from tests.support.search_samples import of_a_language_model
from traces.documents.comparison import MemoryNeed
from traces.documents.timeline import AtPeak
from ui.present import charts, searches


def test_the_fastest_plan_of_each_division_and_checkpointing_has_a_row():
    result = of_a_language_model()
    rows = searches.configuration_cells(result)
    known = [(row["tp x pp x dp"], row["checkpointing"]) for row in rows]
    assert len(set(known)) == len(known)
    best = result.winner
    assert known[0] == (searches.divided(best, result.devices), best.checkpoint)
    figure = searches.configurations_figure(result)
    assert {name for name, _ in known} == set(figure.data[0].y)
    drawn = [share for row in figure.data[0].z for share in row if share is not None]
    assert max(drawn) <= 100


def test_a_plan_is_divided_by_tensors_stages_and_replicas():
    plan = of_a_language_model().plans[0]
    assert searches.divided(plan.model_copy(update={"options": {"tp": 4, "stages": 2}}), 64) == "4 x 2 x 8"
    assert searches.divided(plan.model_copy(update={"options": {"tp": "auto"}}), 64) == "1 x 1 x 64"


def test_the_parts_of_a_memory_add_up_to_what_is_needed():
    peak = AtPeak(
        device="cuda:0", bytes=30, time_s=0.0, task="a", layer="", phase="", by_kind={"activation": 20, "parameter": 10}, largest=()
    )
    need = MemoryNeed(name="hbm", needed_bytes=45, size_bytes=80, allocated_bytes=30, reserved_bytes=40)
    parts, size = charts.memory_parts(prediction(at_peak=(peak,), memories=(need,)))
    assert parts == [("activations", 20), ("parameters", 10), ("reserved by PyTorch", 10), ("driver and CUDA context", 5)]
    assert (sum(count for _, count in parts), size) == (45, 80)
