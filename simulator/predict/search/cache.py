"""A cache of evaluations on disk, keyed by a hash of everything that decides them. A damaged entry counts as missing."""

import hashlib
import logging
import os
from pathlib import Path

from platformdirs import user_cache_dir
from pydantic import ValidationError

from simulator.predict.search.evaluation import Evaluation
from traces.errors import SchedcastError
from traces.files import read_json, write_json


class Cache:
    """The evaluations of one setup, a file each, so that what was evaluated before Ctrl-C is kept."""

    def __init__(self, setup_digest: str):
        """`setup_digest`: `Setup.digest`."""
        self._digest = setup_digest
        self._warned = False

    def _path(self, text: str) -> Path:
        folder = Path(os.environ.get("SCHEDCAST_CACHE") or user_cache_dir("schedcast")) / "searches"
        return folder / f"{hashlib.blake2b(f'{self._digest} {text}'.encode(), digest_size=16).hexdigest()}.json.gz"

    def load(self, text: str) -> Evaluation | None:
        """The evaluation of a candidate, or None."""
        path = self._path(text)
        if not path.exists():
            return None
        try:
            return Evaluation.model_validate(read_json(path, "evaluation"))
        except (SchedcastError, ValidationError):
            return None

    def store(self, evaluation: Evaluation) -> None:
        """Store an evaluation. If the cache cannot be written, log one warning: it is evaluated again next time."""
        try:
            write_json(self._path(evaluation.text), evaluation.model_dump(mode="json"))
        except SchedcastError as error:
            if not self._warned:
                logging.getLogger("schedcast").warning("the search is not cached: %s", error)
            self._warned = True
