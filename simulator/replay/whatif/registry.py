"""What-if rules change a recorded run to predict how long it would have taken. Each rule is one module here, discovered by its `NAME`.

A rule module has `NAME`, `FORM` (its syntax), `ABOUT` (one line), `parse(rest) -> request`, where `rest` is the text after the name, and
`apply(replay, request) -> (Replay, assumptions)`. Both raise `MalformedError` for a rule that makes no sense (a regular expression is read
only when it is applied); `apply` raises SchedcastError if the rule changes nothing, and says why. It also has, each as texts of rules with
what they mean in words:

- `BUILT`: what the app puts together; it fills in `{regex}` and `{speed}`.
- `TRIED`, `BOUNDS` (default: none): what the ranking tries, and rules that show the largest possible gain of that kind of change.

It may have `ADDRESSES`, the part of a step that it shortens (then it comes first if that part is the verdict), and `extremes(replay,
request) -> replays`, which bound the step if the rule's costs are uncertain.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator.plan.discovery import modules
from simulator.replay.replay import Replay
from simulator.replay.whatif.matching import MalformedError
from traces.documents.replay_result import Part
from traces.errors import SchedcastError


@dataclass(frozen=True)
class Rule:
    """A discovered rule."""

    name: str
    form: str
    about: str
    built: Mapping[str, str]
    tried: Mapping[str, str]
    bounds: Mapping[str, str]
    parse: Callable[[str], Any]
    apply: Callable[[Replay, Any], tuple[Replay, list[str]]]
    addresses: Part | None = None
    extremes: Callable[[Replay, Any], Sequence[Replay]] | None = None


@cache
def _discover() -> dict[str, Rule]:
    by_name = {}
    for module in modules(__package__):
        if hasattr(module, "NAME"):
            by_name[module.NAME] = Rule(
                name=module.NAME,
                form=module.FORM,
                about=module.ABOUT,
                built=module.BUILT,
                tried=getattr(module, "TRIED", {}),
                bounds=getattr(module, "BOUNDS", {}),
                parse=module.parse,
                apply=module.apply,
                addresses=getattr(module, "ADDRESSES", None),
                extremes=getattr(module, "extremes", None),
            )
    return by_name


def rules() -> list[Rule]:
    """Return every rule, in alphabetical order."""
    return list(_discover().values())


class UnreadableRuleError(SchedcastError):
    """The text of a rule that cannot be applied to any recording."""


def rule_name(text: str) -> str:
    """The name with which the text of a rule begins."""
    return re.split("[^a-z-]", text.strip(), maxsplit=1)[0]


def parse(text: str) -> tuple[Rule, Any]:
    """Return the rule in `text` and its parsed request. Raises UnreadableRuleError if the text is not a rule."""
    text = text.strip()
    name = rule_name(text)
    rule = _discover().get(name)
    if rule is None:
        near = difflib.get_close_matches(name, _discover(), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UnreadableRuleError(f"unknown what-if rule {text[:80]!r}{hint}; expected one of: {', '.join(each.form for each in rules())}")
    try:
        return rule, rule.parse(text[len(name) :])
    except MalformedError as error:
        raise _unreadable(text, rule, error) from error


def apply_rules(replay: Replay, texts: Sequence[str]) -> tuple[Replay, list[str]]:
    """Apply the rules one after another. Returns the changed replay and the assumptions. All rules are parsed before any is applied.

    Raises UnreadableRuleError for a text that is not a rule, SchedcastError for a rule that changes nothing.

    >>> from simulator.machine.machine import Device, Machine, Memory
    >>> from simulator.plan.bodies.host import Recorded
    >>> from simulator.plan.task import Task
    >>> from simulator.replay.replay import Rows, simulate_replay
    >>> machine = Machine("recorded", (Device("cuda:0", "gpu", 132, {}, "hbm"),), (Memory("hbm", 0, 1.0, 0),))
    >>> kernels = (Task(name, Recorded(name, "kernel", seconds), "cuda:0") for name, seconds in (("gemm", 3.0), ("relu", 1.0)))
    >>> before = Replay(Rows(kernels), machine, steps=(), notes=())
    >>> after, assumptions = apply_rules(before, ["kernel:/gemm/ 3x faster"])
    >>> simulate_replay(before).step_s, simulate_replay(after).step_s
    (4.0, 2.0)
    """
    assumptions: list[str] = []
    for text, (rule, request) in [(text, parse(text)) for text in texts]:
        try:
            replay, assumed = rule.apply(replay, request)
        except MalformedError as error:
            raise _unreadable(text, rule, error) from error
        assumptions += assumed
    return replay, list(dict.fromkeys(assumptions))


def _unreadable(text: str, rule: Rule, error: MalformedError) -> UnreadableRuleError:
    return UnreadableRuleError(f"what-if rule {text[:80]!r}: {error}; expected {rule.form}")
