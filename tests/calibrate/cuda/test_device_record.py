"""DeviceRecord and GpuMonitor, with a stand-in for pynvml that answers, refuses, or is missing."""

import os
from types import SimpleNamespace

import pytest
import torch

from calibrate.cuda.device_record import Conditions, DeviceRecord, GpuMonitor, GroupMonitor, gpu_identity
from executors.cuda.driver import GpuFacts
from tests.support.nvml import Nvml


def test_a_record_has_every_fact_with_its_unit():
    nvml = Nvml()
    record = DeviceRecord.read("0123", nvml)
    assert record.notes == ()
    assert record.facts == {
        "driver": "580.65.06", "driver_cuda": "13.0", "nvml": "13.580.65.06", "name": "NVIDIA H200",
        "clock_sm_mhz": 1980, "clock_memory_mhz": 3201, "max_clock_sm_mhz": 1980, "max_clock_memory_mhz": 3201, "throttle": [],
        "power_w": 412.5, "power_limit_w": 700.0, "temperature_c": 41, "ecc": True, "mig": False,
        "pcie_generation": 5, "pcie_width": 16, "other_processes": 0,
    }  # fmt: skip
    assert nvml.opened == 0


def test_unsupported_facts_are_missing():
    refused = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEccMode", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlSystemGetNVMLVersion")
    facts = DeviceRecord.read("GPU-0123", Nvml(refused)).facts
    assert not {"power_w", "ecc", "throttle", "nvml"} & set(facts)
    assert facts["power_limit_w"] == 700.0


def test_without_nvml_there_is_a_note_and_nothing_else():
    record, monitor = DeviceRecord.read("0123", Nvml(("nvmlInit",))), GpuMonitor("0123", Nvml(("nvmlDeviceGetHandleByUUID",)))
    assert record.facts == {}
    assert record.notes == ("the GPU is not watched: NVML does not answer (Not Supported)",)
    conditions = monitor.stop()
    assert (conditions.flags, conditions.rejected) == ((), False)


def test_an_undisturbed_run_has_no_flags():
    nvml = Nvml()
    monitor = GpuMonitor(nvml=nvml)
    nvml.clock = 1965  # within 2 %
    assert monitor.stop() == Conditions((), busy_share=0.0)
    assert nvml.opened == 0


def test_what_other_processes_take_of_the_gpu_is_known_where_they_can_be_told_apart():
    nvml = Nvml()
    monitor = GpuMonitor(nvml=nvml)
    nvml.pids = [os.getpid(), 77]
    nvml.used = [SimpleNamespace(pid=pid, timeStamp=at, smUtil=share) for pid, at, share in [(77, 2, 40), (77, 1, 5), (os.getpid(), 1, 60)]]
    assert monitor.stop().busy_share == 0.4
    nvml.pids = [4001, 4002]  # the host's ids
    assert GpuMonitor(nvml=nvml).stop().busy_share is None


def test_a_desktop_disturbs_by_what_it_uses():
    """An idle one does not, even where it is not known what it uses; one that plays a film does."""
    nvml = Nvml()
    nvml.drawing = [77, 78]
    nvml.used = [SimpleNamespace(pid=77, timeStamp=1, smUtil=1)]
    assert GpuMonitor(nvml=nvml).stop() == Conditions((), busy_share=0.01)
    nvml.used = [SimpleNamespace(pid=77, timeStamp=1, smUtil=30)]
    assert GpuMonitor(nvml=nvml).stop().flags == ("other processes took up to 30 % of the GPU's time",)
    unknown = Nvml(("nvmlDeviceGetProcessUtilization",))
    unknown.drawing = [77, 78]
    assert GpuMonitor(nvml=unknown).stop() == Conditions((), busy_share=None)
    assert DeviceRecord.read(nvml=nvml).facts["other_processes"] == 0


def test_disturbances_are_flagged_in_words():
    nvml = Nvml(("nvmlDeviceGetProcessUtilization",))
    nvml.violations = {1: 5_000_000}
    monitor = GpuMonitor(nvml=nvml)
    nvml.reasons, nvml.clock = 0x40 | 0x02, 1700
    monitor.sample()
    nvml.reasons, nvml.clock = 0x01, 345  # idle again: neither its clock nor the lack of reasons counts
    nvml.violations, nvml.pids = {1: 17_500_000, 3: 0}, [os.getpid(), 77]
    conditions = monitor.stop()
    assert conditions.flags == (
        "throttled by a hardware thermal slowdown",
        "clocks held down for 12.5 ms because of heat",
        "the SM clock drifted between 1700 and 1980 MHz",
        "1 other process on the GPU",
    )
    assert conditions.rejected


@pytest.mark.parametrize(("reasons", "held_down_ns"), [(0x04, 0), (0, 7_000_000)])
def test_the_power_cap_is_a_figure_of_the_work_and_disturbs_nothing(reasons, held_down_ns):
    """A step in bf16 draws what the GPU may draw in every round."""
    nvml = Nvml()
    nvml.violations = {0: 1_000_000}
    monitor = GpuMonitor(nvml=nvml)
    nvml.reasons, nvml.clock, nvml.violations = reasons, 1700, {0: 1_000_000 + held_down_ns}
    conditions = monitor.stop()
    assert not conditions.rejected
    assert conditions.notes == ("the power cap held the SM clock between 1700 and 1980 MHz, at up to 412 W",)


def test_a_power_cap_is_said_also_where_the_clock_is_unknown():
    nvml = Nvml()
    nvml.clock = 0
    monitor = GpuMonitor(nvml=nvml)
    nvml.reasons = 0x04
    assert monitor.stop().notes == ("the power cap held the SM clock down, at up to 412 W",)


@pytest.mark.parametrize(("slowdowns", "flags"), [((1.0, 1.2), ()), ((1.0, 2.0), ("the host launched kernels at 50 % of its speed",))])
def test_a_host_at_half_its_speed_disturbs(slowdowns, flags):
    """Every step that waits for its host takes longer then, whatever the GPU does."""
    conditions = GpuMonitor(nvml=Nvml(), host_slowdown=iter(slowdowns).__next__).stop()
    assert (conditions.flags, conditions.rejected) == (flags, bool(flags))


def test_several_gpus_are_watched_by_name():
    quiet, throttled = Nvml(), Nvml()
    monitor = GroupMonitor({"cuda:0": GpuMonitor(nvml=quiet), "cuda:1": GpuMonitor(nvml=throttled)})
    throttled.reasons = 0x40
    conditions = monitor.stop()
    assert conditions.flags == ("cuda:1: throttled by a hardware thermal slowdown",)
    assert (conditions.rejected, conditions.busy_share) == (True, 0.0)
    assert GroupMonitor({"cuda:0": GpuMonitor(nvml=quiet)}).stop() == Conditions((), busy_share=0.0)


def test_an_idle_start_is_no_drift():
    nvml = Nvml()
    nvml.reasons, nvml.clock = 0x01, 345
    monitor = GpuMonitor(nvml=nvml)
    nvml.reasons, nvml.clock = 0, 1980
    assert monitor.stop().flags == ()


@pytest.mark.parametrize(("pids", "others"), [([], 0), ([4001], 0), ([4001, 4002, 4003], 2)])
def test_in_a_container_one_process_with_an_unknown_id_is_ours(pids, others):
    nvml = Nvml()
    nvml.pids = pids
    assert DeviceRecord.read(nvml=nvml).facts["other_processes"] == others


class StandInDriver:
    """The part of a driver that an identity needs."""

    device = torch.device("cpu")
    facts = GpuFacts("NVIDIA H200", 132, 1 << 37, 60 << 20, (9, 0), 2048, 32, 65536, 233_472, 6)
    asked: tuple[str, ...] = ()

    def software(self):
        return {"torch": "2.11.0+cu130", "cuda": "13.0", "cudnn": "91900", "nccl": "2.28.9", "max_connections": "32"}

    def set_precision(self, precision):
        self.asked += (precision,)
        return {"cudnn_tf32": precision == "tf32", "cudnn_benchmark": False}


def test_a_gpus_identity_has_everything_that_affects_its_times():
    driver = StandInDriver()
    identity = gpu_identity(driver, "tf32", DeviceRecord.read(nvml=Nvml()))
    assert driver.asked == ("tf32",)
    assert identity.name == "gpu-nvidia-h200-132-tf32"
    assert identity.clocks_mhz == {"sm": 1980.0, "mem": 3201.0}
    assert (identity.driver, identity.cuda, identity.torch, identity.tf32) == ("580.65.06", "13.0", "2.11.0", True)
    assert identity.cudnn == {"version": "91900", "cudnn_tf32": True, "cudnn_benchmark": False}
    assert identity.throttle == {}
    wanted = {"capability": "9.0", "l2_bytes": 60 << 20, "nccl": "2.28.9", "max_connections": "32", "ecc": True, "mig": False}
    assert wanted.items() <= identity.extras.items()


def test_an_identity_without_nvml_lacks_only_facts_from_nvml():
    identity = gpu_identity(StandInDriver(), "fp32")
    assert (identity.clocks_mhz, identity.driver, identity.tf32) == ({}, "", False)
    assert "ecc" not in identity.extras
    assert gpu_identity(StandInDriver(), "tf32").differences(identity) == [
        "the cuDNN settings is {'version': '91900', 'cudnn_tf32': True, 'cudnn_benchmark': False} here, "
        "{'version': '91900', 'cudnn_tf32': False, 'cudnn_benchmark': False} there",
        "TF32 is True here, False there",
    ]
