"""Measurements that come with the package: profiles calibrated on GPUs, so that any machine can predict for them, and validations.

They are in `data/MACHINE/` next to this file. MACHINE of a GPU is the product's name in lower case with dashes (`nvidia-h200`). There is
one profile for each setting of TF32, since TF32 decides which kernels dense ops use. The folder `validations` holds a machine's
validations. `data/papers` has what `schedcast reproduce` predicts of each paper (`make papers`). `data/examples` has two traces that were
made up, small enough to read, and a measured report, for people who have none yet. `data/scoreboard.json` says how accurate predictions are
on measured steps that others published.
"""

import logging
import os
from functools import cache
from pathlib import Path

from traces.documents.comparison import Validation
from traces.documents.profile import Profile, slug
from traces.errors import SchedcastError

FILES = {False: "profile.json.gz", True: "profile-tf32.json.gz"}


def default_folder() -> Path:
    """The folder of the package's measurements, or the folder that the environment variable SCHEDCAST_SHIPPED names."""
    return Path(os.environ.get("SCHEDCAST_SHIPPED") or Path(__file__).parents[1] / "data")


def shipped_profile(product: str, tf32: bool, folder: Path | None = None) -> Profile | None:
    """The profile of the GPU whose product name is `product`, or None if the package has none.

    Raises UnusableFileError if it cannot be read.
    """
    path = (default_folder() if folder is None else folder) / slug(product) / FILES[tf32]
    return Profile.load(path) if slug(product) and path.exists() else None


def shipped_validations(folder: Path | None = None) -> tuple[Validation, ...]:
    """All validations of a folder, ordered by path; read once. A validation that cannot be read is skipped with a warning."""
    return _validations(default_folder() if folder is None else folder)


@cache
def _validations(folder: Path) -> tuple[Validation, ...]:
    validations = []
    for path in sorted(folder.glob("*/validations/*.json")):
        try:
            validations.append(Validation.load(path))
        except SchedcastError as error:
            logging.getLogger("schedcast").warning("%s", error)
    return tuple(validations)


def reproduction_file(paper: str) -> Path:
    """The document of a paper's reproduction; it may be missing."""
    return Path(__file__).parents[1] / "data" / "papers" / f"{paper}.json.gz"


def scoreboard_file() -> Path:
    """The scoreboard of published steps, without the steps."""
    return Path(__file__).parents[1] / "data" / "scoreboard.json"


def example_traces() -> list[Path]:
    """Two made-up traces of one job: its steps wait for data and for `.item()`, and, in the second, less for data."""
    folder = Path(__file__).parents[1] / "data" / "examples"
    return [folder / "slow-loader.json.gz", folder / "fast-loader.json.gz"]


def example_report() -> Path:
    """A report that `schedcast demo` wrote on a CPU with two cores, with its timelines."""
    return Path(__file__).parents[1] / "data" / "examples" / "report-lenet5"
