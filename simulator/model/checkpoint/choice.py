"""A job's choice of checkpointing: none, full, selective, or budget:SIZE."""

import re
from dataclasses import dataclass

from traces.errors import SchedcastError

NONE, FULL, SELECTIVE, BUDGET = "none", "full", "selective", "budget"
#: The values of the option, for messages.
FORMS = "none, full, selective or budget:SIZE, such as budget:70GiB"
_UNITS = {f"{prefix}{end}": base**power for power, prefix in enumerate("KMGT", 1) for end, base in (("iB", 1024), ("B", 1000))} | {"B": 1}


@dataclass(frozen=True)
class Choice:
    """The kind, one of the four above, and with a budget the bytes of activations that are allowed at a time."""

    kind: str
    budget_bytes: int = 0


def read(text: str) -> Choice:
    """Read the option. Raises SchedcastError for anything else."""
    if text in (NONE, FULL, SELECTIVE):
        return Choice(text)
    size = re.fullmatch(r"budget:([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([KMGT]?i?B)", text)
    if size is None or size[2] not in _UNITS or float(size[1]) <= 0:
        raise SchedcastError(f"--checkpoint is {text[:60]!r}; expected {FORMS}")
    return Choice(BUDGET, int(float(size[1]) * _UNITS[size[2]]))
