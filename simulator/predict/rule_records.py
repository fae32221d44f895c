"""The records of what-if rules that come with the package: `python -m tools.pairs --write` writes them again."""

import json
import math
from functools import cache
from pathlib import Path

from simulator.predict.judgments import LEAST
from traces.documents.rule_records import RuleRecord, RuleRecords

DATA = Path(__file__).with_name("rule_records.json")


@cache
def rule_records() -> RuleRecords:
    """The committed records."""
    return RuleRecords.model_validate(json.loads(DATA.read_text()))


def record_of(rule: str) -> RuleRecord | None:
    """The record of a rule, that from traces if there are two; None if nobody has measured what it changes."""
    own = [record for record in rule_records().records if record.rule == rule]
    return next((record for record in own if record.way == "trace"), own[0] if own else None)


def accuracy_of(rule: str) -> float:
    """The known error of the gain of a change within one strategy: one standard deviation of its logarithm (`judgments`)."""
    alike = [record for record in rule_records().records if record.alike]
    own = [record for record in alike if record.rule == rule and record.pairs >= LEAST] or alike
    pairs = sum(record.pairs for record in own)
    return math.sqrt(sum(record.pairs * record.rms_error**2 for record in own) / pairs) if pairs else 0.0


def text(document: RuleRecords) -> str:
    """The text of the file, one record a line."""
    fields = document.document()
    lines = [f'  "schema": {json.dumps(fields["schema"])}']
    for name in ("records", "left_out"):
        rows = ",\n".join(f"    {json.dumps(each)}" for each in fields[name])
        lines.append(f'  "{name}": [\n{rows}\n  ]')
    return "{\n" + ",\n".join(lines) + "\n}\n"
