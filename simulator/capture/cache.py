"""Captured graphs on disk, by a hash of everything that decides them. A damaged entry is captured again."""

import hashlib
import os
from pathlib import Path

from platformdirs import user_cache_dir
from pydantic import TypeAdapter, ValidationError

from simulator.graph import TrainingGraph
from traces.errors import StepcastError
from traces.files import read_json, write_json

_ADAPTER = TypeAdapter(TrainingGraph)
#: Another capture makes other graphs.
_CODE = ("bodies/opcall", "graph", "models/built", "plan/task")
_CODE += tuple(f"capture/{name}" for name in ("capture", "gradients", "intercept", "module_stack", "recorder"))
_CODE += tuple(f"ops/{name}" for name in ("aten_json", "pruned", "recurrent/layers", "recurrent/ops", "recurrent/steps"))


def folder() -> Path:
    """Where graphs are kept; STEPCAST_CACHE overrides the platform's cache folder."""
    return Path(os.environ.get("STEPCAST_CACHE") or user_cache_dir("stepcast")) / "graphs"


def _path(key: tuple) -> Path:
    from importlib.metadata import version

    digest = hashlib.blake2b(repr((key, version("torch"))).encode(), digest_size=16)
    for name in _CODE:
        digest.update((Path(__file__).parents[1] / f"{name}.py").read_bytes())
    return folder() / f"{digest.hexdigest()}.json.gz"


def load(key: tuple) -> TrainingGraph | None:
    """The graph kept under `key`, or None."""
    path = _path(key)
    if not path.exists():
        return None
    try:
        return _ADAPTER.validate_python(read_json(path, "captured graph"))
    except (StepcastError, ValidationError):
        return None


def store(key: tuple, graph: TrainingGraph) -> None:
    """Keep a graph. A cache that cannot be written is no reason to stop: the graph is captured again next time."""
    import logging

    try:
        write_json(_path(key), _ADAPTER.dump_python(graph, mode="json"))
    except StepcastError as error:
        logging.getLogger("stepcast").warning("the captured graph is not kept: %s", error)
