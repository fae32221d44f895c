"""How accurate presets are known to be, and that no prediction from one claims more."""

import math
from statistics import fmean

import pytest

from simulator.engine.costs.cost import Z_90
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.answers import answers, prediction
from simulator.predict.discrepancy import deviation, published, speedup_accuracy, step_accuracy
from simulator.predict.forecast import forecast, forecast_elsewhere
from simulator.predict.target import Target, preset_target
from simulator.strategies import registry as strategies
from simulator.strategies.registry import family
from tests.support.places import SUPPORT
from tests.support.refusals import refuses
from tools.published import pair, predicted
from traces.documents.training import Curve
from traces.documents.verdict import verdict
from traces.errors import Code

STRATEGIES = ("forward-fusion", "backward-fusion", "turbodl")
ROUNDING = 1e-9
LANGUAGE_MODEL = f"{SUPPORT / 'user_models' / 'language_model.py'}:make"


def test_an_accuracy_of_steps_lets_their_intervals_hold_nine_of_ten_bias_included():
    errors = [math.log(step.predicted / step.published) for step in published().steps]
    errors += [error for item in published().left_out for error in item.errors]
    held = sum(abs(error) <= Z_90 * step_accuracy() for error in errors)
    assert held == pytest.approx(0.9 * len(errors), abs=1)
    assert deviation([*[0.1] * 9, 5.0]) < deviation([*[0.1] * 8, 5.0, 5.0]), "one in ten may be far off"


def test_an_accuracy_of_speedups_is_the_rms_of_the_logarithms_bias_included():
    own = [math.log(s.predicted / s.published) for s in published().speedups if family(s.strategy) == "turbodl"]
    assert speedup_accuracy("turbodl:alpha=1") == pytest.approx(math.sqrt(fmean(e * e for e in own)))
    assert speedup_accuracy("forward-fusion") == speedup_accuracy("backward-fusion") < speedup_accuracy("turbodl")
    everything = [math.log(s.predicted / s.published) for s in published().speedups]
    assert speedup_accuracy("bppsa") == pytest.approx(math.sqrt(fmean(e * e for e in everything)))


def test_the_committed_predictions_are_what_presets_predict():
    """If this fails, `python -m tools.published --write` predicts all of them anew."""
    step = next(step for step in published().steps if step.machine == "titan-xp")
    assert predicted(step).timeline.step_s == pytest.approx(step.predicted, rel=1e-3)
    speedup = next(speedup for speedup in published().speedups if speedup.model == "lenet5")
    base, other = pair(speedup)
    assert base.timeline.step_s / other.timeline.step_s == pytest.approx(speedup.predicted, rel=1e-3)


def test_every_published_figure_names_its_source_and_a_machine():
    for entry in (*published().steps, *published().speedups):
        assert entry.source in published().sources
        assert load_machine(entry.machine)


@pytest.mark.parametrize(("model", "batch"), [("lenet5", 64), (LANGUAGE_MODEL, 8)])
def test_no_interval_of_a_preset_is_narrower_than_its_known_accuracy(model, batch):
    """These steps wait for the host; their intervals were 1 to 2 % wide."""
    job = Job(model, batch)
    forecasts = answers(job, STRATEGIES, preset_target(job, "h200")).forecasts
    base = forecasts["baseline"]
    for text, forecasted in forecasts.items():
        document = prediction(forecasted, base, job.precision)
        low, high = (math.log(bound / document.step_s) for bound in document.interval_s)
        assert min(-low, high) >= Z_90 * step_accuracy() - ROUNDING
        if text == "baseline":
            assert document.speedup_interval is None
            continue
        low, high = (math.log(bound / document.speedup) for bound in document.speedup_interval)
        assert min(-low, high) >= Z_90 * speedup_accuracy(text) - ROUNDING
        if text not in ("pytorch", "pytorch-graph"):  # whose host times are less certain than those of plans, or none
            assert high - low < math.log(document.interval_s[1] / document.interval_s[0]), "the host's error is common to both steps"
        assert document.gain_over_baseline.verdict == verdict(document.speedup_interval)


def test_replicas_on_several_gpus_are_as_uncertain():
    job = Job("lenet5", 64)
    forecasts = answers(job, ["data-parallel"], preset_target(job, "8xh200", 4)).forecasts
    forecast = forecasts["data-parallel"]
    assert {name.rpartition(" ")[0] for name in forecast.sensitivity.deviations} >= {"link latency"}
    low, high = forecast.interval_s
    assert math.log(high / low) >= 2 * Z_90 * step_accuracy()


def test_a_calibrated_step_is_not_widened_by_what_presets_get_wrong():
    job = Job("lenet5", 64)
    forecast = answers(job, [], preset_target(job, "h200")).forecasts["baseline"]
    assert forecast.from_specifications == 1.0
    measured = forecast.shares.model_copy(update={"measured": 1.0, "guessed": 0.0})
    assert type(forecast)(**{**vars(forecast), "shares": measured}).from_specifications == 0.0


# Predictions for one machine of what is trained on another.


JOB = Job("lenet5", 8, 16)


def step_of(text: str, machine) -> float:
    strategy, options = strategies.parse(text)
    model = CostModel(machine)
    return forecast(strategy.plan(JOB, machine, model, options), Target(machine, model)).timeline.step_s


def trained(text: str):
    strategy, options = strategies.parse(text)
    machine = load_machine("this-cpu")
    return strategy.plan(JOB, machine, CostModel(machine), options)


def test_a_simulated_pipeline_has_its_devices_on_the_other_machine():
    machine, text = load_machine("2xgtx1060"), "stale-pipeline:on=simulated,placement=1"
    step_s = forecast_elsewhere(text, {}, trained(text), JOB, Target.of(CostModel(machine))).timeline.step_s
    assert step_s == step_of("stale-pipeline:placement=1", machine)
    assert step_s < step_of(text, machine)


def test_the_cuts_are_those_that_train():
    """They balance this CPU, and not the other machine."""
    machine, text = load_machine("2xgtx1060"), "stale-pipeline:on=simulated"
    plan = trained(text)
    step_s = forecast_elsewhere(text, {}, plan, JOB, Target.of(CostModel(machine))).timeline.step_s
    assert step_s == step_of(f"stale-pipeline:placement={plan.semantics['placement']}", machine)


def test_a_strategy_of_one_device_is_predicted_as_it_is():
    machine = load_machine("h100")
    assert forecast_elsewhere("baseline", {}, trained("baseline"), JOB, Target.of(CostModel(machine))).timeline.step_s == step_of(
        "baseline", machine
    )


def test_a_schedule_that_changes_has_a_phase_for_each_part():
    machine, text = load_machine("2xgtx1060"), "hybrid-pipeline:iterations=10,pipelined=0.6,placement=1"
    (first, stale_s), (switch, plain_s) = forecast_elsewhere(text, {}, None, JOB, Target.of(CostModel(machine))).phases
    assert (first, switch) == (0, 6)
    assert (6 * stale_s + 4 * plain_s) / 10 == pytest.approx(step_of(text, machine))
    curve = Curve(name=text, losses=(1.0,) * 10, seconds=(0.0,) * 10, predicted_step_s=1.8, predicted_phases=((0, 1.0), (6, 3.0)))
    assert [curve.predicted_s(iteration) for iteration in (0, 5, 6, 10)] == [0.0, 5.0, 6.0, 18.0]


def test_a_machine_with_too_few_devices_is_refused():
    machine, text = load_machine("h100"), "stale-pipeline:on=simulated"
    with refuses(Code.DEVICES, "--predict-on h100: stale-pipeline needs 2 devices, there is 1"):
        forecast_elsewhere(text, {}, trained(text), JOB, Target.of(CostModel(machine)))
