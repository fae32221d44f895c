"""What the app needs from the rest of Stepcast: reports to open, and a predictor to ask. This module does not import Streamlit."""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from platformdirs import user_data_path

from calibrate.placement import DEFAULT_PLACEMENT
from simulator.board.board import Board, Fault
from simulator.board.order import Order
from traces.comparison import Prediction
from traces.errors import StepcastError
from traces.profile_files import list_profiles
from traces.search_result import SearchResult
from traces.timeline import Timeline

PREDICTOR_MODULE = "ui.jobs"
#: Prefixes of a trace's path and of a model's name among the app's arguments.
TRACE, MODEL = "--trace=", "--model="
#: How the choice of a stored profile begins among the machines: "profile cpu-amd-epyc-2.json".
PROFILE = "profile "
#: Options of strategies whose values are files, and the command that takes them.
FILES = {"schedule": "stepcast predict --schedule FILE.csv", "config": "stepcast predict --set config=FILE.json"}
#: Starts Streamlit in such a way that it runs no code of the current folder.
LAUNCHER = Path(__file__).with_name("launch.py")
SERVER = Path(__file__).with_name("served") / "server.py"


@dataclass(frozen=True)
class Choices:
    """The choices that the app offers. Names are those of the command line, and the first is chosen at the start."""

    models: tuple[str, ...]
    optimizers: tuple[str, ...]
    forms: tuple[str, ...]
    precisions: tuple[str, ...]
    strategies: tuple[str, ...]
    machines: tuple[str, ...]
    layouts: tuple[str, ...] = ("nchw", "nhwc")
    modes: tuple[str, ...] = ("eager", "graph")


@dataclass(frozen=True)
class Request:
    """A request for predictions: a model on a machine, under some strategies.

    The fields are those of `Job` and `Placement`. `strategies`: texts NAME[:option=value,...]. `image_size`: None for the model's own.
    `machine`: the name of a machine, or PROFILE and the name of a stored profile. `scale`: factors of the machine's figures, as
    `simulator.machine.scaled` reads them. `settings`: (option, value) pairs for every strategy that has the option.
    """

    model: str
    batch: int
    image_size: int | None = None
    optimizer: str = "momentum"
    form: str = "foreach"
    precision: str = "default"
    machine: str = "this-cpu"
    strategies: tuple[str, ...] = ()
    devices: int | None = None
    link: str = DEFAULT_PLACEMENT.link
    partition: int | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    layout: str = "nchw"
    mode: str = DEFAULT_PLACEMENT.mode
    memory_limit_gb: float | None = None
    scale: str = ""
    settings: tuple[tuple[str, str], ...] = ()


#: What the app shows to whoever has not asked for anything yet.
EXAMPLE = Request("resnet18", 32, machine="h100", strategies=("backward-fusion", "turbodl"))


def first_query(own: Sequence[str]) -> dict[str, str | list[str]]:
    """The query of the first prediction: of the first of the users' own models if there is one, else of EXAMPLE."""
    chosen = {"model": own[0]} if own else {"model": EXAMPLE.model, "batch": str(EXAMPLE.batch), "machine": EXAMPLE.machine}
    return chosen | {"strategy": list(EXAMPLE.strategies)}


@dataclass(frozen=True)
class Figure:
    """A figure of a machine, and its unit: 3350 GB/s."""

    value: float
    unit: str


@dataclass(frozen=True)
class MachineFacts:
    """What the controls show of a machine.

    `devices`: most that a job can use; `is_cpu`: they are groups of a CPU's cores. `figures`: by the names of `machine.scaled.ABOUT`.
    `about`: the specification in words. `cautions`: sentences on its profile, or that it has none.
    """

    devices: int
    figures: Mapping[str, Figure]
    is_cpu: bool = False
    about: str = ""
    cautions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forecast:
    """The answer for one strategy: its prediction and timeline. `measured_here`: whether measured costs are this machine's.

    `text`: the strategy as it was asked for. `machine`: the name of the machine.
    """

    prediction: Prediction
    timeline: Timeline
    measured_here: bool = True
    text: str = ""
    machine: str = ""


@dataclass(frozen=True)
class Refusal:
    """The answer for a strategy that cannot be predicted, with the reason in one line."""

    strategy: str
    why: str


@dataclass(frozen=True)
class Searched:
    """The answer to a search: its document, and the timelines of the best plan and of the rival, if there are any."""

    result: SearchResult
    best: Timeline | None
    rival: Timeline | None


@dataclass(frozen=True)
class OnBoard:
    """A strategy's plan on the schedule board: its forecast in its own order, and the answer to another order of its tasks.

    `faults`: why that order computes other numbers or cannot run; `edited`: its forecast, None if there are faults.
    """

    board: Board
    own: Forecast
    faults: tuple[Fault, ...] = ()
    edited: Forecast | None = None


class Predictor(Protocol):
    """The functions of `ui.jobs` that the app calls.

    They take names of the command line. A model is built-in or was named when the app was started, so that no user of the app makes it run
    other code.
    """

    def choices(self) -> Choices:
        """The choices, in the order to show them."""

    def facts(self, request: Request) -> MachineFacts:
        """What the controls show of the request's machine as it is, not scaled. Raises StepcastError if there is no such machine."""

    def predict_many(self, request: Request) -> Sequence[Forecast | Refusal]:
        """The answer for plain PyTorch, then one per strategy of the request, in its order.

        Raises StepcastError if no strategy can be predicted.
        """

    def largest_batch(self, request: Request, strategy: str) -> int | None:
        """The largest batch of a strategy that fits in memory; None if none does. It takes seconds."""

    def on_board(self, request: Request, strategy: str, order: Order | None = None) -> OnBoard:
        """A strategy's plan, and what follows from an order of its tasks (None: its own).

        Raises StepcastError if the strategy cannot be predicted, and OrderError if the tasks are others.
        """

    def search(self, request: Request, progress: Callable[[int, int, str], None]) -> Searched:
        """Rank everything that the request's strategies (none: all) offer. `progress(done, total, text)` is called after each plan."""


def stored_profiles() -> dict[str, Path]:
    """The profiles of the data folder, by their names among the machines."""
    return {f"{PROFILE}{path.name}": path for path in list_profiles()}


def find_predictor() -> Predictor | None:
    """The module `ui.jobs`, or None if this installation has none."""
    try:
        module = importlib.import_module(PREDICTOR_MODULE)
    except ModuleNotFoundError as error:
        if error.name != PREDICTOR_MODULE:
            raise
        return None
    return module if hasattr(module, "predict_many") and hasattr(module, "choices") else None


def report_places(arguments: Sequence[str]) -> list[Path]:
    """Paths of reports and trainings to offer: those named at start, then those in the data folder, newest first."""
    named = [Path(argument).expanduser().resolve() for argument in arguments]
    documents = (path for name in ("report.json", "run.json") for path in reports_folder().glob(f"*/{name}"))
    newest_first = sorted(documents, key=lambda path: path.stat().st_mtime, reverse=True)
    return list(dict.fromkeys([*named, *(path.parent.resolve() for path in newest_first)]))


def reports_folder() -> Path:
    """The folder in the user's data folder whose reports the app offers."""
    return user_data_path("stepcast") / "reports"


def start_command(
    port: int,
    reports: Sequence[Path | str] = (),
    server: Path | str = SERVER,
    traces: Sequence[Path | str] = (),
    models: Sequence[str] = (),
) -> list[str]:
    """The command that serves the app with these reports, traces and models, to this machine only: `http://127.0.0.1:PORT`.

    It runs no code of the folder that it is started in.
    """
    options = ["--server.headless=true", "--server.address=127.0.0.1", f"--server.port={port}", "--server.fileWatcherType=none"]
    options += ["--browser.gatherUsageStats=false", "--client.toolbarMode=viewer"]
    return [
        sys.executable,
        "-P",
        str(LAUNCHER),
        "run",
        str(server),
        *options,
        "--",
        *map(str, reports),
        *(f"{TRACE}{trace}" for trace in traces),
        *(f"{MODEL}{model}" for model in models),
    ]


def start_arguments() -> list[str]:
    """The reports that the app was started with."""
    return [argument for argument in sys.argv[1:] if not argument.startswith((TRACE, MODEL))]


def start_traces() -> list[Path]:
    """The recorded traces that the app was started with."""
    return [Path(argument.removeprefix(TRACE)) for argument in sys.argv[1:] if argument.startswith(TRACE)]


def start_models() -> list[str]:
    """The users' own models that the app was started with. No other code of a user runs."""
    return [argument.removeprefix(MODEL) for argument in sys.argv[1:] if argument.startswith(MODEL)]


def check_reads_no_file(options: Iterable[str]) -> None:
    """Raise StepcastError for an option, by name, whose value is a file: whoever reaches the app must not make it read files."""
    named = next((name for name in options if name in FILES), None)
    if named is not None:
        raise StepcastError(f"the app reads no {named} files; use {FILES[named]}")


def parse_settings(text: str) -> tuple[tuple[str, str], ...]:
    """Read "name=value, name=value". Raises StepcastError for anything else."""
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise StepcastError(f"cannot read the option {part!r}; expected name=value, several separated by commas")
        pairs.append((name, value))
    return tuple(pairs)
