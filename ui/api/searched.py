"""`search`: every plan that the strategies offer for a job, ranked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from simulator.predict.search.setup import Setup
from traces.documents.search_result import SearchResult
from ui.api.predicted import Predicted, around
from ui.api.shown import Shown
from ui.commands.searching import print_search
from ui.service.progress import progress_bar
from ui.service.searches import ranking_of, tried


@dataclass(frozen=True, repr=False)
class Searched(Shown):
    """Plans ranked by their predicted step, why the best one wins, and which are tied with it."""

    result: SearchResult

    @property
    def best(self) -> str | None:
        """The fastest plan that fits, as strategies are named; None if none fits."""
        return self.result.best

    def json(self) -> dict[str, Any]:
        """See `Shown`."""
        return self.result.document()

    def save(self, path: str | Path) -> Path:
        """See `Shown`."""
        return self.result.save(Path(path))

    def frame(self) -> Any:
        """The ranking as a pandas DataFrame, in seconds and bytes."""
        import pandas as pd

        return pd.DataFrame([plan.model_dump(exclude={"measured"}) for plan in self.result.plans])

    def _print(self, console: Console) -> None:
        print_search(self.result, console)


def search(predicted: Predicted, strategies: Sequence[str], processes: int | None) -> Searched:
    """Search among `strategies` (none: all) for the job of a prediction. See `schedcast.search`."""
    target, request = predicted.target, replace(predicted.request, strategies=tuple(strategies))
    job = predicted.job.on(target.machine.devices[0].kind)
    with around(job):
        setup = Setup(job, target, request.shared)
        names = tried(request, setup)
        with progress_bar(f"searching {job.label}") as report:
            return Searched(ranking_of(request, setup, names, report, processes).result)
