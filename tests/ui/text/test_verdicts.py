from tests.support.page_samples import result, skipped, validation
from ui.text.verdicts import Gain, headline_gain


def against(strategy: str, measured: float, interval: tuple[float, float] | None, **more):
    """A row with its speed-up over plain PyTorch, which takes 0.04 s."""
    return result(strategy, 0.05, measured, against_pytorch=0.04 / measured, against_pytorch_interval=interval, **more)


def test_the_headline_is_the_fastest_strategy_against_plain_pytorch():
    base = against("baseline", 0.05, (0.78, 0.82), measured_speedup_interval=None)
    best = against("turbodl", 0.03, (1.29, 1.37), measured_speedup_interval=(1.6, 1.7))
    document = validation(base, best, skipped())
    assert document.fastest == best
    assert headline_gain(document) == Gain(0.04 / 0.03, (1.29, 1.37), "faster")
    assert [row for row in document.ran if row.verdict_against_pytorch == "slower"] == [base]


def test_a_noisy_machine_has_no_clear_headline():
    noisy = validation(against("turbodl", 0.03, (0.8, 2.2)), aa_spread=0.6)
    assert headline_gain(noisy).verdict == "cannot tell"
    assert [row for row in noisy.ran if row.verdict_against_pytorch == "slower"] == []
    assert headline_gain(validation(skipped())) is None
