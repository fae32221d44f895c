"""Strange requests of agents: answered in words, or refused."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.machine.presets import machine_names
from tests.support.fuzzing import fuzzed, mostly, sound
from tests.support.option_texts import JUMBLED, requests
from tests.support.rule_texts import RULES
from tests.support.small_traces import write_trace
from ui.api.agents import tools

#: Stands for a sound trace.
SOUND = "<trace>"
MODELS = mostly(
    st.just("lenet5"),
    st.sampled_from(
        ["lm:form=llama,layers=1,d_model=8,heads=2", "lm:", "hf:.", "timm:x", "/etc/passwd", "x.py:make", "live:0", "llama3:8b"]
    ),
    JUMBLED,
)
MACHINES = mostly(
    st.sampled_from(["h100", "2xgtx1060", "p100x4"]), st.sampled_from([*machine_names(), "/etc/x.json", "0xh100", "99999xh100"]), JUMBLED
)
TRACES = st.sampled_from([SOUND, SOUND, "/dev/zero", "/etc/passwd", "", "x" * 5000, "a\0b"])
#: Values of the types that the protocol lets through, by the annotation of an argument.
VALUES = {
    str: JUMBLED,
    str | None: st.none() | JUMBLED,
    int | None: st.sampled_from([None, 0, -1, 1, 2, 3, 8, 2**31, 2**63, 10**400]),
    float | None: st.sampled_from([None, 0.0, -1.0, 1e-3, 16.0, 1e308, float("inf"), float("nan")]),
    list[str] | None: st.none() | st.lists(requests() | JUMBLED, max_size=2),
    dict[str, float] | None: st.none()
    | st.dictionaries(st.sampled_from(["memory", "sms", "self", "", "x"]), st.sampled_from([2.0, 0.5, 0.0, -1.0, 1e9, float("nan")])),
}
#: Those that are mostly usable, by the name of an argument.
USUAL = {
    "model": MODELS, "machine": MACHINES, "batch": mostly(st.sampled_from([1, 8]), VALUES[int | None]),
    "what_if": st.none() | st.lists(RULES, max_size=2), "before": TRACES, "after": TRACES, "trace": TRACES,
}  # fmt: skip


@st.composite
def arguments_of(draw, tool) -> dict:
    """Arguments of a tool: those without a default, and some of the others."""
    return {
        each.name: draw(USUAL.get(each.name, VALUES.get(each.annotation)))
        for each in inspect.signature(tool).parameters.values()
        if each.default is each.empty or draw(st.integers(0, 3)) == 0
    }


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return str(write_trace(tmp_path_factory.mktemp("traces") / "trace.json", steps=3))


def test_a_request_of_an_agent_is_answered_or_refused(trace, monkeypatch, tmp_path):
    monkeypatch.setenv("SCHEDCAST_CACHE", str(tmp_path / "cache"))
    predict, _, replay, diff, _ = tools([])  # a search takes too long

    @fuzzed(8)
    @given(st.sampled_from([predict, predict, replay, diff]).flatmap(lambda tool: st.tuples(st.just(tool), arguments_of(tool))))
    def check(request):
        tool, arguments = request
        arguments = {name: trace if value == SOUND else value for name, value in arguments.items()}
        with sound("agents", (tool.__name__, arguments)):
            tool(**arguments).encode()

    check()
