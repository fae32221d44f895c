"""The profiles of GPUs in this machine's data folder, and which of them is of the GPU at hand."""

import logging

from traces.errors import StepcastError
from traces.profile import Profile, slug
from traces.profile_files import list_profiles

log = logging.getLogger("stepcast")


def gpu_profiles() -> list[Profile]:
    """The usable ones, the latest first. One that cannot be read is named in a warning."""
    found = []
    for path in list_profiles():
        if path.name.startswith("gpu-"):
            try:
                found.append(Profile.load(path))
            except StepcastError as error:
                log.warning("%s", error)
    return sorted((profile for profile in found if profile.identity.kind == "gpu"), key=lambda p: p.updated, reverse=True)


def own_gpu_profile(tf32: bool | None = None) -> Profile | None:
    """The latest profile of this machine's GPU, or of any where PyTorch sees none here; None where there is none.

    `tf32`: whether its dense kernels used TF32 (None: either, without TF32 if there is a choice).
    """
    known = [profile for profile in gpu_profiles() if tf32 in (None, profile.identity.tf32)]
    name = gpu_here() if known else None
    mine = [profile for profile in known if name is None or slug(profile.identity.gpu) == slug(name)]
    return min(mine, key=lambda p: p.identity.tf32, default=None)


def gpu_here() -> str | None:
    """The name of the first GPU that PyTorch sees."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
