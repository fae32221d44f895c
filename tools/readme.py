"""The figures of README.md, from what they were measured with: python -m tools.readme writes them again.

Figures of this machine come from the committed validations. What commands print is checked by `tests/test_readme.py`, which runs them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

from simulator.predict.coverage import coverage, judged
from tests.support.places import ROOT
from traces import units
from traces.documents.comparison import Validation
from traces.documents.shipped import shipped_validations
from ui.present.validations import headlines, validation_cells

README = ROOT / "README.md"
DEMO = [ROOT / f"traces/data/cpu-amd-epyc-2/validations/demo-{model}.json" for model in ("lenet5", "mobilenet_v2")]
#: Characters of a line of the README, less the mark of a quotation.
WIDTH = 138
HEADS = (
    "model", "schedule", "predicted ms (90 %)", "measured ms", "error", "against PyTorch (90 %)",
    "over the baseline, predicted / measured", "numbers",
)  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """A part of the README: where it is, as a regular expression, and what stands there."""

    name: str
    place: str
    text: str

    def written(self, readme: str) -> str:
        """What the README says in this place. Raises ValueError if it has no such place."""
        place = re.search(self.place, readme, re.MULTILINE)
        if place is None:
            raise ValueError(f"README.md has no place for {self.name}")
        return place[0]


def pieces() -> list[Piece]:
    """The parts that are made of committed documents."""
    demo = [Validation.load(path) for path in DEMO]
    steps = judged(shipped_validations(), "cpu")
    quoted = "".join(
        f"{fill(line, WIDTH, initial_indent='> ', subsequent_indent='> ', break_on_hyphens=False)}\n" for line in headlines(demo)
    )
    table = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|", *(f"| {' | '.join(row)} |" for row in _rows(demo))]
    covered = f"Of the {len(steps)} steps of all committed validations on CPUs, {100 * coverage(steps):.0f} % lie"
    return [
        Piece("the lines of the demo", r"(?:^> .*\n)+(?=\n\| model \| schedule)", quoted),
        Piece("the table of the demo", r"(?:^\| .*\n|^\|---.*\n)+(?=\n\*error\* is)", "".join(f"{line}\n" for line in table)),
        Piece("the coverage of intervals", r"Of the \d+\s+steps\s+of all committed validations on CPUs,\s+\d+ % lie", covered),
    ]


def _rows(demo: list[Validation]) -> Iterator[tuple[str, ...]]:
    for validation in demo:
        for cells in (cells for cells in validation_cells(validation) if cells["status"] == "ok"):
            judgement = "" if cells["verdict"] == units.NONE else f", {cells['verdict']}"
            numbers = "" if cells["numbers"] == units.NONE else cells["numbers"]
            factors = (cells[f"over baseline, {kind}"].partition(" (")[0] for kind in ("predicted", "measured"))
            yield (
                validation.model, cells["strategy"], f"{cells['predicted ms']} ({cells['90 % interval']})", cells["measured ms"],
                cells["error"], cells["against PyTorch"] + judgement, " / ".join(factors), numbers,
            )  # fmt: skip


def main(path: Path = README) -> None:
    """Write the pieces into the README."""
    text = path.read_text()
    for piece in pieces():
        text = text.replace(piece.written(text), piece.text)
    path.write_text(text)


if __name__ == "__main__":
    main()
