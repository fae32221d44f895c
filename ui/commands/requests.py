"""The strategies and options of a request, checked before anything heavy is loaded or measured."""

from collections.abc import Sequence
from pathlib import Path

from simulator.model.usual_batch import source_file
from simulator.strategies import registry as strategies
from traces.documents.profile_files import list_profiles
from traces.errors import SchedcastError


def settings(pairs: Sequence[str]) -> dict[str, str]:
    """Return the OPTION=VALUE pairs of `--set` as a dictionary. Raises SchedcastError for anything else."""
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise SchedcastError(f"--set {pair!r} is not option=value; give it as in --set update_stream=on")
        values[name] = value
    return values


def requested(texts: list[str], pairs: Sequence[str], devices: int = 1) -> tuple[list[str], dict[str, str]]:
    """Return the requested strategies (default: all that can use `devices` devices) and the options of `--set`.

    Raises SchedcastError for an unknown strategy or option.
    """
    shared = settings(pairs)
    chosen = texts or strategies.names(devices)
    strategies.check_shared(chosen, shared)
    for text in chosen:
        strategies.parse(text, shared)
    return chosen, shared


def inputs(model: str, profile: Path | None = None) -> list[tuple[str, Path | None]]:
    """Return the files that a command reads, with their options: outputs must not overwrite them. Every stored profile is one."""
    return [("--model", source_file(model)), ("--profile", profile), *(("a profile of this machine", path) for path in list_profiles())]
