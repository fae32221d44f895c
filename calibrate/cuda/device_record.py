"""Reads a GPU's settings through NVML, and watches whether a measurement ran undisturbed. Never changes a setting.

Virtual machines and containers leave many questions unanswered: what is not known is missing. The identity of a GPU has these settings.
"""

import importlib
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from pydantic import JsonValue

from executors.cuda.driver import Driver
from traces.documents.profile import Identity

_POWER_CAP = 0x04
#: Reasons for reduced clocks, by the bits of nvmlDeviceGetCurrentClocksEventReasons.
THROTTLE = {
    _POWER_CAP: "the power cap",
    0x08: "a hardware slowdown",
    0x20: "a software thermal slowdown",
    0x40: "a hardware thermal slowdown",
    0x80: "the power brake",
}
_IDLE = 0x01
#: Causes of violations by NVML_PERF_POLICY_*. NVML counts the nanoseconds that each has held clocks down since the driver was loaded.
_POWER = 0
_VIOLATIONS = {_POWER: "power", 1: "heat", 3: "a board limit", 5: "reliability"}
_SM, _MEMORY = 1, 2  # NVML_CLOCK_*
LARGEST_DRIFT = 0.02
#: The largest share of the SMs' time that other processes may take of an undisturbed measurement; a desktop that nobody uses takes less.
LARGEST_OTHERS = 0.03
#: How many times as long as its fastest launches those of a host may take that runs at its usual speed.
LARGEST_SLOWDOWN = 1.5


@dataclass(frozen=True)
class DeviceRecord:
    """What NVML reports about a GPU: `facts` by name, with units in the names. `notes` say why there are none."""

    facts: dict[str, JsonValue] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @staticmethod
    def read(uuid: str = "", nvml: ModuleType | None = None) -> "DeviceRecord":
        """Ask NVML now about the GPU with this `uuid`, in PyTorch's form (default: the first GPU). `nvml` replaces the module pynvml."""
        with _Nvml(uuid, nvml) as gpu:
            return DeviceRecord(gpu.facts(), gpu.notes)


@dataclass(frozen=True)
class Conditions:
    """The conditions of a measurement: `flags` say in words what disturbed it.

    `busy_share`: the share of the SMs' time that other processes took, at most; None if NVML does not say. `power_cap`: what the power cap
    did to the clock, in words; empty if it did nothing. Work that draws as much power as the GPU may meets the cap in every run, so it is
    a figure of that work and no disturbance: repeating the measurement would not help.
    """

    flags: tuple[str, ...] = ()
    busy_share: float | None = None
    power_cap: str = ""

    @property
    def rejected(self) -> bool:
        return bool(self.flags)

    @property
    def notes(self) -> tuple[str, ...]:
        """All that is worth noting, in words."""
        return (*filter(None, [self.power_cap]), *self.flags)


class GpuMonitor:
    """Watches a GPU from its creation until `stop`.

    Call `sample` now and then: clocks and throttling are seen only at those moments.
    """

    def __init__(self, uuid: str = "", nvml: ModuleType | None = None, host_slowdown: Callable[[], float] | None = None):
        """`host_slowdown`: how many times as long as ever the host takes for the same launches now; asked at the begin and at the end."""
        self._host_slowdown = host_slowdown or (lambda: 1.0)
        self._slowest = self._host_slowdown()
        self._gpu = _Nvml(uuid, nvml)
        self._violations = self._gpu.violations_ns()
        self._reasons = 0
        self._clocks: list[int] = []
        self._watts: list[float] = []
        self._others = 0
        self._shares: list[float] = []
        self.sample()

    def sample(self) -> None:
        """Read clock, throttling and processes now. A clock counts only if the GPU is at work, since idle clocks are low."""
        reasons = self._gpu.reasons()
        self._reasons |= reasons or 0
        clock = self._gpu.clock_mhz(_SM)
        if clock and not (reasons or 0) & _IDLE:
            self._clocks.append(clock)
        if (watts := self._gpu.power_w()) is not None:
            self._watts.append(watts)
        if (share := self._gpu.others_share()) is not None:
            self._shares.append(share)
        else:  # what a process that computes takes is unknown, and may be anything
            self._others = max(self._others, self._gpu.other_processes() or 0)

    def stop(self) -> Conditions:
        self.sample()
        flags = []
        if throttled := throttle_words(self._reasons & ~_POWER_CAP):
            flags.append(f"throttled by {', '.join(throttled)}")
        held_down_ns = {policy: after - self._violations.get(policy, after) for policy, after in self._gpu.violations_ns().items()}
        flags += [
            f"clocks held down for {ns / 1e6:.3g} ms because of {_VIOLATIONS[policy]}"
            for policy, ns in held_down_ns.items()
            if ns > 0 and policy != _POWER
        ]
        capped = self._reasons & _POWER_CAP or held_down_ns.get(_POWER, 0) > 0
        if not capped and self._clocks and (low := min(self._clocks)) < (1 - LARGEST_DRIFT) * (high := max(self._clocks)):
            flags.append(f"the SM clock drifted between {low} and {high} MHz")
        if (share := max(self._shares, default=0.0)) > LARGEST_OTHERS:
            flags.append(f"other processes took up to {100 * share:.0f} % of the GPU's time")
        elif self._others:
            flags.append(f"{self._others} other process{'es' if self._others > 1 else ''} on the GPU")
        if (slowest := max(self._slowest, self._host_slowdown())) > LARGEST_SLOWDOWN:
            flags.append(f"the host launched kernels at {100 / slowest:.0f} % of its speed")
        self._gpu.close()
        return Conditions(tuple(flags), max(self._shares, default=None), self._cap_words() if capped else "")

    def _cap_words(self) -> str:
        low, high = min(self._clocks, default=0), max(self._clocks, default=0)
        if low and low == high:  # it was held down between two readings, and so the power was read at other moments too
            return f"the power cap held the SM clock down for moments; it was {low} MHz whenever it was read"
        clock = f" between {low} and {high} MHz" if low else " down"
        power = f", at up to {max(self._watts):.0f} W" if self._watts else ""
        return f"the power cap held the SM clock{clock}{power}"


class GroupMonitor:
    """Watches several GPUs, by device name."""

    def __init__(self, monitors: Mapping[str, GpuMonitor]):
        self._monitors = monitors

    def stop(self) -> Conditions:
        """The conditions of all: each flag names its GPU, and the share that others took is the largest."""
        each = {name: monitor.stop() for name, monitor in self._monitors.items()}
        flags = tuple(f"{name}: {flag}" for name, own in each.items() for flag in own.flags)
        shares = [own.busy_share for own in each.values() if own.busy_share is not None]
        capped = "; ".join(f"{name}: {own.power_cap}" for name, own in each.items() if own.power_cap)
        return Conditions(flags, max(shares, default=None), capped)


def throttle_words(reasons: int) -> list[str]:
    """The reasons for throttling in the bits, in words."""
    return [words for bit, words in THROTTLE.items() if reasons & bit]


class _Nvml:
    """One GPU through NVML. Every question has an answer or None."""

    def __init__(self, uuid: str, nvml: ModuleType | None):
        self.notes: tuple[str, ...] = ()
        self._open = False
        try:
            self._nvml = nvml or importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._open = True
            if uuid:
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
            else:
                self._handle = self._nvml.nvmlDeviceGetHandleByIndex(0)
        except Exception as error:  # package, library, driver or permission missing: the exception's class differs, also between versions
            self._handle = None
            self.notes = (f"the GPU is not watched: NVML does not answer ({error})",)

    def __enter__(self) -> "_Nvml":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut NVML down, once."""
        if self._open:
            self._open = False
            self._safely(self._nvml.nvmlShutdown)

    def _safely(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except self._nvml.NVMLError:
            return None

    def _ask(self, name: str, *args: Any) -> Any:
        """The answer of one nvmlDevice function, or None if it does not exist in this version or does not answer."""
        function = getattr(self._nvml, f"nvmlDevice{name}", None) if self._handle is not None else None
        return self._safely(function, self._handle, *args) if function else None

    def clock_mhz(self, kind: int) -> int | None:
        return self._ask("GetClockInfo", kind)

    def power_w(self) -> float | None:
        milliwatts = self._ask("GetPowerUsage")
        return None if milliwatts is None else milliwatts / 1000

    def reasons(self) -> int | None:
        reasons = self._ask("GetCurrentClocksEventReasons")
        return self._ask("GetCurrentClocksThrottleReasons") if reasons is None else reasons  # its name before driver 535

    def violations_ns(self) -> dict[int, int]:
        answers = {policy: self._ask("GetViolationStatus", policy) for policy in _VIOLATIONS}
        return {policy: int(answer.violationTime) for policy, answer in answers.items() if answer is not None}

    def other_processes(self) -> int | None:
        """How many other processes compute on the GPU. Those that only draw, such as a desktop's, are not counted.

        In a container NVML reports the host's process ids, so this process's own id is not among them: then one of them is taken to be this
        one.
        """
        pids = self._pids("Compute")
        if pids is None:
            return None
        return max(0, len(pids) - 1) if os.getpid() not in pids else len(pids - {os.getpid()})

    def others_share(self) -> float | None:
        """The share of the SMs' time that other processes took lately; None if it is unknown, as where process ids are the host's."""
        computing, drawing = self._pids("Compute"), self._pids("Graphics") or set()
        if computing is None or not (computing | drawing) - {os.getpid()}:
            return None if computing is None else 0.0
        used = self._ask("GetProcessUtilization", 0) if os.getpid() in computing | drawing else None
        if used is None:
            return None
        latest = {sample.pid: sample.smUtil for sample in sorted(used, key=lambda sample: sample.timeStamp)}
        return sum(percent for pid, percent in latest.items() if pid != os.getpid()) / 100

    def _pids(self, kind: str) -> set[int] | None:
        """The processes that use the GPU in one way: Compute or Graphics. None if NVML does not say."""
        processes = self._ask(f"Get{kind}RunningProcesses")
        return None if processes is None else {process.pid for process in processes}

    def facts(self) -> dict[str, JsonValue]:
        """All known facts that are worth recording."""
        if self._handle is None:
            return {}
        reasons, limit = self.reasons(), self._ask("GetEnforcedPowerLimit")
        ecc, mig = self._ask("GetEccMode"), self._ask("GetMigMode")
        cuda = self._safely(self._nvml.nvmlSystemGetCudaDriverVersion)
        facts = {
            "driver": self._safely(self._nvml.nvmlSystemGetDriverVersion),
            "driver_cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            "nvml": self._safely(self._nvml.nvmlSystemGetNVMLVersion),
            "name": self._ask("GetName"),
            "clock_sm_mhz": self.clock_mhz(_SM),
            "clock_memory_mhz": self.clock_mhz(_MEMORY),
            "max_clock_sm_mhz": self._ask("GetMaxClockInfo", _SM),
            "max_clock_memory_mhz": self._ask("GetMaxClockInfo", _MEMORY),
            "throttle": None if reasons is None else throttle_words(reasons),
            "power_w": self.power_w(),
            "power_limit_w": None if limit is None else limit / 1000,
            "temperature_c": self._ask("GetTemperature", 0),  # NVML_TEMPERATURE_GPU
            "ecc": None if ecc is None else bool(ecc[0]),
            "mig": None if mig is None else bool(mig[0]),
            "pcie_generation": self._ask("GetCurrPcieLinkGeneration"),
            "pcie_width": self._ask("GetCurrPcieLinkWidth"),
            "other_processes": self.other_processes(),
        }
        return {name: value for name, value in facts.items() if value is not None}


def gpu_identity(driver: Driver, precision: str, record: DeviceRecord | None = None) -> Identity:
    """Identity of the driver's GPU with the software and the flags that decide an op's time, which are set for `precision`.

    `record` holds what NVML reports about the same GPU. Without it, or where NVML does not answer, clocks and settings are missing.
    """
    facts, software = driver.facts, driver.software()
    reported: Mapping[str, Any] = record.facts if record else {}
    flags: dict[str, Any] = driver.set_precision(precision)
    clocks = {"sm": reported.get("max_clock_sm_mhz"), "mem": reported.get("max_clock_memory_mhz")}
    extras: dict[str, Any] = {
        "capability": f"{facts.capability[0]}.{facts.capability[1]}",
        "l2_bytes": facts.cache_bytes,
        "nccl": software.get("nccl"),
        "max_connections": software.get("max_connections"),
        "ecc": reported.get("ecc"),
        "mig": reported.get("mig"),
        "pcie_generation": reported.get("pcie_generation"),
        "pcie_width": reported.get("pcie_width"),
        "python": platform.python_version(),
    }
    return Identity(
        kind="gpu",
        gpu=facts.name,
        sms=facts.sms,
        clocks_mhz={name: float(clock) for name, clock in clocks.items() if clock is not None},
        driver=software.get("driver") or str(reported.get("driver", "")),
        cuda=software.get("cuda", ""),
        torch=software.get("torch", "").split("+")[0],
        cudnn={"version": software.get("cudnn", "")} | flags,
        tf32=precision == "tf32",
        conv_tf32=precision == "default",
        extras={name: value for name, value in extras.items() if value is not None},
    )


def describe_gpu(identity: Identity, devices: int = 1) -> dict[str, object]:
    """A GPU and its software versions as documents describe them, with the number of partitions, or of such GPUs, if there are several."""
    return {
        "kind": "gpu",
        "name": identity.gpu,
        "sms": identity.sms,
        "driver": identity.driver,
        "cuda": identity.cuda,
        "torch": identity.torch,
        **({"devices": devices} if devices > 1 else {}),
    }
