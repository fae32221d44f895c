"""`validate`, `run` and `calibrate`: the commands that measure, in a separate process, so that a notebook does not disturb them."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from traces.documents.comparison import Validation
from traces.documents.training import TrainingRun
from traces.errors import SchedcastError
from traces.process import importing_environment
from ui.api.shown import Shown
from ui.present import trainings, validations
from ui.present.blocks import Block, Sentences
from ui.present.terminal import show
from ui.service.progress import COMMAND_LINE, LINES, PROGRESS

#: Exit status of a command with a negative answer: numbers differ, or the job does not fit.
NEGATIVE = 1


@dataclass(frozen=True, repr=False)
class Measured(Shown):
    """The result of a command that measures. `document`: what it prints with `--json`. `right`: whether the outcome is positive."""

    command: str
    document: Mapping[str, Any]
    right: bool

    def json(self) -> dict[str, Any]:
        """See `Shown`."""
        return dict(self.document)

    def _print(self, console: Console) -> None:
        show(console, *_PRINTED[self.command](self.document), details=False)


def measured(command: str, model: Any, options: Mapping[str, Any]) -> Measured:
    """Run `schedcast COMMAND --model MODEL --json` with these options. Its progress goes to standard error.

    `options`: those of the command line with underscores for hyphens; a list gives an option several times, True and False switch it.
    Raises SchedcastError with the command's refusal.
    """
    if not isinstance(model, str | Path):
        raise SchedcastError(f"{command} runs in a process of its own and takes a model by its name, not a {type(model).__name__}; write a"
                             " factory and give FILE.py:FACTORY")  # fmt: skip
    line = [sys.executable, "-m", COMMAND_LINE, command, "--model", str(model), "--json", *_arguments(options)]
    environment = {**importing_environment(), PROGRESS: LINES}
    last = ""
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        for text in process.stderr or ():
            sys.stderr.write(text)
            last = text.strip() or last
        out = process.stdout.read() if process.stdout else ""
    if process.returncode not in (0, NEGATIVE) or not out:
        raise SchedcastError(last.removeprefix("schedcast: ") or f"schedcast {command} ended with status {process.returncode}")
    return Measured(command, json.loads(out), process.returncode == 0)


def _arguments(options: Mapping[str, Any]) -> list[str]:
    arguments: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            arguments.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif value is not None:
            for each in value if isinstance(value, list | tuple) else [value]:
                arguments += [flag, str(each)]
    return arguments


def _validation(document: Mapping[str, Any]) -> list[Block]:
    return validations.printed([Validation.model_validate(document)])


def _training(document: Mapping[str, Any]) -> list[Block]:
    return trainings.blocks(TrainingRun.model_validate(document))


def _calibration(document: Mapping[str, Any]) -> list[Block]:
    return [Sentences([f"{document['measured_keys']} costs measured, {document['keys']} in {document['profile']}"])]


#: By command: the words for its document.
_PRINTED: Mapping[str, Callable[[Mapping[str, Any]], list[Block]]] = {
    "validate": _validation,
    "run": _training,
    "calibrate": _calibration,
}
