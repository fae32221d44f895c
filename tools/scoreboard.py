"""Predicts the shared tables of measured steps, and writes docs/scoreboard.md and its document: python -m tools.scoreboard

What was predicted before, with the same code and tables, is not predicted again.
"""

from tests.support.places import ROOT
from tests.support.shared_data import shared_folder
from traces.documents.shipped import scoreboard_file
from traces.files import write_atomic
from ui.commands.scoring import scored
from ui.present.scoreboards import page

PAGE = ROOT / "docs" / "scoreboard.md"
ELSEWHERE = "a transformer on several GPUs, which docs/transformers.md judges"


def main() -> None:
    """Write the page and the document."""
    folder = shared_folder("")
    if folder is None:
        print("no public measurements next to the repository; set SCHEDCAST_SHARED")
        return
    document = scored([folder], elsewhere=lambda row: "" if row.strategy == "pytorch" else ELSEWHERE).model_copy(update={"steps": ()})
    document.save(scoreboard_file())
    write_atomic(PAGE, page(document))


if __name__ == "__main__":
    main()
