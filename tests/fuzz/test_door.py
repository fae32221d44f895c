"""Arguments of the Python door: answered, or refused."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzzing import JUNK, fuzzed, mostly, sound
from tests.support.option_texts import JUMBLED, requests
from ui.api import facade

INTEGERS = st.sampled_from([0, -1, 3, 2**31, 2**63, 10**400])
NUMBERS = st.sampled_from([0.0, -1.0, 1e-320, 1e308, float("inf"), float("nan")])
ARGUMENTS = st.fixed_dictionaries(
    {
        "model": mostly(st.just("lenet5"), JUMBLED, JUNK), "on": mostly(st.sampled_from(["h100", "2xgtx1060"]), JUMBLED, JUNK),
        "batch": mostly(st.just(8), INTEGERS, JUNK),
    },
    optional={
        "strategy": requests(), "devices": mostly(st.just(1), INTEGERS, JUNK), "image_size": mostly(st.just(32), INTEGERS, JUNK),
        "accumulate": mostly(st.just(2), INTEGERS, JUNK), "memory_limit": mostly(st.just(16.0), NUMBERS, JUNK), "lr": NUMBERS | JUNK,
        "clip_norm": NUMBERS | JUNK, "mode": mostly(st.sampled_from(["eager", "graph"]), JUMBLED, JUNK),
        "optimizer": mostly(st.sampled_from(["adam:fused", "sgd"]), JUMBLED, JUNK), "precision": mostly(st.just("amp"), JUMBLED, JUNK),
        "checkpoint": mostly(st.just("full"), JUMBLED, JUNK), "x": JUMBLED | JUNK,
    },
)  # fmt: skip


def test_arguments_of_the_python_door_are_taken_or_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("SCHEDCAST_CACHE", str(tmp_path / "cache"))

    @fuzzed(6)
    @given(ARGUMENTS)
    def check(arguments):
        with sound("Python door", arguments):
            repr(facade.predict(**arguments))

    check()
