"""The schedule that a plan follows: it is the one that the plan was made of."""

import pytest

from simulator.model.job import Job
from simulator.strategies import interleaved_1f1b
from simulator.strategies.pipeline import grid_csv, orders
from simulator.strategies.pipeline.grid_csv import schedule_of
from tests.support.applicable import core_groups
from tests.support.jobs import MLP, planned
from tests.support.places import SUPPORT
from tests.support.torch_orders import runtime, simulated
from traces.errors import SchedcastError

ORDERS = {
    "gpipe": orders.gpipe_order(2, 4),
    "1f1b": orders.one_f_one_b_order(2, 4),
    "interleaved-1f1b:per_device=1": interleaved_1f1b.order(2, 4, 1),
}


def plan_of(spec: str, model: str = MLP):
    return planned(spec, Job(model, 8), core_groups())


@pytest.mark.parametrize("spec", ORDERS)
def test_every_action_is_found_again(spec):
    assert schedule_of(plan_of(spec)) == ORDERS[spec]


@pytest.mark.parametrize("spec", ["gpipe", "1f1b", "interleaved-1f1b:per_device=1", "zero-bubble", "zero-bubble:memory=free"])
def test_torchs_runtime_loads_what_is_written(tmp_path, spec):
    schedule = schedule_of(plan_of(spec))
    path = tmp_path / "schedule.csv"
    path.write_text(grid_csv.write(schedule))
    loaded = runtime(schedule)
    loaded._load_csv(str(path), format="compute_only")
    assert simulated(loaded), "torch's own check of sends and receives"


def test_a_first_layer_has_no_gradient_by_its_input_but_a_place_in_the_schedule():
    """What stage 0 computes in its backward is all by its weights; torch's runtime expects both halves."""
    plan = plan_of("zero-bubble:microbatches=2,placement=1", f"{SUPPORT / 'mlp.py'}:wide")
    assert "0I0" not in {task.action for task in plan.tasks}
    assert [str(action) for action in schedule_of(plan).ranks[0]] == ["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"]


def test_plans_that_follow_no_schedule():
    with pytest.raises(SchedcastError, match="pipedream works on several steps at once"):
        schedule_of(plan_of("pipedream"))
    with pytest.raises(SchedcastError, match=r"the plan of baseline follows no schedule .* has no actions"):
        schedule_of(plan_of("baseline"))
