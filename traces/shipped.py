"""Profiles that come with the package: what calibration measured on GPUs we had, for predictions about them anywhere.

They lie in `data/GPU/` beside this file, GPU being the product's name in lower case with dashes (`nvidia-h200`), one for each setting of
TF32, since it decides which kernels dense ops use.
"""

import os
from pathlib import Path

from .profile import Profile, slug

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
