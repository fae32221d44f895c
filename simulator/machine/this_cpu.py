"""This machine's CPU: cores, caches and memory, with nominal figures where nothing was measured."""

import math
import os
import platform
import re
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import psutil

from simulator.machine.machine import BLOCKING, FREE, HOST, LATE, Device, Link, Machine, Memory, Receives
from traces.documents.collectives import SCALED
from traces.errors import Code, SchedcastError
from traces.units import read_number

if TYPE_CHECKING:
    from traces.documents.profile import Profile

#: fp32 FLOPs per cycle and core (units · lanes · 2 for multiply and add) by the first of these flags that the CPU has.
FLOPS_PER_CYCLE = MappingProxyType({"avx512f": 32.0, "avx2": 32.0, "avx": 16.0, "asimd": 16.0, "sse2": 8.0})
#: Instruction sets with products of bf16 (the last one: Arm's). Without them PyTorch converts every element: the ratio of FLOP/s is that of
#: a product of two 512 x 512 matrices on one core of an EPYC that reports none of them (PyTorch 2.13: 49 and 1.25 GFLOP/s).
_HALF_FLAGS, _WITHOUT_HALF = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert", "bf16"}), 1 / 40
_SOURCES = MappingProxyType({
    "peak_flops": (
        "nominal: cores x clock x fp32 FLOPs per cycle (Agner Fog, The microarchitecture of Intel, AMD and VIA CPUs: two 256-bit FMA units "
        "on Zen 2 to 4 and Haswell to Ice Lake client; Intel servers with two 512-bit units reach twice this)"
    ),
    "bandwidth": (
        "assumed: a core draws 20 GB/s alone (a PyTorch copy on an EPYC: 24), three quarters of the cores saturate the memory (two "
        "streaming cores were seen to take 1.25 to 1.43 times as long as one), 200 GB/s at most"
    ),
    "cache": "/sys/devices/system/cpu",
    "memory": "psutil.virtual_memory",
    "task_overhead": "this executor on an AMD EPYC (Zen 4): 5 us, 3 us more with several lanes, 20 us to wake a worker",
})  # fmt: skip
#: Used if the clock or a cache size cannot be read.
_CLOCK_HZ, _CACHE_BYTES = 2.5e9, 8 * 2**20
_BANDWIDTH_PER_CORE, _BANDWIDTH_AT_MOST, _SATURATED_AT = 20e9, 200e9, 0.75
_TASK_OVERHEAD_S, _SHARED_OVERHEAD_S, _WAKE_S = 5e-6, 8e-6, 20e-6
#: Errors of these three (one standard deviation of the logarithm) on another CPU: a factor of two either way, as nobody has measured it.
_OVERHEAD_ERRORS = MappingProxyType({"task_overhead_s": 0.7, "shared_overhead_s": 0.7, "wake_s": 0.7})
#: Latency in seconds and bytes/s between two processes, and their errors: an order of magnitude.
_LOOPBACK = Link("", "", 1e-4, 1e9, latency_error=1.0, bandwidth_error=1.0)
#: Workers pick the most urgent stream head themselves, so any number of levels works.
_PRIORITY_LEVELS = 64


#: Links between groups of cores: none, since they share one memory; or copies at a stated GB/s, as between separate memories.
ALIAS_LINK, COPY_LINK = "alias", "copy"
#: The device of plain PyTorch, which works on one op at a time with all cores.
ALL_CORES = "cpu"


def link_bytes_per_s(link: str) -> float | None:
    """Bytes per second of `copy[:GB/s]` (inf without a rate); None for `alias`. How messages are received may follow (`receives_of`).

    Raises SchedcastError for any other text.
    """
    joined = re.fullmatch(f"(?:(.*),)?({BLOCKING}|{LATE})", link)
    kind, colon, rate = ((joined[1] or ALIAS_LINK) if joined else link).partition(":")
    stated = (read_number(rate) or 0.0) * 1e9 if colon else math.inf
    if kind == ALIAS_LINK and not colon:
        return None
    if kind != COPY_LINK or not stated > 0:
        raise SchedcastError(
            f"link is {link!r}; expected alias, copy, or copy:GB/s with a rate above 0 such as copy:0.5, then if receives block"
            f" ,{BLOCKING} or ,{LATE}"
        )
    return stated


def receives_of(link: str) -> Receives:
    """How messages are received (`Machine.receives`): the text after the comma in `link`, or its whole text; else "free"."""
    last = link.rpartition(",")[2]
    return BLOCKING if last == BLOCKING else LATE if last == LATE else FREE


def this_cpu(
    profile: "Profile | None" = None, cores: int | None = None, devices: int = 1, link: str = ALIAS_LINK, library: str = ""
) -> Machine:
    """This machine's CPU as `devices` equal groups of physical cores, called `cpu:0`, `cpu:1` and so on.

    `cores`: number of cores in all (default: the profile's, else all that this process may use).
    `link`: connection of the groups to each other and to the host (`link_bytes_per_s`, `receives_of`).
    `library`: with a library, every group is a separate process connected to the others over the network; there may be more groups than
    cores, which then share them.

    A profile's measured figures replace the nominal ones, so that a profile of another CPU gives that machine. Raises SchedcastError for
    more cores than there are, or more groups of one process than cores, and for receives that block where nothing is sent.
    """
    available = profile.identity.cores if profile is not None and profile.identity.cores else available_cores()
    count = available if cores is None else cores
    if not 1 <= count <= available:
        raise SchedcastError(f"{count} cores requested; there are {available}; choose 1 to {available}", Code.DEVICES)
    if not 1 <= devices <= count and not library:
        raise SchedcastError(
            f"--devices {devices}: a device has at least one core, and there are {count}; choose 1 to {count}", Code.DEVICES
        )
    fp32 = count * nominal_flops_per_core()
    half = fp32 if cpu_flags() & _HALF_FLAGS else fp32 * _WITHOUT_HALF
    peaks = {"fp32": fp32, "tf32": fp32, "bf16": half, "fp16": half, "fp64": fp32 / 2}
    bandwidth = min(_BANDWIDTH_PER_CORE * max(1.0, _SATURATED_AT * count), _BANDWIDTH_AT_MOST)
    size, last_level, overhead = psutil.virtual_memory().total, cache_bytes(), _TASK_OVERHEAD_S
    shared, wake = _SHARED_OVERHEAD_S, _WAKE_S
    sources, errors = dict(_SOURCES), dict(_OVERHEAD_ERRORS)
    if profile is not None:
        errors = {name: error for name, error in errors.items() if getattr(profile.dispatch, name) is None}
        scale = count / profile.identity.cores if profile.identity.cores else 1.0
        measured = {name: flops * scale for name, flops in profile.peak_flops.items()}
        peaks |= measured
        bandwidth = profile.bandwidth_bytes_per_s or bandwidth
        size, last_level = profile.memory_bytes or size, profile.cache_bytes or last_level
        if profile.dispatch.task_overhead_s is not None:
            overhead = profile.dispatch.task_overhead_s
        shared = shared if profile.dispatch.shared_overhead_s is None else profile.dispatch.shared_overhead_s
        wake = wake if profile.dispatch.wake_s is None else profile.dispatch.wake_s
        if profile.collectives:
            sources["collectives"] = f"{', '.join(profile.collectives)}: measured; {SCALED}"
        sources["profile"] = f"figures measured on {profile.updated} replace those above where the profile has them"
    names = [f"cpu:{index}" for index in range(devices)]
    group = max(1, count // devices)
    device = Device(
        "",
        "cpu",
        group,
        {name: flops * min(group / count, 1 / devices) for name, flops in peaks.items()},
        "memory",
        priority_levels=_PRIORITY_LEVELS,
        task_overhead_s=overhead,
        shared_overhead_s=shared,
        wake_s=wake,
        errors=errors,
    )
    memory = Memory("memory", size, bandwidth, last_level, min(1.0, bandwidth / (_BANDWIDTH_PER_CORE * count)))
    rate, receives = link_bytes_per_s(link), receives_of(link)
    if rate is None and receives != FREE:
        raise SchedcastError(f"link is {link!r}: groups of cores that share memory send nothing; use {COPY_LINK},{receives}")
    links = () if rate is None else tuple(Link(a, b, 0.0, rate) for a, b in permutations((*names, HOST), 2))
    if rate is not None:
        sources["link"] = f"stated: {link}"
    if library:
        links = tuple(replace(_LOOPBACK, source=a, target=b) for a, b in permutations(names, 2))
        sources["link"] = "assumed, until the library is measured: TCP over the loopback interface, 0.1 ms and 1 GB/s"
    groups = tuple(replace(device, name=name) for name in names)
    laws = profile.collectives if profile is not None else {}
    machine = Machine("this-cpu", groups, (memory,), links=links, sources=sources, library=library, receives=receives, collectives=laws)
    together = replace(
        device, name=ALL_CORES, sms=1, peak_flops=peaks, task_overhead_s=0.0, shared_overhead_s=0.0, wake_s=0.0,
        threads=count if profile is None or profile.loop is None else profile.loop.threads or count,
        waiting="" if profile is None or profile.loop is None else profile.loop.waiting,
    )  # fmt: skip
    return replace(
        machine, plain=replace(machine, devices=(replace(together, errors={}),), links=(), library="", receives=FREE, collectives={})
    )


def available_cores() -> int:
    """Physical cores that this process may run on (hyper-threads of one core count once)."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(psutil.cpu_count(logical=False) or 1)
    cores = set()
    for cpu in allowed:
        siblings = _read(f"cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings or str(cpu))
    return max(1, len(cores))


@cache
def cpu_flags() -> frozenset[str]:
    """Instruction sets that the CPU reports, in lower case; empty if the platform does not report them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset({"asimd"}) if platform.machine().lower() in ("arm64", "aarch64") else frozenset()
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return frozenset(flags.lower().partition(":")[2].split())


def nominal_flops_per_core() -> float:
    """Nominal fp32 FLOP/s of one core, from its vector flags and clock."""
    flags = cpu_flags()
    per_cycle = next((flops for flag, flops in FLOPS_PER_CYCLE.items() if flag in flags), 8.0)
    frequency = psutil.cpu_freq()
    mhz = max(frequency.max, frequency.current) if frequency else 0.0
    return per_cycle * (mhz * 1e6 or _CLOCK_HZ)


def cache_bytes() -> int:
    """Bytes of the last-level cache of the first core."""
    sizes = {}
    for index in range(8):
        level, size = _read(f"cpu0/cache/index{index}/level"), _read(f"cpu0/cache/index{index}/size")
        if level.isdigit() and size[:-1].isdigit() and size[-1:] in "KMG":
            sizes[int(level)] = int(size[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[size[-1]]
    return sizes[max(sizes)] if sizes else _CACHE_BYTES


def _read(name: str) -> str:
    try:
        return (Path("/sys/devices/system/cpu") / name).read_text().strip()
    except OSError:
        return ""
