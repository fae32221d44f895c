"""Damaged plans and captured graphs: used, or refused before anything runs."""

import json

from hypothesis import given

from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.capture import cache
from simulator.model.job import Job
from simulator.plan import json as plan_json
from simulator.plan.editor import order_csv
from simulator.plan.editor.editor import ScheduleEditor
from simulator.plan.editor.order import Order
from simulator.plan.text import outline
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from tests.support.fuzzing import damaged, damaged_text, fuzzed, sound
from tests.support.jobs import planned
from tests.support.small_plans import copied, forward_fused, machine
from traces.errors import LONGEST
from traces.files import read_json

PLANS = [forward_fused(), copied()]


def use(plan) -> None:
    """Check, price and simulate a plan, and write it down again."""
    toy = machine(2)
    plan.validate(toy)
    for alone in plan.sequence:  # the engine simulates each by itself
        alone.validate(toy)
        forecast(alone, Target.of(CostModel(toy)))
    outline(plan)
    assert plan_json.load(json.loads(json.dumps(plan_json.dump(plan)))) == plan


@fuzzed(150)
@given(damaged(plan_json.dump(PLANS[0])) | damaged(plan_json.dump(PLANS[1])))
def test_a_damaged_plan_is_used_or_refused(document):
    with sound("plan", document):
        use(plan_json.load(document))


@fuzzed(60)
@given(damaged_text(order_csv.write(Order.of(PLANS[0]))))
def test_a_damaged_order_is_followed_or_refused(text):
    with sound("order", text):
        for fault in ScheduleEditor(PLANS[0], machine(2)).faults(order_csv.parse(text)):
            assert len(fault.words) <= LONGEST, fault.words


def test_a_damaged_graph_in_the_cache_is_used_or_captured_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDCAST_CACHE", str(tmp_path))
    cache.store(("job",), Job("lenet5", 2).graph())
    path = next(tmp_path.rglob("*.json.gz"))
    sample = read_json(path, "graph")
    target = load_machine("h100")

    @fuzzed(40)
    @given(damaged(sample))
    def check(document):
        path.write_text(json.dumps(document))
        with sound("graph", document):
            graph = cache.load(("job",))
            if graph is not None:
                job = Job("lenet5", 2)
                monkeypatch.setattr(Job, "graph", lambda *_, **__: graph)
                try:
                    forecast(planned("baseline", job, target), Target.of(CostModel(target)))
                finally:
                    monkeypatch.undo()
                    monkeypatch.setenv("SCHEDCAST_CACHE", str(tmp_path))

    check()
