"""`--schedule FILE`: a file that the order of a pipeline's actions is read from or, if it does not exist, written to."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.predict.forecast import Forecast
from simulator.stages import grid_csv
from simulator.stages.of_plan import schedule_of
from simulator.stages.schedule import Schedule
from simulator.strategies import registry as strategies
from traces.errors import StepcastError
from traces.files import write_atomic

#: The option of strategies that can follow a file.
_OPTION = "schedule"


@dataclass(frozen=True)
class ScheduleFile:
    """The file of --schedule. It is read if it holds a schedule (`read`), and else written. Without the option, `path` is None.

    `strategy` is the text of the strategy that it belongs to, `options` the options of --set with the file among them if it is read.
    """

    path: Path | None
    strategy: str
    options: dict[str, str]
    read: Schedule | None = None

    @property
    def writes(self) -> bool:
        """Whether the command writes the file."""
        return self.path is not None and self.read is None

    @property
    def inputs(self) -> list[tuple[str, Path | None]]:
        """The file as an input of the command, for `check_outputs`."""
        return [("--schedule", self.path)] if self.read is not None else []

    @property
    def outputs(self) -> dict[str, Path | None]:
        """The file as an output of the command, for `check_outputs`."""
        return {"--schedule": self.path} if self.writes else {}

    def writers(self, forecasts: Mapping[str, Forecast]) -> list[Callable[[], object]]:
        """Functions that write the file, or say that it was read. `forecasts`: by the text of the strategy."""
        return [] if self.path is None else [lambda: self._write(forecasts.get(self.strategy)) if self.writes else self._say_read()]

    def _say_read(self) -> None:
        print(f"stepcast: {self.strategy} followed the schedule in {self.path}: {_size(self.read)}", file=sys.stderr)

    def _write(self, forecast: Forecast | None) -> None:
        """Write the schedule of a plan. Raises StepcastError if there is none."""
        if forecast is None:
            raise StepcastError(f"--schedule {self.path} was not written: {self.strategy} has no plan")
        schedule = schedule_of(forecast.plan)
        write_atomic(self.path, grid_csv.write(schedule))
        print(f"stepcast: wrote the schedule of {self.strategy} to {self.path}: {_size(schedule)}", file=sys.stderr)


def opened(path: Path | None, texts: Sequence[str], shared: Mapping[str, str]) -> ScheduleFile:
    """Check the file of --schedule, and say whether it is read. `texts`: the strategies asked for, `shared`: the options of --set.

    Raises StepcastError unless one of the strategies can follow a file, and for a file whose schedule cannot run.
    """
    if path is None:
        return ScheduleFile(None, "", dict(shared))
    able = [text for text in texts if _OPTION in strategies.parse(text, shared)[0].option_names]
    if len(able) != 1:
        known = ", ".join(strategy.name for strategy in strategies.every() if _OPTION in strategy.option_names)
        given = " and ".join(able) + " do" if able else f"{', '.join(texts)} cannot" if texts else "none is given"
        raise StepcastError(f"--schedule {path} needs one --strategy that follows a schedule ({known}): {given}")
    if strategies.parse(able[0], shared)[1].schedule:
        raise StepcastError(f"--schedule {path} and the option schedule of {able[0]} are the same; leave out one of the two")
    if not os.path.exists(path):
        return ScheduleFile(path, able[0], dict(shared))
    return ScheduleFile(path, able[0], {**shared, _OPTION: str(path)}, grid_csv.read(path))


def _size(schedule: Schedule) -> str:
    ranks, stages, micro_batches = len(schedule.ranks), schedule.stages, schedule.micro_batches
    counts = ((ranks, "rank"), (stages, "stage"), (micro_batches, "micro-batch"))
    texts = [f"{count} {noun if count == 1 else f'{noun}es' if noun.endswith('h') else f'{noun}s'}" for count, noun in counts]
    return f"{texts[0]}, {texts[1]} and {texts[2]}"
