"""The step time of hybrid training, against the paper's speed-up n / (n_p / X + n - n_p)."""

import pytest

from simulator.engine.costs.cost import MEASURED, Cost
from simulator.engine.simulation import simulate
from simulator.engine.switch import Simulated, shown_iterations, switching
from simulator.model.job import Job
from simulator.papers import pipeline_model
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from tests.support import models
from tests.support.pipeline_plans import costs, devices, plan_pipeline

JOB = Job(f"{models.__file__}:chain", 8)


def equal_devices(part):
    """Costs with which each device computes for 1 s per iteration, in one op; all else takes nothing.

    It is a product that needs the newest weights, or the gradient of the stage after: nothing of an iteration runs beside it.
    """
    on_path = [task for task in part.tasks if "/addmm" in task.name or "/mm.dX" in task.name]
    first = {task.device: task.name for task in reversed(on_path)}
    seconds = [float(first[task.device] == task.name) for task in part.tasks]
    return [Cost(task.name, s, s, MEASURED) for task, s in zip(part.tasks, seconds, strict=True)]


def simulated(plan, machine):
    run = []
    for part in plan.sequence:
        steady = simulate(part, machine, equal_devices(part))
        short = simulate(part, machine, equal_devices(part), iterations=shown_iterations(part))
        run.append(Simulated(part, steady, short, last=part is plan.sequence[-1]))
    return run


@pytest.mark.parametrize("pairs", [1, 2, 3])
@pytest.mark.parametrize("share", [0.5, 0.67])
def test_unfolded_the_speedup_is_the_papers_but_for_the_drain(pairs, share):
    """A device needs 1 s for each of an iteration's 2K + 1 parts. A period takes 1 s, an iteration alone 2K + 1, the drain 2K."""
    machine = devices(2 * pairs + 1)
    plan = plan_pipeline(f"hybrid-pipeline:on=unfolded,stages={pairs + 1},pipelined={share}", JOB, machine)
    first, then = simulated(plan, machine)
    assert (first.steady.step_s, then.steady.step_s) == pytest.approx((1, 2 * pairs + 1))
    assert first.drain_s == pytest.approx(2 * pairs)
    timeline = switching([first, then], [first.at_switch, then.at_switch])
    stale = round(share * 100)
    run_s = (2 * pairs + 1) * 100 / pipeline_model.hybrid(stale, 100, 2 * pairs + 1)
    assert timeline.step_s * 100 == pytest.approx(run_s + 2 * pairs)
    assert timeline.bubble_share == pytest.approx(1 - 100 / (run_s + 2 * pairs))


def test_half_and_half_on_two_devices_is_a_third_faster():
    """The bound 1.33 of the paper: X = K + 1 on K + 1 devices. The drain is what the last mini-batch still needs: at most K + 1 s."""
    machine = devices(2)
    first, then = simulated(plan_pipeline("hybrid-pipeline:iterations=10000", JOB, machine), machine)
    assert (first.steady.step_s, then.steady.step_s) == pytest.approx((1, 2))
    assert 0 < first.drain_s <= 2
    step_s = switching([first, then], [first.at_switch, then.at_switch]).step_s
    assert step_s == pytest.approx((5000 * 1 + first.drain_s + 5000 * 2) / 10000)
    assert 2 / step_s == pytest.approx(4 / 3, rel=1e-3)


def test_the_timeline_shows_the_switch():
    """Last periods with stale weights, the drain, and the first ones without; nothing overlaps across the switch."""
    machine = devices(2)
    plan = plan_pipeline("hybrid-pipeline", JOB, machine)
    timeline = forecast(plan, Target(machine, costs(plan, machine))).timeline
    before = [span for span in timeline.spans if not span.task.endswith("'")]
    after = [span for span in timeline.spans if span.task.endswith("'")]
    assert max(span.end_s for span in before) <= min(span.start_s for span in after)
    assert timeline.window_s[0] < min(span.start_s for span in before if span.period == 4)  # the first period of the drain
    assert {span.iteration for span in timeline.window()} >= {3, 4}
    assert {span.iteration for span in before} == {0, 1, 2, 3}
    assert {span.iteration for span in after} == {4, 5}
    assert [link.start_s for link in timeline.critical_path] == sorted(link.start_s for link in timeline.critical_path)


def test_the_parts_of_a_step_add_up_and_the_interval_holds_it():
    machine = devices(2)
    plan = plan_pipeline("hybrid-pipeline:then=gpipe", JOB, machine)
    model = costs(plan, machine)
    predicted = forecast(plan, Target(machine, model))
    step_s = predicted.timeline.step_s
    assert sum(predicted.parts.on_path.values()) == pytest.approx(step_s)
    assert predicted.sensitivity.step_s == pytest.approx(step_s)
    assert predicted.interval_s[0] <= step_s <= predicted.interval_s[1]
    alone = [forecast(part, Target(machine, model)) for part in plan.sequence]
    assert min(f.timeline.step_s for f in alone) < step_s < max(f.timeline.step_s for f in alone)
    assert predicted.peak_bytes == {name: max(f.peak_bytes[name] for f in alone) for name in plan.devices}
