"""Finds the kernels that pieces of work launch, with one session of torch.profiler. The times are not usable: the profiler changes them.

Kineto, the profiler's library, leaves CUPTI attached after a session, which slows down all later launches. It detaches CUPTI if the
environment variable TEARDOWN_CUPTI is 1 when the session ends (libkineto, CuptiActivityApi.cpp).
"""

import logging
import os
import tempfile
import warnings
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, supported_activities

from executors.cuda.driver import Kernel
from traces.errors import UnusableFileError
from traces.formats.kineto import load_trace
from traces.formats.recording import COLLECTIVE, KERNEL, Recording

#: The prefix of the ranges that the trace reader keeps.
_RANGE = "ProfilerStep#"
#: A session after the first of a process may record no kernel at all. Another one then often does.
_SESSIONS = 2
TEARDOWN = "TEARDOWN_CUPTI"
#: The variable of the environment, and its value, that prevent any use of the profiler.
PROFILER, OFF = "SCHEDCAST_PROFILER", "off"
#: The first CUDA version in which CUPTI can be attached again while graphs exist (torch/profiler/profiler.py, start_trace).
_REATTACHES = (12, 6)


def kernels(works: Sequence[Callable[[], object]], device: torch.device) -> list[list[Kernel]] | None:
    """The kernels of each piece of work, in order of start. Returns None, and logs a warning, if the profiler records no GPU work.

    A session that records no kernel is repeated once. None without a warning if the environment turns the profiler off.
    """
    if turned_off():
        return None
    if ProfilerActivity.CUDA not in supported_activities():
        return _refused("PyTorch is built without its CUDA profiler")
    detach_afterwards()
    for _ in range(_SESSIONS):
        listed = _session(works, device)
        if listed is None or any(listed) or not works:
            return listed
    return _refused(f"{_SESSIONS} sessions recorded no kernel")


def turned_off() -> bool:
    """Whether the environment forbids use of the profiler."""
    return os.environ.get(PROFILER) == OFF


def detach_afterwards() -> None:
    """Let the profiler detach CUPTI at the end of each session, if this version of CUDA can, and unless the user has decided."""
    version = tuple(int(part) for part in (torch.version.cuda or "0").split(".")[:2])
    if version >= _REATTACHES:
        os.environ.setdefault(TEARDOWN, "1")


def _session(works: Sequence[Callable[[], object]], device: torch.device) -> list[list[Kernel]] | None:
    """The kernels that one session records, by work; None, after a warning, if the profiler cannot be used."""
    # The ranges are recorded on the host, so its activity is needed too.
    session = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
    try:
        with warnings.catch_warnings(action="ignore"):  # missing kernels are reported below
            session.start()
    except RuntimeError as error:
        return _refused(str(error))
    try:
        torch.cuda.synchronize(device)
        for number, work in enumerate(works):
            with record_function(f"{_RANGE}{number}"):
                work()
                torch.cuda.synchronize(device)
    finally:
        session.stop()
    with tempfile.TemporaryDirectory(prefix="schedcast-") as folder:
        path = Path(folder) / "trace.json"
        try:
            session.export_chrome_trace(str(path))
            return by_range(load_trace(path), len(works))
        except (RuntimeError, UnusableFileError) as error:
            return _refused(str(error))


def by_range(recording: Recording, count: int) -> list[list[Kernel]] | None:
    """The kernels of each of `count` ranges. A kernel belongs to the range in which the host launched it; it also ran within that range.

    Returns None, and logs a warning, if the recording lacks a range.
    """
    begins = sorted((a.start_s, int(a.name.removeprefix(_RANGE))) for a in recording.annotations if a.name.startswith(_RANGE))
    if [number for _, number in begins] != list(range(count)):
        return _refused(f"it recorded {len(begins)} of {count} ranges")
    starts = [begin for begin, _ in begins]
    by_number: list[list[Kernel]] = [[] for _ in range(count)]
    for work in recording.works:
        begin = recording.calls[work.call].start_s if work.call >= 0 else work.start_s
        number = bisect_right(starts, begin) - 1
        if work.category in (KERNEL, COLLECTIVE) and number >= 0:
            by_number[number].append(Kernel(work.name, work.grid, work.block, work.registers, work.shared_bytes, work.duration_s))
    return by_number


def _refused(reason: str) -> list[list[Kernel]] | None:
    """Log a warning. Returns None: no kernels."""
    logging.getLogger("schedcast").warning("kernels cannot be listed because the profiler records no GPU work: %s", reason)
    return None
