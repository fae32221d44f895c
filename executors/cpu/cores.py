"""The cores of this machine, what this process has used of them, and OpenMP's wait policy. Does not need torch.

The policy says what the threads of PyTorch's ops do between two ops. Our workers are pinned to a core each, so their threads must sleep;
PyTorch's own threads spin for a while, which makes them faster when they run alone. So the command line sets the policy for its process,
and plain PyTorch runs in another one with the user's own environment.
"""

import os
from collections.abc import Mapping

_POLICY = "OMP_WAIT_POLICY"
#: Says to processes started from here that the policy in their environment is not the user's.
_OURS = "SCHEDCAST_WAIT_POLICY"
#: The variable that torchrun sets to 1 in each of several processes, unless the user has set it, and one that only torchrun sets.
_THREADS, _TORCHRUN = "OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID"


def wait_passively() -> None:
    """Let threads sleep while they wait, unless the user chose. OpenMP reads it when PyTorch is first imported, so call this before."""
    if _POLICY not in os.environ:
        os.environ |= {_POLICY: "PASSIVE", _OURS: "PASSIVE"}


def user_environment(environment: Mapping[str, str] | None = None, alone: bool = True) -> dict[str, str]:
    """The environment (default: this process's) without what `wait_passively` has added; `alone`: also without what torchrun has."""
    given = dict(os.environ if environment is None else environment)
    if given.pop(_OURS, None) == given.get(_POLICY):
        given.pop(_POLICY, None)
    if alone and _TORCHRUN in given and given.get(_THREADS) == "1":  # plain PyTorch is one process, whatever torchrun started
        del given[_THREADS]
    return given


def waiting(environment: Mapping[str, str]) -> str:
    """What an environment says that threads do while they wait: "active", "passive", or "" if that is left to the OpenMP library."""
    policy = environment.get(_POLICY, "").strip().lower()
    return policy if policy in ("active", "passive") else ""


def available_cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else tuple(range(os.cpu_count() or 1))


def cpu_s() -> float:
    """CPU seconds so far of this process and of its children, those that have ended included."""
    import psutil  # takes a moment, which commands that measure nothing need not wait for

    def used_s(process: psutil.Process) -> float:
        try:
            times = process.cpu_times()
        except psutil.Error:  # it has just ended
            return 0.0
        return times.user + times.system

    own = os.times()
    ended_s = own.children_user + own.children_system
    return own.user + own.system + ended_s + sum(map(used_s, psutil.Process().children(recursive=True)))
