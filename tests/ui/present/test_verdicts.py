from tests.support.page_samples import result, skipped, validation
from traces.documents.verdict import Gain
from ui.present import verdicts


def against(strategy: str, measured: float, interval: tuple[float, float] | None, **more):
    """A row with its speed-up over plain PyTorch, which takes 0.04 s."""
    return result(strategy, 0.05, measured, against_pytorch=0.04 / measured, against_pytorch_interval=interval, **more)


def test_the_headline_is_the_fastest_strategy_against_plain_pytorch():
    base = against("baseline", 0.05, (0.78, 0.82), measured_speedup_interval=None)
    best = against("turbodl", 0.03, (1.29, 1.37), measured_speedup_interval=(1.6, 1.7))
    document = validation(base, best, skipped())
    assert document.fastest == best
    assert document.headline_gain == Gain(0.04 / 0.03, (1.29, 1.37), "faster")


def test_a_noisy_machine_has_no_clear_headline():
    noisy = validation(against("turbodl", 0.03, (0.8, 2.2)), aa_spread=0.6)
    assert noisy.headline_gain.verdict == "cannot tell"
    assert validation(skipped()).headline_gain is None


def test_a_busy_machine_is_the_headline():
    busy = validation(against("turbodl", 0.03, (1.29, 1.37)), busy_share=0.46)
    words = "busy machine: not a measurement. Other processes took 46 % of the cores; above 10 % no time is reliable."
    assert verdicts.headline(busy).startswith(words)
    assert verdicts.short_headline(busy) == "Busy machine: not a measurement"
    quiet = validation(against("turbodl", 0.03, (1.29, 1.37)))
    first, second = verdicts.headlines([quiet, busy])
    assert first.startswith(words), "the first line, whatever job it is about"
    assert second.startswith("small-cnn: turbodl is 1.33x")
    assert verdicts.busy_line(0.1) == verdicts.busy_line(None) == ""
    assert "of the GPU" in verdicts.busy_line(0.2, "gpu")


def test_a_machine_that_changed_its_speed_is_named_beside_the_headline():
    """A neighbor on the same host takes memory bandwidth, but none of the CPU time of this machine: only the steps themselves show it."""
    swung, steady = (
        validation(*(against(name, 0.03, (1.29, 1.37), measured_runs_s=steps_s * 4) for name in ("turbodl", "baseline")))
        for steps_s in ((0.03, 0.06), (0.03, 0.033))
    )
    assert (swung.unsteady, steady.unsteady, validation(skipped()).unsteady) == (True, False, False)
    assert "a quarter of a schedule's steps took at least 2.0 times as long as another quarter" in verdicts.headline(swung)
    assert "speed meanwhile" not in verdicts.headline(steady)
