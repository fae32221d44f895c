"""How the app is started, and what it offers at first: reports, traces and an example. This module does not import Streamlit."""

import sys
from collections.abc import Sequence
from pathlib import Path

from traces.documents.profile_files import user_folder
from traces.errors import SchedcastError
from ui.request import MODEL, JobRequest

#: Prefix of a trace's path among the app's arguments.
TRACE = "--trace="
#: Starts Streamlit so that it runs no code of the current folder.
LAUNCHER = Path(__file__).with_name("launch.py")
SERVER = Path(__file__).with_name("served") / "server.py"
#: What the app shows before the first request.
EXAMPLE = JobRequest("resnet18", 32, machine="h100", strategies=("backward-fusion", "turbodl"))
#: A language model on several GPUs, with what is usual for it.
LANGUAGE_MODEL = JobRequest("llama3:8b", 16, machine="8xh100")


def first_query(own: Sequence[str]) -> dict[str, list[str]]:
    """The query of the first prediction: of the first of the users' own models if there is one, else of EXAMPLE."""
    chosen = {"model": [own[0]]} if own else {"model": [EXAMPLE.model], "batch": [str(EXAMPLE.batch)], "machine": [EXAMPLE.machine]}
    return chosen | {"strategy": list(EXAMPLE.strategies)}


def report_places(arguments: Sequence[str]) -> list[Path]:
    """Paths of reports and trainings to offer: those named at start, then those in the data folder, newest first."""
    named = [Path(argument).expanduser().resolve() for argument in arguments]
    documents = (path for name in ("report.json", "run.json") for path in reports_folder().glob(f"*/{name}"))
    newest_first = sorted(documents, key=lambda path: path.stat().st_mtime, reverse=True)
    return list(dict.fromkeys([*named, *(path.parent.resolve() for path in newest_first)]))


def reports_folder() -> Path:
    """The folder in the user's data folder whose reports the app offers."""
    return user_folder() / "reports"


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


def parse_settings(text: str) -> tuple[str, ...]:
    """The parts of "name=value, name=value". Raises SchedcastError for anything else."""
    pairs = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals and value):
            raise SchedcastError(f"cannot read the option {part!r}; expected name=value, several separated by commas")
        pairs.append(f"{name}={value}")
    return tuple(pairs)
