"""What the answers of a sweep say together: who wins, where a strategy stops paying, and what is worth its memory."""

import pytest

from simulator.job import Job
from simulator.predict.forecast import forecast_many, prediction
from simulator.predict.preset import preset_costs
from simulator.predict.sweep import Axis, Outcome, Stretch, fastest, outcome, pareto, points, stretches
from ui.text.sweeps import crossover_words, fastest_words, outcome_cells

BATCH = Axis("batch", (16, 32, 64, 128))


def sweep_of(**step_ms):
    """Outcomes at BATCH's values; None where the strategy is refused, a negative time where it does not fit."""
    return [
        Outcome(name, (value,), why="needs 2 devices") if ms is None else Outcome(name, (value,), abs(ms) / 1e3, fits=ms > 0)
        for name, times in step_ms.items()
        for value, ms in zip(BATCH.values, times, strict=True)
    ]


def test_the_last_axis_changes_fastest():
    assert points([Axis("batch", (8, 16)), Axis("devices", (1, 2))]) == [(8, 1), (8, 2), (16, 1), (16, 2)]


def test_stretches_of_equal_verdicts():
    outcomes = sweep_of(baseline=(10, 20, 40, -80), fused=(8, 16, 40, 70))
    assert stretches(outcomes, "fused", "baseline") == [
        Stretch("pays", 16, 32, 1.25, 1.25),
        Stretch("same", 64, 64, 1.0, 1.0),
        Stretch("unusable", 128, 128),
    ]


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
    assert crossover_words(sweep_of(baseline=(10, 20, 40, 80), fused=times), BATCH, "baseline") == [words]


def test_a_slower_plan_is_on_the_front_if_it_needs_less_memory():
    plans = [Outcome(name, (), step_s, peak_bytes=peak) for name, step_s, peak in (("a", 1, 9), ("b", 2, 9), ("c", 3, 5), ("d", 4, 6))]
    too_large = Outcome("e", (), 0.5, peak_bytes=99, fits=False)
    assert [each.strategy for each in pareto([*plans, too_large, Outcome("f", (), why="refused")])] == ["a", "c"]
    assert fastest([*plans, too_large]).strategy == "a"
    assert fastest([too_large]) is None


def test_the_outcome_of_a_prediction():
    job = Job("lenet5", 64)
    machine, model = preset_costs(job, "h100", limit_bytes=1e6)
    forecasts = dict(forecast_many(job, ["backward-fusion"], {}, machine, model))
    document = prediction(forecasts["backward-fusion"], forecasts["baseline"], "fp32", forecasts["pytorch"])
    result = outcome("backward-fusion", (64,), document)
    assert (result.step_s, result.speedup) == (document.step_s, document.against_pytorch)
    assert result.peak_bytes == document.memories[0].needed_bytes > 1e6
    assert not result.usable
    assert outcome_cells([result], [BATCH])[0]["note"] == "does not fit"


def test_the_fastest_in_words():
    outcomes = [*sweep_of(baseline=(10, 20, 40, 80), fused=(8, 16, 42, None)), Outcome("turbo", (16,), 0.005, speedup=2.0)]
    words = fastest_words(outcomes, [BATCH])
    assert words.startswith("The fastest of 4 points: baseline at 2, turbo at 1, fused at 1.")
    assert words.endswith("The largest gain over plain PyTorch: turbo at batch 16, 2.00x.")
    assert fastest_words([Outcome("a", (16,), why="refused")], [BATCH]) == ""
