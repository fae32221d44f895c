"""A cache of captured graphs on disk, keyed by a hash of everything that decides a graph. A damaged entry counts as missing.

Only models whose code and settings are known are cached, not those of users' factories: see `Factory.fingerprint`.
"""

import hashlib
import os
from pathlib import Path

from platformdirs import user_cache_dir

from simulator.model import graph as graphs
from simulator.model.graph import TrainingGraph
from traces.errors import SchedcastError
from traces.files import read_json, write_json

#: Files and folders of the simulator that decide what is captured: their source is part of the hash.
_CODE = ("plan/bodies/opcall.py", "plan/task.py", "model/graph.py", "model/built.py", "model/capture", "model/ops")


def folder() -> Path:
    """Return the folder of the cache; SCHEDCAST_CACHE overrides the platform's cache folder."""
    return Path(os.environ.get("SCHEDCAST_CACHE") or user_cache_dir("schedcast")) / "graphs"


def _path(key: tuple) -> Path:
    from importlib.metadata import version

    digest = hashlib.blake2b(repr((key, version("torch"))).encode(), digest_size=16)
    for name in _CODE:
        place = Path(__file__).parents[2] / name
        for file in sorted(place.rglob("*.py")) if place.is_dir() else (place,):
            digest.update(file.read_bytes())
    return folder() / f"{digest.hexdigest()}.json.gz"


def load(key: tuple) -> TrainingGraph | None:
    """Return the graph stored under `key`, or None."""
    path = _path(key)
    if not path.exists():
        return None
    try:
        return graphs.load(read_json(path, "captured graph"))
    except SchedcastError:
        return None


def store(key: tuple, graph: TrainingGraph) -> None:
    """Store a graph under `key`. If the cache cannot be written, log a warning: the graph is captured again next time."""
    import logging

    try:
        write_json(_path(key), graphs.dump(graph))
    except SchedcastError as error:
        logging.getLogger("schedcast").warning("the captured graph is not cached: %s", error)
