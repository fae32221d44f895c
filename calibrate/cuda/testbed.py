"""Measuring on this machine's GPU."""

import logging
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from calibrate.cpu.session import Progress
from calibrate.cuda.anchor import EDGE, GpuAnchor
from calibrate.cuda.bench import Bench, Effort, objects_kept
from calibrate.cuda.concurrency import Sizes
from calibrate.cuda.contention import learn_contention
from calibrate.cuda.dispatch import dispatch_s, plain_machine
from calibrate.cuda.host import measure_host
from calibrate.cuda.rates import measure_rates
from calibrate.cuda.session import calibrate_gpu
from calibrate.cuda.transfers import SIZES, measure_peers, measure_transfers
from calibrate.device_record import Conditions, DeviceRecord, GpuWatch
from calibrate.identity import this_gpu
from executors.cuda.backend import CudaBackend
from executors.cuda.driver import Driver
from executors.reference import Reference
from simulator.costs.contention import concurrent_pairs
from simulator.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.machine.this_gpu import gpu_machine
from simulator.models.factory import brief
from simulator.plan.plan import Plan
from traces.errors import StepcastError
from traces.profile import Identity, Profile, Stats

#: Into how many parts a GPU is split for virtual devices.
SPLITS = (2, 4, 8)
log = logging.getLogger("stepcast")


class GpuTestbed:
    """The GPU behind `driver`, whole or in parts. Keys are measured before the rounds: clocks are steady, and what is not is flagged."""

    periods = 6
    plain_steps = 6
    interleaved = False

    def __init__(
        self,
        driver: Driver,
        mode: str = "eager",
        precision: str = "fp32",
        effort: Effort | None = None,
        anchor_edge: int = EDGE,
        transfer_sizes: Sequence[int] = SIZES,
        deadline_s: float | None = None,
        keep_samples: bool = True,
        kernels: Sizes | None = None,
        partitions: int = 1,
    ):
        """`deadline_s`: seconds after which no further key is measured, in each calibration. `keep_samples`: whether to keep raw ones.

        `kernels`: what co-runs are made of. `partitions`: parts of its SMs, each a device of its own.
        """
        self.driver, self.mode, self._partitions = driver, mode, partitions
        self.precision = "tf32" if precision == "tf32" else "fp32"
        self._effort, self._sizes, self._deadline_s, self._keep_samples = effort, transfer_sizes, deadline_s, keep_samples
        self._kernels = kernels or Sizes()
        self._uuid = getattr(driver, "uuid", "")
        self.record = DeviceRecord.read(self._uuid)
        self.identity = this_gpu(driver, self.precision, self.record)
        self.backend: CudaBackend | None = None
        self._anchor_edge = anchor_edge
        self._plain = driver.stream()  # of plain PyTorch; programs leave streams of their own current
        self.left: tuple[str, ...] = ()  # keys that a deadline left
        self.memory_limit_bytes: float | None = None

    @cached_property
    def _anchor(self) -> GpuAnchor:
        """Made when first asked for: running a plan needs none."""
        return GpuAnchor(self.driver, self._anchor_edge)

    def machine(self, profile: Profile | None) -> Machine:
        """This GPU in its parts; with a profile that does not know the machine yet, after measuring it.

        Raises StepcastError where it cannot be split into so many.
        """
        if profile is None:
            return self._unmeasured().with_memory_limit(self.memory_limit_bytes)
        self.measure_machine(profile)
        profile.partition_sms = {**profile.partition_sms, **self._own_sms()}
        return gpu_machine(profile, self._partitions).with_memory_limit(self.memory_limit_bytes)

    def _unmeasured(self) -> Machine:
        """What is known of this GPU without measuring: enough to run on it."""
        sms = self._own_sms()
        try:
            known = Profile(identity=self.identity, memory_bytes=self.driver.facts.memory_bytes, partition_sms=sms)
            return gpu_machine(known, self._partitions)
        except StepcastError:  # no preset is of this GPU
            return plain_machine(self.driver, self._partitions)

    def _own_sms(self) -> dict[str, int]:
        """SMs of each of its parts, as `Profile.partition_sms`; empty for the whole GPU."""
        count = self._partitions
        return {str(count): self.driver.partitions(count)[0].sms} if count > 1 else {}

    def measure_machine(self, profile: Profile) -> None:
        """Host costs, rates, transfers and the anchor; about ten seconds."""
        if profile.dispatch.dispatch_s is not None:
            return
        bench = Bench(self.driver, effort=self._effort)
        watch = GpuWatch(self._uuid)
        with objects_kept():
            measure_rates(bench, profile, self.precision)
            measure_host(bench, profile, lambda record_s, wait_s: dispatch_s(self.driver, record_s, wait_s, self._effort))
            measure_transfers(bench, profile, sizes=self._sizes)
            self._measure_peers(profile)
        profile.partition_sms = {**profile.partition_sms, **self._partition_sms()}
        profile.anchor_s = Stats.of(self._anchor.sample()).median_s
        self._note(profile, watch.stop())

    def _measure_peers(self, profile: Profile) -> None:
        """Copies between this machine's GPUs, where it has several. They are not needed to run here: what fails becomes a note."""
        try:
            measure_peers(self.driver, profile, self._sizes, self._effort)
        except (StepcastError, RuntimeError) as error:
            self.driver.synchronize()  # raises where this GPU cannot be used any more
            profile.notes = list(dict.fromkeys([*profile.notes, f"copies between GPUs were not measured: {brief(error)}"]))

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure missing keys on this GPU, and co-runs; what disturbed it meanwhile is noted in the profile."""
        plans = list(plans)
        watch = GpuWatch(self._uuid)

        def watched(done: int, total: int, text: str) -> None:
            watch.sample()
            progress(done, total, text)

        self.driver.set_precision(self.precision)
        outcome = calibrate_gpu(plans, machine, self.driver, profile, save_to, watched, self._deadline_s, self._effort, self._keep_samples)
        self.left = outcome.left
        learned = self.measure_contention(plans, machine, profile)
        self._note(profile, watch.stop())
        if (outcome.measured or learned) and save_to is not None:
            profile.save(save_to)
        return outcome.measured

    def preview(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> int:
        """Nothing: keys are measured before the strategies plan for good."""
        return 0

    def measure_contention(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> bool:
        """Co-runs of fixed kernels, once, when lanes of a plan share the GPU. Where they fail, a note says so and nothing is fitted."""
        model = CostModel(machine, profile)
        if profile.contention.co_runs or not any(concurrent_pairs(plan, machine, model.resolve(plan)) for plan in plans):
            return False
        try:
            with objects_kept():
                profile.contention = learn_contention(self.driver, profile, self.precision, self._kernels, self._effort)
        except Exception as error:
            self.driver.synchronize()  # raises where the GPU cannot be used any more
            profile.notes = list(dict.fromkeys([*profile.notes, f"kernels beside each other were not measured: {brief(error)}"]))
            return False
        return True

    def _partition_sms(self) -> dict[str, int]:
        """SMs of each part of the splits that this GPU can make."""
        found = {}
        for count in SPLITS:
            try:
                found[str(count)] = self.driver.partitions(count)[0].sms
            except StepcastError as error:
                log.warning("no partitions: %s", error)
                break
        return found

    @staticmethod
    def _note(profile: Profile, conditions: Conditions) -> None:
        profile.notes = list(dict.fromkeys([*profile.notes, *conditions.flags]))

    def open(self, machine: Machine, plans: Sequence[Plan]) -> None:
        """Make the backend. Nothing is measured in rounds."""
        self.backend = CudaBackend(machine, self.driver, self.mode, self.precision)

    def visit(self, turn: int) -> list[float]:
        """Nothing: keys are measured before."""
        return []

    def anchors(self) -> list[float]:
        """The anchor, timed now."""
        return self._anchor.sample()

    def watch(self) -> GpuWatch:
        """Watch clocks, throttling and other processes."""
        return GpuWatch(self._uuid)

    def take_over(self, profile: Profile, visits: Sequence[int]) -> None:
        """Nothing: keys are measured before."""

    def plain_s(self, plain: Reference, steps: int) -> list[float]:
        """Mean seconds of `steps` steps issued back to back on a stream over the whole GPU, so often."""
        driver = self.driver
        driver.synchronize()
        driver.use(self._plain)
        begin = driver.now_s()
        for _ in range(steps):
            plain.step()
        driver.synchronize()
        return [(driver.now_s() - begin) / steps] * steps

    def settle(self, plain: Reference) -> str:
        """There is one way: on a stream over the whole GPU."""
        return ""

    def about(self) -> dict[str, object]:
        """As documents describe it."""
        return about_gpu(self.identity, self._partitions)


def about_gpu(identity: Identity, partitions: int) -> dict[str, object]:
    """A GPU and its versions as documents describe them; of a GPU in parts, how many."""
    return {
        "kind": "gpu",
        "name": identity.gpu,
        "sms": identity.sms,
        "driver": identity.driver,
        "cuda": identity.cuda,
        "torch": identity.torch,
        **({"devices": partitions} if partitions > 1 else {}),
    }
