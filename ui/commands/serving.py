"""`schedcast ui`: serves the app."""

import subprocess
import sys
from pathlib import Path

import typer

from simulator.model.usual_batch import source_file
from traces.errors import SchedcastError
from traces.files import kind_at
from traces.process import spec_of
from ui.app.model import start_command


def serve(port: int, reports: list[Path], traces: list[Path], models: list[str]) -> None:
    """Serve the app until it is stopped. `models`: the users' own, FILE.py:FACTORY, which the app offers with the built-in ones.

    The code of a model runs when it is first chosen.
    """
    if not 1 <= port <= 65535:
        raise SchedcastError(f"--port {port} is not a port; choose one from 1024 to 65535")
    for package in ("torch", "streamlit"):
        if spec_of(package) is None:
            raise ModuleNotFoundError(name=package)
    for report in reports:
        if not kind_at(report):
            raise SchedcastError(f"no report at {report}; schedcast validate --out {report} makes one")
    for trace in traces:
        if kind_at(trace) != "file":
            raise SchedcastError(f"no trace at {trace}; record one with torch.profiler and export_chrome_trace")
    for model in models:
        file = source_file(model)
        if ":" not in model or (file is not None and kind_at(file) != "file"):
            raise SchedcastError(f"--model {model!r} is no file's factory; expected FILE.py:FACTORY; built-in models are offered anyway")
    command = start_command(port, [r.resolve() for r in reports], traces=[trace.resolve() for trace in traces], models=models)
    print(f"http://127.0.0.1:{port} (Ctrl-C stops)", file=sys.stderr)
    raise typer.Exit(subprocess.run(command, check=False).returncode)
