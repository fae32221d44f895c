"""The folder of public measurements: beside the repository, or the one that the environment variable SCHEDCAST_SHARED names."""

import os
from pathlib import Path

from tests.support.places import ROOT


def shared_folder(name: str) -> Path | None:
    """The folder `data/NAME` of the shared files; None if it does not exist."""
    given = os.environ.get("SCHEDCAST_SHARED")
    places = [Path(given)] if given else [parent / "shared" for parent in ROOT.parents]
    return next((place / "data" / name for place in places if (place / "data" / name).is_dir()), None)
