"""This machine's own profile, and the check whether a profile is of this machine."""

import logging
import os
from pathlib import Path

from calibrate.identity import comparable_cpu, this_cpu
from traces.documents.profile import Identity, Profile
from traces.documents.profile_files import default_path

log = logging.getLogger("schedcast")


def open_profile(path: Path | None, create: bool = False, identity: Identity | None = None) -> tuple[Profile, Path]:
    """The profile at `path` (default: this machine's own place). With `create`, an empty profile if there is no file.

    `identity` is that of the device to measure (default: the CPU). Raises UnusableFileError for a file that is missing (without `create`),
    damaged or newer.
    """
    identity = identity or this_cpu()
    place = default_path(identity.name) if path is None else path
    if create and not os.path.exists(place):
        return Profile(identity=identity), place
    return Profile.load(place), place


def own_profile() -> Profile | None:
    """This machine's own CPU profile, or None if there is none or its file cannot be used."""
    path = default_path(comparable_cpu().name)
    if not path.exists():
        return None
    profile = Profile.load(path)
    return profile if not profile.matches(comparable_cpu()) else None


def warn_if_foreign(profile: Profile, place: Path | str, identity: Identity | None = None) -> bool:
    """Whether the profile was measured on another machine or software. If so, one warning names both."""
    mine = identity or comparable_cpu()
    differences = profile.matches(mine)
    if differences:
        words = "; ".join(differences)
        log.warning("profile %s is of %s, this machine is %s: %s", place, profile.identity.name, mine.name, words)
    return bool(differences)
