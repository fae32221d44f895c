"""What-if rules that the app puts together, what they match in words, and what they changed."""

from types import MappingProxyType

from simulator.replay.whatif.matching import KernelMatches
from simulator.replay.whatif.registry import rules
from simulator.replay.whatif.replayed import LONGER, NEW, REMOVED, SHORTER, Changes
from traces import units

#: By the text of a rule, the change in words. Those of kernels come first. `{regex}` and `{speed}` are filled in.
_BUILT = {text: words for rule in rules() for text, words in rule.built.items()}
RULES = MappingProxyType(dict(sorted(_BUILT.items(), key=lambda item: "{regex}" not in item[0])))
#: The changes that need a search of kernels.
OF_KERNELS = frozenset(form for form in RULES if "{regex}" in form)
SPEEDS = ("2x faster", "1.2x faster", "1.5x faster", "4x faster", "10x faster", "free", "1.5x slower", "2x slower")
#: Rows of a table at most.
RULES_SHOWN = 8
_KINDS = MappingProxyType({SHORTER: "shorter", LONGER: "longer", REMOVED: "gone", NEW: "new"})


def rule_text(form: str, speed: str, regex: str) -> str:
    """The rule of a form of RULES."""
    return form.replace("{speed}", speed).replace("{regex}", regex)


def match_words(matches: KernelMatches) -> str:
    """How many kernels match, and how long they take in a step."""
    count = f"{matches.kernels:,} {'kernel' if matches.kernels == 1 else 'kernels'}"
    share = units.percent(matches.share, signed=False)
    return f"{count} of the recording, {units.duration(matches.seconds / matches.steps)} of each step's kernel time ({share})."


def match_cells(matches: KernelMatches) -> list[dict[str, str]]:
    """One row per kernel name, the longest first."""
    return [
        {"kernel": name, "in a step": f"{count / matches.steps:.3g}", "ms of a step": units.ms(seconds / matches.steps)}
        for name, count, seconds in matches.names[:RULES_SHOWN]
    ]


def changed_words(changed: Changes) -> str:
    """What the rules changed, in one sentence; empty if no task is different."""
    parts = []
    for kind, count in changed.counts.items():
        seconds = changed.seconds[kind]
        parts.append(f"{count:,} {'task is' if count == 1 else 'tasks are'} {_KINDS[kind]} ({seconds * 1e3:+.3g} ms in all)")
    return f"In the recording {', '.join(parts)}; they have colors of their own." if parts else ""
