"""A cache of captured graphs on disk, keyed by a hash of everything that decides a graph. A damaged entry counts as missing.

Only models whose code and settings are known are cached, not those of users' factories: see `Factory.fingerprint`.
"""

import hashlib
from pathlib import Path

from simulator.model import graph as graphs
from simulator.model.graph import TrainingGraph
from traces.cache import cache_folder, cached
from traces.cache import store as store_document
from traces.errors import SchedcastError

#: Files and folders of the simulator that decide what is captured: their source is part of the hash.
_CODE = ("plan/bodies/opcall.py", "plan/task.py", "model/graph.py", "model/built.py", "model/capture", "model/ops")


def folder() -> Path:
    """Return the folder of the cache."""
    return cache_folder("graphs")


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
    document = cached(_path(key), "captured graph")
    try:
        return graphs.load(document) if document is not None else None
    except SchedcastError:
        return None


def store(key: tuple, graph: TrainingGraph) -> None:
    """Store a graph under `key`. If the cache cannot be written, log a warning: the graph is captured again next time."""
    store_document(_path(key), graphs.dump(graph), "the captured graph is not cached")
