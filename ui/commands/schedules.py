"""`--schedule FILE`: a file that a schedule is read from or, if it does not exist, written to.

A file holds either the order of a pipeline's actions (`stages.grid_csv`) or the order of the tasks of any strategy's plan
(`editor.order_csv`). Its first line says which.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simulator.plan.editor import order_csv
from simulator.plan.editor.order import Order
from simulator.predict.forecast import Forecast
from simulator.strategies import registry as strategies
from simulator.strategies.pipeline import grid_csv
from simulator.strategies.pipeline.grid_csv import schedule_of
from simulator.strategies.pipeline.schedule import Schedule
from simulator.strategies.registry import SCHEDULE
from traces.errors import SchedcastError
from traces.files import kind_at, write_atomic
from traces.units import counted
from ui.request import JobRequest


@dataclass(frozen=True)
class ScheduleFile:
    """The file of --schedule. It is read if it holds a schedule (`read`), and else written. Without the option, `path` is None.

    `asked` is the text of the strategy that it belongs to, `strategy` the text that makes this follow an order of tasks. `texts` are all
    strategies asked for, with this one in place, and `options` those of --set, with the file among them if it is read as actions.
    """

    path: Path | None
    texts: tuple[str, ...]
    options: dict[str, str]
    asked: str = ""
    strategy: str = ""
    read: Schedule | Order | None = None

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

    def followed(self, request: JobRequest) -> JobRequest:
        """The request whose strategies follow the file."""
        return replace(request, strategies=self.texts, settings=tuple(f"{name}={value}" for name, value in self.options.items()))

    def writers(self, forecasts: Mapping[str, Forecast]) -> list[Callable[[], object]]:
        """Functions that write the file, or say that it was read. `forecasts`: by the text of the strategy."""
        path, read = self.path, self.read
        if path is None:
            return []
        if read is None:
            return [lambda: self._write(path, forecasts.get(self.strategy))]
        return [lambda: print(f"schedcast: {self.asked} followed the schedule in {path}: {_size(read)}", file=sys.stderr)]

    def _write(self, path: Path, forecast: Forecast | None) -> None:
        """Write the schedule of a plan. Raises SchedcastError if there is none."""
        if forecast is None:
            raise SchedcastError(f"--schedule {path} was not written: {self.asked} has no plan")
        if _orders_actions(self.asked, self.options):
            actions = schedule_of(forecast.plan)
            text, size = grid_csv.write(actions), _size(actions)
        else:
            order = Order.of(forecast.plan)
            text, size = order_csv.write(order), _size(order)
        write_atomic(path, text)
        print(f"schedcast: wrote the schedule of {self.asked} to {path}: {size}", file=sys.stderr)


def opened(path: Path | None, texts: Sequence[str], shared: Mapping[str, str]) -> ScheduleFile:
    """Check the file of --schedule, and say whether it is read. `texts`: the strategies asked for, `shared`: the options of --set.

    Raises SchedcastError unless one of the strategies can follow the file, and for a file whose schedule cannot run.
    """
    texts, shared = tuple(texts), dict(shared)
    if path is None:
        return ScheduleFile(None, texts, shared)
    able = [text for text in texts if _orders_actions(text, shared)]
    if kind_at(path) and (order_csv.names_tasks(path) or (not able and len(texts) == 1)):
        return _tasks_in(path, texts, shared)
    (asked,) = able if len(able) == 1 else texts if len(texts) == 1 else [None]
    if asked is None:
        known = ", ".join(strategy.name for strategy in strategies.every() if SCHEDULE in strategy.option_names)
        given = " and ".join(able) + " do" if able else "none is given" if not texts else f"{', '.join(texts)} are {len(texts)}"
        raise SchedcastError(f"--schedule {path} needs one --strategy, or one of those that order a pipeline's actions ({known}): {given}")
    if _named_in(asked, shared):
        raise _twice(path, asked)
    if not kind_at(path):
        return ScheduleFile(path, texts, shared, asked, asked)
    return ScheduleFile(path, texts, {**shared, SCHEDULE: str(path)}, asked, asked, grid_csv.read(path))


def _tasks_in(path: Path, texts: tuple[str, ...], shared: dict[str, str]) -> ScheduleFile:
    """The file of --schedule that holds the order of the tasks of one strategy's plan."""
    if len(texts) != 1:
        given = f"{len(texts)} are given" if texts else "none is given"
        raise SchedcastError(f"--schedule {path} orders the tasks of one strategy: {given}; name the file as in NAME:{SCHEDULE}={path}")
    (asked,) = texts
    if _named_in(asked, shared):
        raise _twice(path, asked)
    if "," in str(path):
        raise SchedcastError(f"--schedule {path} has a comma in its name, which ends an option of a strategy; rename the file")
    order = order_csv.read(path)
    strategy = strategies.with_options(asked, f"{SCHEDULE}={path}")
    return ScheduleFile(path, (strategy,), shared, asked, strategy, order)


def _orders_actions(text: str, shared: Mapping[str, str]) -> bool:
    """Whether a strategy is a pipeline that can follow an order of actions."""
    return SCHEDULE in strategies.parse(text, shared)[0].option_names


def _named_in(text: str, shared: Mapping[str, str]) -> bool:
    """Whether a strategy follows a file already."""
    given = {part.partition("=")[0].strip() for part in text.partition(":")[2].split(",")}
    return SCHEDULE in given or bool(shared.get(SCHEDULE))


def _twice(path: Path, text: str) -> SchedcastError:
    return SchedcastError(f"--schedule {path} and the option {SCHEDULE} of {text} are the same; drop one of the two")


def _size(schedule: Schedule | Order) -> str:
    if isinstance(schedule, Order):
        counts = (len(schedule.entries), "task"), (len({entry.lane for entry in schedule.entries}), "lane")
        return " on ".join(counted(*count) for count in counts)
    ranks, stages, microbatches = len(schedule.ranks), schedule.stages, schedule.microbatches
    return f"{counted(ranks, 'rank')}, {counted(stages, 'stage')} and {counted(microbatches, 'microbatch')}"
