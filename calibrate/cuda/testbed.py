"""The testbed of this machine's GPU, with plain PyTorch's training on it and the host's time in PyTorch's own loop."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, pairwise
from pathlib import Path
from typing import TypeVar

import torch

from calibrate.cuda.bench import Bench, Effort, objects_kept, stalled, wait
from calibrate.cuda.contention import Sizes, learn_contention
from calibrate.cuda.device_record import Conditions, DeviceRecord, GpuMonitor, GroupMonitor, describe_gpu, gpu_identity
from calibrate.cuda.host import (
    HostYardstick,
    TinyOps,
    after_profiler,
    before_profiler,
    dispatch_s,
    measure_host,
    measure_launches,
    plain_machine,
)
from calibrate.cuda.rates import EDGE, ReferenceKernel, measure_rates
from calibrate.cuda.sampler import calibrate_gpu
from calibrate.cuda.transfers import SIZES, measure_peers, measure_transfers
from calibrate.numerics import reference
from calibrate.testbed import Monitor, Progress, Testbed, TimedLoop
from calibrate.tiny_model import loop_costs
from executors.cuda.backend import CudaBackend
from executors.cuda.driver import STALLED, Driver, GpuStalledError, Graph, Stream, timing_event
from executors.cuda.partitions import runnable_mode
from executors.program import WARM_UP, Backend
from executors.reference import Reference
from executors.tensors import module_tensors
from simulator.engine.costs.contention import concurrent_pairs, precisions
from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.machine.presets import gpu_machine, together
from simulator.model.built import Built
from simulator.model.job import DEFAULT, Job
from simulator.model.user_code import brief, training_step
from simulator.plan.plan import Plan
from traces.documents.comparison import OTHER_LOOPS, PYTORCH_GRAPH
from traces.documents.profile import LoopCosts, Profile, Stats
from traces.errors import Code, SchedcastError


class GpuLoop:
    """Plain PyTorch on a stream of the whole GPU (`calibrate.testbed.PlainLoop`)."""

    about = ""

    def __init__(self, plain: Reference, driver: Driver, stream: Stream, batch: int):
        """`batch`: the number of samples per step."""
        self._plain, self._driver, self._stream, self._batch = plain, driver, stream, batch
        self.losses: list[float] = []

    def train(self, steps: int, batches: Sequence[tuple] | None = None) -> list[float]:
        """Issue the steps back to back. Each ends when the stream has done its work. Batches are moved to the device before them."""
        if batches is not None:
            batches = [(tuple(map(self._moved, inputs)), self._moved(target)) for inputs, target in batches]
        driver, losses = self._driver, []
        driver.synchronize()
        driver.use(self._stream)
        with training_step(self._batch):
            ends = [timing_event(driver, self._stream)]
            for number in range(steps):
                if batches is not None:
                    self._plain.feed(*batches[number])
                losses.append(self._step())
                ends.append(timing_event(driver, self._stream))
            driver.synchronize()
        self.losses += map(float, losses)
        return [begin.elapsed_time(end) * 1e-3 for begin, end in pairwise(ends)]

    def _step(self) -> torch.Tensor:
        return self._plain.step()

    def copy_current(self, targets: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in module_tensors(self._plain.module).items():
            targets[name].detach().copy_(tensor.detach())

    def restart(self, warm_up: int) -> None:
        """Do nothing: the loop has no separate process, and PyTorch retains the GPU's memory between steps."""

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(next(self._plain.module.parameters()).device)


class GraphLoop(GpuLoop):
    """Plain PyTorch whose steps replay one CUDA graph, as torch.cuda.graph captures it after some steps."""

    def __init__(self, plain: Reference, driver: Driver, stream: Stream, batch: int):
        """Raises SchedcastError if the step cannot be captured."""
        super().__init__(plain, driver, stream, batch)
        self._graph: Graph | None = None
        self.train(WARM_UP)
        try:
            with training_step(batch), driver.capture(stream) as graph:
                self._loss = plain.step()
        except GpuStalledError:
            raise
        except Exception as error:  # whatever a model does that a capture forbids
            wait(driver)  # raises where the GPU cannot be used any more
            raise SchedcastError(f"a step of plain PyTorch cannot be captured in a CUDA graph: {brief(error)}", Code.MODEL) from error
        self._graph = graph

    def _step(self) -> torch.Tensor:
        if self._graph is None:
            return super()._step()
        self._graph.replay()
        return self._loss.clone()


def measure_loop(bench: Bench, tiny: TinyOps, steps: int) -> LoopCosts:
    """Time the host in `steps` steps of a loop of tiny ops on an idle stream, against the executor's issue of the same ops one by one."""
    driver = bench.driver
    driver.use(bench.stream)

    def seconds_of(work: Callable[[], object]) -> float:
        driver.synchronize()
        begin = driver.now_s()
        work()
        return driver.now_s() - begin

    costs = loop_costs(
        tiny.loop_job,
        tiny.loop,
        tiny.machine,
        own_s=tiny.issue_s,
        seconds_of=seconds_of,
        backend=CudaBackend(tiny.machine, driver),
        steps=steps,
    )
    driver.synchronize()
    return costs


#: The entry of a device's description that says why the mode is not the requested one.
MODE_REASON = "mode_reason"
#: Numbers of partitions into which a GPU is split for virtual devices.
SPLITS = (2, 4, 8)
#: The first words of a note on a figure of the machine that could not be measured.
NOT_MEASURED = "not measured:"
#: Steps of a loop of tiny ops per round of the effort.
_LOOP_STEPS = 8
log = logging.getLogger("schedcast")


Figure = TypeVar("Figure")


class GpuTestbed(Testbed):
    """The GPU of `driver`, whole or in partitions, or with others of its kind.

    Keys are measured before the rounds of a validation, since the clocks are steady; what is not steady is flagged.
    """

    backend: Backend
    units_per_round = 6
    round_s = 0.3  # two runs of a program differ by less than 0.5 % on an H100
    plain_steps_per_round = 6
    interleaved = False
    other_loops: Sequence[str] = OTHER_LOOPS

    def __init__(
        self,
        driver: Driver,
        mode: str = "eager",
        precision: str = "fp32",
        effort: Effort | None = None,
        reference_edge: int = EDGE,
        transfer_sizes: Sequence[int] = SIZES,
        deadline_s: float | None = None,
        keep_samples: bool = True,
        kernels: Sizes | None = None,
        partitions: int = 1,
        others: Sequence[Driver] = (),
    ):
        """`deadline_s` is the time in seconds after which a calibration begins no further key. `keep_samples` keeps raw samples.

        `kernels` are the sizes of the fixed kernels of `contention`. `partitions` splits the SMs, each partition being a separate device.
        `others` are the drivers of further GPUs, each of them a device. Costs are measured on the first GPU.
        """
        self.driver, self._partitions, self._others = driver, partitions, tuple(others)
        self.mode, self.mode_reason = runnable_mode(driver, mode, partitions, others)
        self.precision = precision if precision in ("tf32", DEFAULT) else "fp32"
        self._effort, self._sizes, self._deadline_s, self._keep_samples = effort, transfer_sizes, deadline_s, keep_samples
        self._kernels = kernels or Sizes()
        self._uuid = getattr(driver, "uuid", "")
        self.identity = gpu_identity(driver, self.precision, DeviceRecord.read(self._uuid))
        self._reference_edge = reference_edge
        self._plain_stream = driver.stream()  # for plain PyTorch: it is of the whole GPU, and programs leave their own streams current
        self.left: tuple[str, ...] = ()  # keys that a deadline left unmeasured

    @cached_property
    def _reference_kernel(self) -> ReferenceKernel:
        """Made when first used, since running a plan does not need it."""
        return ReferenceKernel(self.driver, self._reference_edge, self._effort)

    @cached_property
    def _host(self) -> HostYardstick:
        """Made for the first monitor."""
        return HostYardstick(self.driver, self._effort)

    def machine(self, profile: Profile | None) -> Machine:
        """This GPU in its partitions, or these GPUs. If `profile` does not know the machine yet, measures it first.

        Raises SchedcastError if the GPU cannot be split as asked.
        """
        if profile is None:
            return self._unmeasured().with_memory_limit(self.memory_limit_bytes)
        self.measure_machine(profile)
        profile.partition_sms = {**profile.partition_sms, **self._own_sms()}
        return self._with_others(gpu_machine(profile, self._partitions), profile).with_memory_limit(self.memory_limit_bytes)

    def _with_others(self, one: Machine, profile: Profile | None) -> Machine:
        """The machine of all GPUs, given that of the first."""
        transfers = profile.transfers if profile is not None else {}
        return together(one, 1 + len(self._others), transfers) if self._others else one

    def _unmeasured(self) -> Machine:
        """This GPU with what is known without measuring: enough to run plans."""
        sms = self._own_sms()
        try:
            card = self.driver.facts
            facts = Profile(identity=self.identity, memory_bytes=card.memory_bytes, cache_bytes=card.cache_bytes, partition_sms=sms)
            one = gpu_machine(facts, self._partitions)
        except SchedcastError:  # there is no preset of this GPU
            one = plain_machine(self.driver, self._partitions)
        return self._with_others(one, None)

    def _own_sms(self) -> dict[str, int]:
        """SMs of each partition, as in `Profile.partition_sms`; empty for the whole GPU."""
        count = self._partitions
        return {str(count): self.driver.partitions(count)[0].sms} if count > 1 else {}

    def measure_machine(self, profile: Profile, again: bool = False) -> None:
        """Measure host costs, rates, transfers and the reference kernel; takes about ten seconds.

        Failed measurements are tried again if `again`.
        """
        failed = [note for note in profile.notes if note.startswith(NOT_MEASURED)]
        if profile.dispatch.dispatch_s is not None or (failed and not again):
            return
        profile.notes = [note for note in profile.notes if note not in failed]
        bench = Bench(self.driver, effort=self._effort)
        monitor = GpuMonitor(self._uuid)
        profile.workspace_bytes = self.driver.workspace_bytes()  # first of all: graphs would make it invisible
        profile.memory_bytes, profile.cache_bytes = self.driver.facts.memory_bytes, self.driver.facts.cache_bytes
        with objects_kept():
            self._attempt(profile, "peak rates", lambda: measure_rates(bench, profile, self.precision))
            tiny = self._attempt(profile, "tiny kernels", lambda: TinyOps.measure(self.driver, self._effort))
            if tiny is not None:
                self._attempt(profile, "host costs", lambda: measure_host(bench, profile, partial(dispatch_s, self.driver, tiny)))
                steps = _LOOP_STEPS * (self._effort or Effort()).rounds
                profile.loop = (
                    self._attempt(profile, "costs of PyTorch's own loop", lambda: measure_loop(bench, tiny, steps)) or profile.loop
                )
            self._attempt(profile, "launches of graphs", lambda: measure_launches(bench, profile))
            self._attempt(profile, "transfers", lambda: measure_transfers(bench, profile, sizes=self._sizes))
            self._attempt(profile, "copies between GPUs", lambda: measure_peers(self.driver, profile, self._sizes, self._effort))
        profile.anchor_s = Stats.from_samples(self._reference_kernel.sample()).median_s
        self._note(profile, monitor.stop())

    def _attempt(self, profile: Profile, what: str, measure: Callable[[], Figure]) -> Figure | None:
        """Measure a figure of the machine. If that fails, a note says so, and predictions take the preset's."""
        try:
            return measure()
        except GpuStalledError:
            raise
        except (SchedcastError, RuntimeError) as error:
            wait(self.driver)  # raises where this GPU cannot be used any more
            profile.notes = [*profile.notes, f"{NOT_MEASURED} {what} ({brief(error)}); the preset's are used"]
            return None

    def calibrate(self, plans: Iterable[Plan], machine: Machine, profile: Profile, save_to: Path | None, progress: Progress) -> int:
        """Measure missing cost keys, and interference. Disturbances meanwhile are noted in the profile."""
        plans = list(plans)
        monitor = GpuMonitor(self._uuid)

        def monitored(done: int, total: int, text: str) -> None:
            monitor.sample()
            progress(done, total, text)

        self.driver.set_precision(self.precision)
        bench = Bench(self.driver, effort=self._effort)
        before_profiler(bench)
        outcome = calibrate_gpu(
            plans,
            machine,
            self.driver,
            profile=profile,
            save_to=save_to,
            progress=monitored,
            deadline_s=self._deadline_s,
            effort=self._effort,
            keep_samples=self._keep_samples,
            watch=monitor.sample,
        )
        self.left = outcome.left
        try:
            learned = self.measure_contention(plans, machine, profile)
        except SchedcastError:
            if save_to is not None:
                profile.save(save_to)
            raise
        if outcome.measured or learned:  # with a profiler session
            after_profiler(bench, profile)
        self._note(profile, monitor.stop())
        if (outcome.measured or learned) and save_to is not None:
            profile.save(save_to)
        return outcome.measured

    def measure_contention(self, plans: Iterable[Plan], machine: Machine, profile: Profile) -> bool:
        """Measure interference once in each precision of the products of plans whose lanes share the GPU.

        If that fails, a note says so and nothing is fitted.
        """
        model, learned = CostModel(machine, profile), False
        pairs = {pair for plan in plans for pair in concurrent_pairs(plan, machine, model.resolve(plan))}
        if pairs and not stalled(profile.notes):
            for precision in sorted((precisions(chain(*pairs)) or {""}) - profile.contentions.keys()):
                learned |= self._measure_contention(profile, precision)
        return learned

    def _measure_contention(self, profile: Profile, precision: str) -> bool:
        """Measure it in one precision, named as in `Profile.contentions`."""
        try:
            with objects_kept():
                fitted = learn_contention(self.driver, profile, precision or self.precision, self._kernels, self._effort)
        except GpuStalledError as error:
            profile.notes = list(dict.fromkeys([*profile.notes, f"the interference of kernels was not measured: {STALLED} them"]))
            raise SchedcastError(
                "kernels beside each other never ended, so this process cannot use the GPU any more: start again (they will not be measured"
                " again), and report it"
            ) from error
        except Exception as error:
            wait(self.driver)  # raises where the GPU cannot be used any more
            profile.notes = list(dict.fromkeys([*profile.notes, f"the interference of kernels was not measured: {brief(error)}"]))
            return False
        if precision:
            profile.other_contention = {**profile.other_contention, precision: fitted}
        else:
            profile.contention = fitted
        return True

    @staticmethod
    def _note(profile: Profile, conditions: Conditions) -> None:
        profile.notes = list(dict.fromkeys([*profile.notes, *conditions.notes]))

    def open(self, machine: Machine) -> None:
        self.backend = CudaBackend(machine, self.driver, self.mode, self.precision, self._others)

    def reference_kernel_s(self) -> list[float]:
        return self._reference_kernel.sample()

    def monitor(self) -> Monitor:
        return self.gpu_monitor()

    def gpu_monitor(self) -> GpuMonitor | GroupMonitor:
        """One of all GPUs, which also watches the speed of the host."""
        own = GpuMonitor(self._uuid, host_slowdown=self._host.slowdown)
        if not self._others:
            return own
        return GroupMonitor({"cuda:0": own} | {f"cuda:{n}": GpuMonitor(getattr(gpu, "uuid", "")) for n, gpu in enumerate(self._others, 1)})

    def plain_loop(self, job: Job, built: Built, same_masks: bool) -> GpuLoop:
        """Plain PyTorch in this process: on a GPU neither the threads of our workers nor our allocator's settings matter to it."""
        return GpuLoop(reference(job, built, same_masks, self.backend), self.driver, self._plain_stream, job.batch)

    def other_loop(self, job: Job, strategy: str) -> TimedLoop:
        if strategy != PYTORCH_GRAPH:
            return super().other_loop(job, strategy)
        if job.scales_loss or job.rates:
            what = "a loss scale" if job.scales_loss else "learning rates that change"
            raise SchedcastError(f"one CUDA graph of plain PyTorch cannot train with {what}", Code.MODEL)
        plain = reference(job, job.build(), False, self.backend, capturable=True)
        return GraphLoop(plain, self.driver, self._plain_stream, job.batch)

    def about(self) -> dict[str, object]:
        """The GPU as documents describe it, with the reason why plans do not run in the requested mode, if there is one."""
        device = describe_gpu(self.identity, self._partitions * (1 + len(self._others)))
        return {**device, MODE_REASON: self.mode_reason} if self.mode_reason else device
