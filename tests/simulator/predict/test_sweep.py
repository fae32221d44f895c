"""What the answers of a sweep say together: who wins, where a strategy stops paying, and what is worth its memory."""

import pytest

from simulator.model.job import Job
from simulator.predict.answers import answers, prediction
from simulator.predict.sweep import Axis, Outcome, Stretch, fastest, outcome, pareto, points, stretches
from simulator.predict.target import preset_target
from traces.documents.step import Step
from traces.documents.verdict import gain
from traces.errors import Code, Refusal
from ui.present.labels import strategy_name
from ui.present.sweeps import crossover_words, fastest_words, outcome_cells

BATCH = Axis("batch", (16, 32, 64, 128))
REFUSED = Refusal(Code.REQUEST, "refused")


def step(seconds: float) -> Step:
    return Step(step_s=seconds, interval_s=None)


def sweep_of(spread=1.01, **step_ms):
    """Outcomes at BATCH's values; None where the strategy is refused, a negative time where it does not fit.

    Gains are over the first strategy, called the baseline; their intervals reach from 1 / spread to spread times as far.
    """
    (base, *_) = step_ms.values()

    def one(name, value, ms, base_ms):
        if ms is None:
            return Outcome(name, (value,), refusal=Refusal(Code.DEVICES, "needs 2 devices"))
        factor = abs(base_ms) / abs(ms)
        gains = {"baseline": gain(factor, (factor / spread, factor * spread))}
        return Outcome(name, (value,), step(abs(ms) / 1e3), fits=ms > 0, speedup=factor, gains=gains if name != "baseline" else {})

    return [one(name, *point) for name, times in step_ms.items() for point in zip(BATCH.values, times, base, strict=True)]


def test_the_last_axis_changes_fastest():
    assert points([Axis("batch", (8, 16)), Axis("devices", (1, 2))]) == [(8, 1), (8, 2), (16, 1), (16, 2)]


def test_stretches_of_equal_verdicts():
    outcomes = sweep_of(baseline=(10, 20, 40, -80), fused=(8, 16, 40, 70))
    assert stretches(outcomes, "fused", "baseline") == [
        Stretch("faster", 16, 32, 1.25, 1.25), Stretch("same", 64, 64, 1.0, 1.0), Stretch("unusable", 128, 128),
    ]  # fmt: skip


def short(lines):
    """Lines with the short name of the baseline."""
    return [line.replace(strategy_name("baseline"), "baseline") for line in lines]


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ((8, 16, 40, 90), "fused stops paying above batch 32 (1.25x there, 1.00x at 64), against baseline."),
        ((10, 20, 32, 64), "fused begins to pay at batch 64 (1.25x), against baseline."),
        ((10, 16, 40, 90), "fused begins to pay at batch 32 (1.25x) and stops paying above batch 32 (1.25x there, 1.00x at 64), against"
                           " baseline."),
        ((8, 20, 32, 90), "fused pays at batch 16, and at batch 64: 1.25x against baseline."),
        ((8, 16, 32, 50), "fused pays at every batch from 16 to 128: 1.25x to 1.60x against baseline."),
        ((8, 16, 32, -50), "fused pays at every batch from 16 to 64: 1.25x against baseline; above batch 64 one of the two does not fit or"
                           " is refused."),
        ((11, 23, 50, 90), "fused is slower than baseline at every batch from 16 to 128."),
        ((10, 20, 50, 90), "fused is no faster than baseline at every batch from 16 to 128."),
        ((None,) * 4, "fused cannot be compared with baseline at any batch."),
    ],
)  # fmt: skip
def test_crossovers_in_words(times, words):
    assert short(crossover_words(sweep_of(baseline=(10, 20, 40, 80), fused=times), BATCH, "baseline")) == [words]


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ((9, 18, 36, 72), "These predictions cannot tell whether fused is faster than baseline at every batch from 16 to 128: 1.11x."),
        ((5, 10, 38, 90), "fused stops paying above batch 32 (2.00x there, 1.05x at 64, cannot tell), against baseline."),
        ((20, 40, 38, 80), "fused is not surely faster than baseline at every batch from 16 to 128: 0.50x to 1.05x."),
    ],
)
def test_nothing_pays_if_its_interval_cannot_tell(times, words):
    assert short(crossover_words(sweep_of(spread=1.3, baseline=(10, 20, 40, 80), fused=times), BATCH, "baseline")) == [words]


def test_a_slower_plan_is_on_the_front_if_it_needs_less_memory():
    plans = [
        Outcome(name, (), step(step_s), peak_bytes=peak) for name, step_s, peak in (("a", 1, 9), ("b", 2, 9), ("c", 3, 5), ("d", 4, 6))
    ]
    too_large = Outcome("e", (), step(0.5), peak_bytes=99, fits=False)
    assert [each.strategy for each in pareto([*plans, too_large, Outcome("f", (), refusal=REFUSED)])] == ["a", "c"]
    assert fastest([*plans, too_large]).strategy == "a"
    assert fastest([too_large]) is None


def test_the_outcome_of_a_prediction():
    job = Job("lenet5", 64)
    target = preset_target(job, "h100", limit_bytes=1e6)
    forecasts = answers(job, ["backward-fusion"], target).forecasts
    document = prediction(forecasts["backward-fusion"], forecasts["baseline"], "fp32", forecasts["pytorch"])
    result = outcome("backward-fusion", (64,), document)
    assert document.too_large == ("backward-fusion", "baseline", "pytorch")
    assert (result.step_s, result.speedup, result.gains) == (document.step_s, None, {}), "nobody is faster than what cannot run"
    assert result.peak_bytes == document.memories[0].allocated_bytes > 1e6
    assert not result.usable
    assert outcome_cells([result], [BATCH])[0]["note"] == "does not fit"


def test_a_table_has_the_loops_of_a_user_above_the_strategies_that_are_asked_for():
    job = Job("lenet5", 64)
    own = answers(job, ["backward-fusion", "pytorch"], preset_target(job, "h100"))
    assert own.rows() == own.table == ("pytorch", "pytorch-graph", "backward-fusion")


def test_an_answer_has_the_only_strategy_that_is_asked_for_and_its_table_what_it_is_compared_with():
    job = Job("lenet5", 64)
    own = answers(job, ["turbodl"], preset_target(job, "h100"))
    assert (own.rows(), own.rows(single=False)) == (("turbodl",), ("pytorch", "pytorch-graph", "turbodl"))
    assert own.table == ("pytorch", "pytorch-graph", "baseline", "turbodl")
    assert [each.strategy for each in own.document().predictions] == ["turbodl"]
    assert answers(job, [], preset_target(job, "2xp100")).rows() == ("pytorch", "pytorch-ddp", "pytorch-fsdp")


def test_the_fastest_in_words():
    outcomes = sweep_of(baseline=(10, 20, 40, 80), fused=(8, 16, 42, None), turbo=(5, 30, 50, 90))
    (words,) = short([fastest_words(outcomes, [BATCH])])
    assert words.startswith("The fastest of 4 points: baseline at 2, turbo at 1, fused at 1.")
    assert words.endswith(
        " The largest gain: turbo at batch 16; against baseline 2.00x (1.97 to 2.03), faster (an interval for the best of 11)."
    )
    assert fastest_words([Outcome("a", (16,), refusal=REFUSED)], [BATCH]) == ""


def test_the_fastest_of_several_predictions_needs_more_to_be_called_faster():
    """Of one strategy, 1.05x (1.00 to 1.10) would be faster."""
    gains = {"pytorch": gain(1.05, (1.005, 1.10))}
    outcomes = [Outcome("pytorch", (), step(0.0105)), *(Outcome(f"s{i}", (), step(0.01 + i * 1e-6), gains=gains) for i in range(3))]
    words = fastest_words(outcomes, [])
    assert words.startswith("s0 is predicted to be the fastest: 10.0 ms; against plain PyTorch 1.05x (0.99 to 1.12), cannot tell")
    assert fastest_words(outcomes[:2], []).endswith("1.05x (1.00 to 1.10), faster.")
