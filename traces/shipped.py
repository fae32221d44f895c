"""What comes with the package: profiles that calibration made on GPUs we had, for predictions about them anywhere, and validations.

They lie in `data/MACHINE/` beside this file: for a GPU the product's name in lower case with dashes (`nvidia-h200`), with one profile for
each setting of TF32, since it decides which kernels dense ops use; validations of any machine in its folder `validations`.
"""

import logging
import os
from functools import cache
from pathlib import Path

from traces.comparison import Validation
from traces.errors import StepcastError
from traces.profile import Profile, slug

FILES = {False: "profile.json.gz", True: "profile-tf32.json.gz"}


def default_folder() -> Path:
    """Where the package's profiles lie; the environment variable STEPCAST_SHIPPED names another folder."""
    return Path(os.environ.get("STEPCAST_SHIPPED") or Path(__file__).with_name("data"))


def shipped_profile(product: str, tf32: bool, folder: Path | None = None) -> Profile | None:
    """The profile of the GPU that its maker calls `product`, or None where there is none.

    Raises UnusableFileError for one that cannot be read.
    """
    path = (default_folder() if folder is None else folder) / slug(product) / FILES[tf32]
    return Profile.load(path) if slug(product) and path.exists() else None


def shipped_validations(folder: Path | None = None) -> tuple[Validation, ...]:
    """Every validation there is, by path; read once per folder. One that cannot be read is named in a warning."""
    return _validations(default_folder() if folder is None else folder)


@cache
def _validations(folder: Path) -> tuple[Validation, ...]:
    found = []
    for path in sorted(folder.glob("*/validations/*.json")):
        try:
            found.append(Validation.load(path))
        except StepcastError as error:
            logging.getLogger("stepcast").warning("%s", error)
    return tuple(found)
