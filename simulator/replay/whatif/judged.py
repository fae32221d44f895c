"""A what-if rule beside what the change that it describes gained, as others measured it."""

from pathlib import Path

from simulator.predict.judgments import Judgment
from simulator.replay.whatif.registry import rule_name
from simulator.replay.whatif.replayed import ask, replayed
from traces.errors import SchedcastError


def judged_on_trace(trace: Path, text: str, gain: float, label: str, source: str, rule: str = "") -> Judgment:
    """Apply a rule to the trace before the change. `gain`: the measured speed-up. `rule`: whose record it is (default: the text's).

    Raises SchedcastError if the trace cannot be read, or if the rule has no answer.
    """
    recorded = replayed([trace])
    (answer,) = ask(recorded, [text]).what_if.answers
    if answer.speedup is None:
        raise SchedcastError(answer.reason or f"{text} has no answer")
    before_s, bounds = recorded.result.gpu_period_simulated_s, answer.step_interval_s
    interval = (before_s / bounds[1], before_s / bounds[0]) if bounds else None
    return Judgment(rule or rule_name(text), label, source, gain, answer.speedup, interval, way="trace")
