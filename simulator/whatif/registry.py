"""What-if rules: change a recorded run and ask how long it would have taken. Each rule is one module here, discovered by its `NAME`.

A rule module offers `NAME`, `FORM` (how it is written), `ABOUT` (one line), `parse(rest) -> request`, where `rest` is what follows the
name, and `apply(replay, request) -> (Replay, assumptions)`. `parse` raises `MalformedError`; `apply` raises StepcastError where the
recording lacks what the rule changes.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator.discovery import modules
from simulator.replay.replay import Replay
from simulator.whatif.parsing import MalformedError
from traces.errors import StepcastError


@dataclass(frozen=True)
class Rule:
    """A discovered rule."""

    name: str
    form: str
    about: str
    parse: Callable[[str], Any]
    apply: Callable[[Replay, Any], tuple[Replay, list[str]]]


@cache
def _discover() -> dict[str, Rule]:
    found = {}
    for module in modules(__package__):
        if hasattr(module, "NAME"):
            found[module.NAME] = Rule(module.NAME, module.FORM, module.ABOUT, module.parse, module.apply)
    return found


def rules() -> list[Rule]:
    """Every rule, by name."""
    return list(_discover().values())


def parse(text: str) -> tuple[Rule, Any]:
    """A rule and what it asks for. Raises StepcastError for anything that is no rule."""
    name = re.match("[a-z-]*", text).group()
    rule = _discover().get(name)
    if rule is None:
        near = difflib.get_close_matches(name, _discover(), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise StepcastError(f"unknown what-if rule {text[:80]!r}{hint}; expected one of: {', '.join(each.form for each in rules())}")
    try:
        return rule, rule.parse(text[len(name) :])
    except MalformedError as error:
        raise StepcastError(
            f"what-if rule {text[:80]!r}: {error}; expected {rule.form}; the rules are: {', '.join(each.form for each in rules())}"
        ) from error


def apply_rules(replay: Replay, texts: Sequence[str]) -> tuple[Replay, list[str]]:
    """The replay with the rules applied one after another, and what was assumed. All are read before any is applied."""
    assumptions: list[str] = []
    for rule, request in [parse(text) for text in texts]:
        replay, assumed = rule.apply(replay, request)
        assumptions += assumed
    return replay, list(dict.fromkeys(assumptions))
