"""This machine's own profiles of its CPU and its GPU, and the machine and cost model that `--profile` or `--machine` names."""

import logging
from pathlib import Path

from calibrate.identity import comparable_cpu, cpu_identity
from calibrate.placement import DEFAULT_PLACEMENT, Placement
from simulator.engine.costs.model import CostModel
from simulator.engine.costs.scaled import scaled_costs
from simulator.engine.scenario import GRAPH
from simulator.machine.machine import Machine
from simulator.machine.presets import PYTORCH, THIS_CPU, THIS_GPU, gpu_machine, replicated, together
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import DEFAULT, Job
from simulator.predict.target import Target, dense_precision, preset_target
from traces.documents.profile import Identity, Profile, slug
from traces.documents.profile_files import default_folder, default_path, list_profiles
from traces.errors import SchedcastError
from traces.files import kind_at


def open_profile(path: Path | None, create: bool = False, identity: Identity | None = None) -> tuple[Profile, Path]:
    """The profile at `path` (default: this machine's own place). With `create`, an empty profile if there is no file.

    `identity` is that of the device to measure (default: the CPU). Raises UnusableFileError for a file that is missing (without `create`),
    damaged or newer.
    """
    identity = identity or cpu_identity()
    place = default_path(identity.name) if path is None else path
    if create and not kind_at(place):
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


def target_for(job: Job, profile: Path | None, machine: str | None, placement: Placement = DEFAULT_PLACEMENT) -> Target:
    """The machine of `--profile` or `--machine` with its costs; without either, this machine.

    A preset uses the costs of the profile that is shipped for its GPU, if there is one. With `Placement.scale`, both are scaled.
    Raises SchedcastError for a machine that does not exist, and for a CPU if a GPU or its graphs are asked for.
    """
    target = Target.of(scaled_costs(_costs_for(job, profile, machine, placement), placement.scale), placement.mode)
    known = target.machine
    if placement.mode == GRAPH and known.devices[0].kind == "cpu":
        raise SchedcastError(f"--mode graph needs CUDA; machine {known.name} is a CPU; use --mode eager or a GPU's machine")
    if placement.device != "cpu" and known.devices[0].kind == "cpu":
        raise SchedcastError(f"--device {placement.device}: machine {known.name} is a CPU; drop it or choose a GPU's machine")
    return target


def _costs_for(job: Job, profile: Path | None, machine: str | None, placement: Placement) -> CostModel:
    """The cost model, with its machine as it is."""
    if profile is not None and machine is not None:
        raise SchedcastError(f"--profile {profile} and --machine {machine} both name a machine; choose one of the two")
    named = machine if machine is not None else THIS_CPU if placement.device == "cpu" else THIS_GPU
    measured: Profile | None
    if profile is not None:
        measured = Profile.load(profile)
        if measured.identity.kind == "gpu":
            _check_tf32(measured, profile, job.precision)
            chosen = _gpu(measured, placement, measured.identity.name)
        else:
            chosen = _cpu(measured, placement)
    elif named == THIS_GPU:
        measured = own_gpu_profile(None if job.precision == DEFAULT else job.precision == "tf32")
        if measured is None:
            raise SchedcastError(_no_gpu_profile(job.precision))
        chosen = _gpu(measured, placement)
    elif named == THIS_CPU:
        measured = own_profile()
        chosen = _cpu(measured, placement)
    else:
        limit = placement.memory_limit_bytes
        return preset_target(
            job,
            named,
            placement.devices,
            link=placement.link,
            limit_bytes=limit,
            partitions=placement.partitions,
            host=placement.host,
            network_bytes_per_s=placement.network_bytes_per_s,
        ).costs
    if placement.network is not None:
        raise SchedcastError(f"--network {placement.network} is the rate of a named machine's network; add --machine, such as 16xh100")
    if placement.host != PYTORCH:
        raise SchedcastError(f"--host {placement.host} issues the tasks of a named machine's GPUs; add --machine NAME")
    chosen = chosen.with_memory_limit(placement.memory_limit_bytes)
    return CostModel(chosen, measured, dense_precision(job, measured))


def _cpu(profile: Profile | None, placement: Placement) -> Machine:
    """This CPU or the profile's; its collectives are gloo's if there are several processes."""
    if placement.partitions > 1:
        raise SchedcastError(f"--partition {placement.partition} splits a GPU; use --devices for groups of CPU cores")
    return this_cpu(profile, devices=placement.devices or 1, link=placement.link, library="gloo" if placement.ranks is not None else "")


def _gpu(profile: Profile, placement: Placement, name: str = THIS_GPU) -> Machine:
    """The profile's GPU, split into partitions; or several such GPUs, of one process, or one for each process if there are several."""
    if placement.ranks is not None:
        return replicated(gpu_machine(profile, name=name), placement.ranks.world)
    one, count = gpu_machine(profile, placement.partitions, name), placement.devices or 1
    return together(one, count, profile.transfers) if count > 1 else one


def _check_tf32(profile: Profile, path: Path, precision: str) -> None:
    """Raise SchedcastError if a profile's float32 products ran in another precision than the job's."""
    used = profile.identity.precision
    if precision in ("fp32", "tf32") and used != precision:
        raise SchedcastError(f"--precision {precision}: profile {path} was measured in {used}; use --precision {used}, or another profile")


def _no_gpu_profile(precision: str) -> str:
    name = gpu_here() or "NVIDIA GPU"
    kind = "" if precision == DEFAULT else "tf32 " if precision == "tf32" else "fp32 "
    return (
        f"--machine this-gpu: no calibrated {name} on this machine (no {kind}profile of one in {default_folder()});"
        " schedcast calibrate --device cuda makes one, or use a preset such as h100"
    )
