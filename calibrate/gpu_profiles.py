"""The GPU profiles in this machine's data folder, and the one that belongs to the current GPU."""

import logging

from traces.documents.profile import Profile, slug
from traces.documents.profile_files import list_profiles
from traces.errors import SchedcastError

log = logging.getLogger("schedcast")


def gpu_profiles() -> list[Profile]:
    """The usable GPU profiles, the latest first. One that cannot be read is named in a warning."""
    profiles = []
    for path in list_profiles():
        if path.name.startswith("gpu-"):
            try:
                profiles.append(Profile.load(path))
            except SchedcastError as error:
                log.warning("%s", error)
    return sorted((profile for profile in profiles if profile.identity.kind == "gpu"), key=lambda p: p.updated, reverse=True)


def own_gpu_profile(tf32: bool | None = None) -> Profile | None:
    """The latest profile of this machine's GPU, or None if there is none. If PyTorch sees no GPU here, the latest profile of any GPU.

    `tf32` selects profiles by whether their dense kernels used TF32 (None: either, preferring those without TF32).
    """
    profiles = [profile for profile in gpu_profiles() if tf32 in (None, profile.identity.tf32)]
    name = gpu_here() if profiles else None
    own = [profile for profile in profiles if name is None or slug(profile.identity.gpu) == slug(name)]
    return min(own, key=lambda p: p.identity.tf32, default=None)


def gpu_here() -> str | None:
    """The name of the first GPU that PyTorch sees, or None."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
