"""The document of `schedcast gpu-first`: what a GPU that never ran Schedcast before did well, did differently, or failed at.

The document is `first.json` in a folder that also holds its text, the output of every check in `checks/`, and `report/`, the report of
`schedcast gpu-report` for the time that was left.
"""

from typing import Any, Literal

from pydantic import Field, JsonValue

from traces.documents.base import Data, Document

FIRST, PAGE, CHECKS, REPORT_FOLDER = "first.json", "README.md", "checks", "report"

Verdict = Literal["ok", "differs", "failed", "left"]


class Mend(Data):
    """Something that a person should mend.

    `worth`: 1 if nothing can be measured before it is mended, 2 if figures are wrong until then, 3 if they are uncertain, 4 if a feature
    is missing that has a substitute.
    """

    worth: int = Field(ge=1, le=4)
    text: str


class CheckRecord(Data):
    """The answer of one check.

    `verdict`: "differs" if the GPU does something else than Schedcast assumes, "failed" if the check did not get to an answer, "left" if it
    did not fit into the time. `means` says in words what the answer means. `figures` have their units in their names. `earlier`: an earlier
    call with the same folder made the check.
    """

    name: str
    asks: str
    verdict: Verdict
    seconds: float | None = None
    figures: dict[str, JsonValue] = {}
    means: str = ""
    mend: tuple[Mend, ...] = ()
    earlier: bool = False

    @property
    def answered(self) -> bool:
        """Whether it has an answer that a later call need not ask for again."""
        return self.verdict in ("ok", "differs")


class GpuFirst(Document):
    """The first minutes on a GPU. Document `schedcast.gpu_first/1`.

    `fix_first`: what to mend, in order of worth. `device` and `versions` are those that the first check found. `minutes` is the limit of
    this call, `seconds` its duration. `checks` are in the order in which they run. `report` says in words what became of the GPU report.
    `complete`: False while the call runs, and for ever if it was killed.
    """

    schema_name = "schedcast.gpu_first/1"
    kind = "first look at a GPU"

    fix_first: tuple[str, ...]
    date: str
    device: dict[str, Any]
    versions: dict[str, str]
    minutes: float
    seconds: float
    complete: bool
    checks: tuple[CheckRecord, ...]
    report: str = ""
    flags: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        """Whether every check that got an answer found what Schedcast assumes, and none failed."""
        return all(check.verdict in ("ok", "left") for check in self.checks)


def fix_first(checks: "tuple[CheckRecord, ...] | list[CheckRecord]") -> tuple[str, ...]:
    """What to mend, in order of worth; of equal worth, in the order of the checks."""
    mends = [(mend.worth, place, f"{mend.text} ({check.name})") for place, check in enumerate(checks) for mend in check.mend]
    return tuple(dict.fromkeys(text for _, _, text in sorted(mends, key=lambda item: item[:2])))
