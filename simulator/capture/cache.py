"""A cache of captured graphs on disk, keyed by a hash of everything that decides a graph. A damaged entry counts as missing."""

import hashlib
import os
from pathlib import Path

from platformdirs import user_cache_dir

from simulator import graph as graphs
from simulator.graph import TrainingGraph
from traces.errors import StepcastError
from traces.files import read_json, write_json

#: Modules that decide what is captured: their source is part of the hash.
_CODE = ("bodies/opcall", "graph", "models/built", "plan/task")
_CODE += tuple(f"capture/{name}" for name in ("capture", "gradients", "intercept", "module_stack", "recorder"))
_CODE += tuple(f"ops/{name}" for name in ("aten_json", "pruned", "recurrent/layers", "recurrent/ops", "recurrent/steps"))


def folder() -> Path:
    """Return the folder of the cache; STEPCAST_CACHE overrides the platform's cache folder."""
    return Path(os.environ.get("STEPCAST_CACHE") or user_cache_dir("stepcast")) / "graphs"


def _path(key: tuple) -> Path:
    from importlib.metadata import version

    digest = hashlib.blake2b(repr((key, version("torch"))).encode(), digest_size=16)
    for name in _CODE:
        digest.update((Path(__file__).parents[1] / f"{name}.py").read_bytes())
    return folder() / f"{digest.hexdigest()}.json.gz"


def load(key: tuple) -> TrainingGraph | None:
    """Return the graph stored under `key`, or None."""
    path = _path(key)
    if not path.exists():
        return None
    try:
        return graphs.load(read_json(path, "captured graph"))
    except StepcastError:
        return None


def store(key: tuple, graph: TrainingGraph) -> None:
    """Store a graph under `key`. If the cache cannot be written, log a warning: the graph is captured again next time."""
    import logging

    try:
        write_json(_path(key), graphs.dump(graph))
    except StepcastError as error:
        logging.getLogger("stepcast").warning("the captured graph is not cached: %s", error)
