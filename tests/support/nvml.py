"""A stand-in for pynvml that answers, or refuses."""

import os
from types import SimpleNamespace


class NVMLError(Exception):
    """The base class of pynvml's errors."""


class Nvml:
    """pynvml on a machine with one H200. `refused` names the functions that raise Not Supported."""

    NVMLError = NVMLError

    def __init__(self, refused: tuple[str, ...] = ()):
        self.refused, self.opened, self.asked = refused, 0, []
        self.reasons, self.clock, self.violations, self.pids, self.drawing, self.used = 0, 1980, {}, [os.getpid()], [], []

    def __getattr__(self, name: str):
        if not name.startswith("nvml") or name == "nvmlDeviceGetCurrentClocksThrottleReasons":
            raise AttributeError(name)
        assert "Set" not in name

        def ask(*args):
            self.asked.append((name, args))
            if self.opened == 0 and name != "nvmlInit":
                raise NVMLError("Uninitialized")
            if name in self.refused:
                raise NVMLError("Not Supported")
            return getattr(self, f"_{name}")(*args)

        return ask

    def _nvmlInit(self):  # noqa: N802
        self.opened += 1

    def _nvmlShutdown(self):  # noqa: N802
        self.opened -= 1

    def _nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        assert uuid == "GPU-0123"
        return "gpu"

    def _nvmlDeviceGetProcessUtilization(self, handle, since):  # noqa: N802
        return self.used

    def _nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return "gpu"

    def _nvmlDeviceGetClockInfo(self, handle, kind):  # noqa: N802
        return {1: self.clock, 2: 3201}[kind]

    def _nvmlDeviceGetMaxClockInfo(self, handle, kind):  # noqa: N802
        return {1: 1980, 2: 3201}[kind]

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle):  # noqa: N802
        return self.reasons

    def _nvmlDeviceGetViolationStatus(self, handle, policy):  # noqa: N802
        return SimpleNamespace(referenceTime=1, violationTime=self.violations.get(policy, 0))

    def _nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def _nvmlDeviceGetGraphicsRunningProcesses(self, handle):  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid in self.drawing]

    def _nvmlSystemGetDriverVersion(self):  # noqa: N802
        return "580.65.06"

    def _nvmlSystemGetCudaDriverVersion(self):  # noqa: N802
        return 13000

    def _nvmlSystemGetNVMLVersion(self):  # noqa: N802
        return "13.580.65.06"

    def _nvmlDeviceGetName(self, handle):  # noqa: N802
        return "NVIDIA H200"

    def _nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        return 412_500

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle):  # noqa: N802
        return 700_000

    def _nvmlDeviceGetTemperature(self, handle, sensor):  # noqa: N802
        return 41

    def _nvmlDeviceGetEccMode(self, handle):  # noqa: N802
        return [1, 1]

    def _nvmlDeviceGetMigMode(self, handle):  # noqa: N802
        return [0, 0]

    def _nvmlDeviceGetCurrPcieLinkGeneration(self, handle):  # noqa: N802
        return 5

    def _nvmlDeviceGetCurrPcieLinkWidth(self, handle):  # noqa: N802
        return 16
