"""What-if rules in words and tables: how accurate they were on pairs of steps that others measured before and after one change, those
that the app puts together, and what they match and changed.
"""

from collections.abc import Sequence
from types import MappingProxyType

from simulator.predict.judgments import NOISE, Judgment
from simulator.predict.rule_records import rule_records
from simulator.replay.whatif.matching import KernelMatches
from simulator.replay.whatif.registry import rules
from simulator.replay.whatif.replayed import LONGER, NEW, REMOVED, SHORTER, Changes
from traces import units
from traces.documents.rule_records import RuleRecord, RuleRecords
from ui.present.blocks import Block, Sentences, Table

#: The heads of the columns of a rule's record next to an answer, and of words in the tables of this module.
JUDGED, RULE, ASKED, REASON = "judged on others' pairs", "rule", "how to ask", "why it is not predicted"
WORDS = (RULE, ASKED, REASON)
TITLE = "What-if rules compared with what others measured"
LEFT_OUT_TITLE = "Measured changes that are not predicted"
UNJUDGED = "no record: nobody measured it"
HOW_JUDGED = (
    f"A gain is a speed-up; its sign is right if both say faster, slower, or the same within {units.percent(NOISE, signed=False)}. Errors"
    " are points of a speed-up: 1.30x instead of 1.25x is 5 points."
)
ABOUT = (
    f"Each pair is two steps that others measured, with one change between them. {HOW_JUDGED} Pairs without a trace are predicted from a"
    " preset's data sheet and table, which saw a step of some pairs. What loader workers cost was measured on the other pair."
)
#: How the changes that are no rules of recordings are asked.
_ASKED = {
    "amp": "--precision amp", "tf32": "--precision tf32", "layout": "--layout nhwc", "batch": "--batch 32,64",
    "gradient buckets": "--strategy data-parallel:bucket=25", "scale out": "--strategy data-parallel --devices 8",
    "cuda-graph": "--strategy pytorch-graph", "optimizer": "--optimizer adamw:fused",
    "activation checkpointing": "--checkpoint selective", "sharded optimizer": "--strategy fsdp:shard=1",
}  # fmt: skip


def documented() -> RuleRecords:
    """The records, with the rules that have none."""
    records = rule_records()
    judged = {record.rule for record in records.records}
    return records.model_copy(update={"unjudged": tuple(rule.name for rule in rules() if rule.name not in judged)})


def blocks(document: RuleRecords, title: str = TITLE, about: str = ABOUT, judged: Sequence[Judgment] = ()) -> list[Block]:
    """The records, what went wrong, and the changes that are not predicted. `judged`: pairs to list. `title`, `about`: of the records."""
    return [
        Table(record_cells(document), WORDS, title=title, caption=about),
        Sentences([total_words(document), *miss_words(document), *map(judgment_words, judged)]),
        Table(left_out_cells(document), WORDS, title=LEFT_OUT_TITLE),
    ]


def record_words(record: RuleRecord | None) -> str:
    """A record next to an answer, as short as possible."""
    if record is None:
        return "not judged"
    of = "" if record.way == "trace" else ", without traces"
    return f"sign {record.sign_right} of {record.pairs}, off by {_points(record.median_error)}{of}"


def record_cells(document: RuleRecords) -> list[dict[str, str]]:
    """One row per rule and way, then the rules without a record; column name to text."""
    rows = [
        {
            RULE: record.rule,
            ASKED: asked(record.rule, record.way),
            "pairs": f"{record.pairs}",
            "sign right": f"{record.sign_right}",
            "median error": _points(record.median_error),
            "worst": f"{100 * record.worst_error:+.0f}",
            "in the 90 % interval": f"{record.covered} of {record.intervals}" if record.intervals else units.NONE,
            "fitted on": f"{record.fitted}",
        }
        for record in document.records
    ]
    empty = dict.fromkeys(rows[0] if rows else (), units.NONE)
    return [*rows, *({**empty, RULE: name, ASKED: UNJUDGED, "pairs": "0"} for name in document.unjudged)]


def asked(rule: str, way: str) -> str:
    """How a user asks for a change."""
    if way == "trace":
        return f"--what-if {rule}, judged on traces"
    return _ASKED.get(rule, f"--strategy {rule}")


def left_out_cells(document: RuleRecords) -> list[dict[str, str]]:
    """One row per kind of measured change that is not predicted, column name to text."""
    return [{RULE: each.rule, "pairs": f"{each.pairs}", REASON: each.reason} for each in document.left_out]


def total_words(document: RuleRecords) -> str:
    """All records together in one sentence, and how many measured pairs are not predicted."""
    pairs, right, intervals, covered = (
        sum(getattr(record, name) for record in document.records) for name in ("pairs", "sign_right", "intervals", "covered")
    )
    left_out = sum(each.pairs for each in document.left_out)
    rest = f" {left_out} other pairs are not predicted." if left_out else ""
    return f"In all, the sign is right on {right} of {pairs} pairs, and the interval holds {covered} of {intervals} measured gains.{rest}"


def miss_words(document: RuleRecords) -> list[str]:
    """One sentence per rule that was wrong, with the cause."""
    return [f"{record.rule}: {record.misses}" for record in document.records if record.misses]


def judgment_words(each: Judgment) -> str:
    """A pair in one line."""
    wrong = "" if each.sign_right else "; the sign is wrong"
    return f"{each.label}: measured {units.speedup(each.measured)}, predicted {units.speedup(each.predicted, each.interval)}{wrong}"


def _points(error: float) -> str:
    count = f"{100 * error:.0f}"
    return f"{count} {'point' if count == '1' else 'points'}"


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
