"""Times cost keys on a GPU or on a partition of it with the executor's own functions, and measures the missing keys of plans.

Warm samples repeat the task on the same operands; cold samples use operands that are no longer in the cache. Both are
(t(graph of 2n copies) − t(graph of n copies)) / n, so they include the gap between two nodes of a stream. A key that is bound by compute
is timed in a burst and again under sustained load, at the clock that the power cap leaves it in a step: the latter counts.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from calibrate.cuda.bench import Bench, Case, Cold, Effort, flusher, in_turn, objects_kept, per_copy, repeated, results_kept, wait
from calibrate.cuda.geometry import PROFILER, TABLE, PartitionGeometry, longest
from calibrate.operands import OperandPool, fill
from calibrate.samples import Compiled, Samples, compile_alone, missing_keys, reason, save_samples, store_samples
from calibrate.testbed import Progress
from executors.binding import Forms, op_tasks, with_strides
from executors.cuda.driver import STALLED, Driver, GpuStalledError, Graph, Partition
from simulator.engine.costs.efficiencies import bound_by_compute
from simulator.engine.costs.model import measurable
from simulator.engine.costs.site import Sites
from simulator.machine.machine import Machine
from simulator.model.user_code import brief
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from traces.documents.profile import Profile
from traces.errors import SchedcastError

#: The share of the GPU's memory that one key's operands may take.
MEMORY_SHARE = 1 / 8
#: The host's time is sampled over about `_ISSUE_S`, and over far fewer launches than the thousand at which a stream's queue blocks the
#: host.
_ISSUE_S, _ISSUE_LAUNCHES = 1e-3, 500
#: The forms of ops in graphs, where the host cannot seed a generator between two ops.
_IN_GRAPHS = Forms(cuda=True, draws="stream", capturable=True)


class CudaSampler:
    """Measures keys one by one, and retains their compiled tasks until `release`, so that one profiler session can serve all of them."""

    def __init__(
        self,
        driver: Driver,
        device_of: Callable[[str], torch.device] | None = None,
        partition: Partition | None = None,
        effort: Effort | None = None,
        sustained: Callable[[Task], bool] = lambda task: False,
        watch: Callable[[], None] | None = None,
    ):
        """`device_of` maps a plan's device to a torch device (default: this GPU). `partition` is where tasks run (default: all SMs).

        `sustained`: whether a task is also timed under sustained load. `watch` is called while such a load runs.
        """
        self.driver = driver
        self.samples: dict[str, Samples] = {}
        self.failures: dict[str, str] = {}
        self.notes: list[str] = []
        self._eager_forms = Forms(cuda=True, seed=driver.seed, capturable=True)
        self._device_of = device_of or (lambda name: driver.device)
        self._effort = effort or Effort()
        self._sustained, self._watch = sustained, watch
        self._bench = Bench(driver, partition, self._effort)
        self._partition_geometry = PartitionGeometry(driver, self._effort)
        self._flush = flusher(driver)
        self._pool = OperandPool(device=driver.device)
        self._compiled: dict[str, tuple[Compiled, int]] = {}

    @property
    def held_bytes(self) -> int:
        """An upper bound on the bytes of the operands of the keys measured since the last `release`."""
        return self._pool.bytes + sum(size for _, size in self._compiled.values())

    def measure(self, plan: Plan, keys: Mapping[str, Task]) -> None:
        """Take all samples of the keys. Keys measured before, and keys that need no measuring, are skipped.

        Raises SchedcastError if a key has left the GPU unusable: later measurements would say nothing about the other keys.
        """
        for key, task in keys.items():
            if key in self.samples or not measurable(task):
                continue
            self.samples[key] = Samples(task)
            try:
                self._measure(key, plan, self.samples[key])
            except GpuStalledError as error:
                self.failures[key] = f"{STALLED} it"
                self._compiled.clear()
                raise SchedcastError(
                    f"measuring {key} never ended, so the GPU cannot be used by this process any more; what was measured before is saved:"
                    " start again (this op will not be measured again), and report it"
                ) from error
            except Exception as error:
                self.failures[key] = reason(error)
                self._compiled.pop(key, None)
                self._require_usable(key)

    def learn_geometry(self) -> None:
        """Find the grid and resident blocks of every retained key: from one profiler session, or from times on partitions without one."""
        tasks = {key: compiled for key, (compiled, _) in self._compiled.items()}
        self.driver.use(self._bench.stream)
        profiled = self.driver.kernels(list(tasks.values())) if tasks else []
        for position, (key, compiled) in enumerate(tasks.items()):
            samples = self.samples[key]
            if profiled is None:
                copies = self._effort.copies(statistics.median(samples.warm_s))
                samples.grid, samples.blocks_per_sm, samples.geometry_from = self._partition_geometry.measure(compiled, copies)
                continue
            geometry = longest(profiled[position], self.driver.facts)
            samples.grid, samples.blocks_per_sm = geometry or (None, None)
            samples.geometry_from = PROFILER if geometry else TABLE
            samples.kernels = len(profiled[position]) or None

    def release(self) -> None:
        """Forget the keys measured so far, and free their operands."""
        self.samples, self.failures, self.notes = {}, {}, []
        self._compiled.clear()
        self._pool = OperandPool(device=self.driver.device)

    def _measure(self, key: str, plan: Plan, samples: Samples) -> None:
        task = samples.task
        changed = {operand.value for operand in task.mutates}
        tensors = fill(task, plan, self._pool, cuda=True)
        # A task gets its own copy of what it changes: thousands of repetitions may leave values there that no other key should be timed on.
        compiled = self._compile_task(task, plan, {name: _copy(t) if name in changed else t for name, t in tensors.items()})
        size = sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())
        self._compiled[key] = compiled, size
        for _ in range(2):  # loads the kernels and picks algorithms; an error of the task shows here
            self._bench.run(compiled)
        facts = self.driver.facts
        budget = int(facts.memory_bytes * MEMORY_SHARE)
        probe = self._probe(key, compiled)
        seconds = min(self._bench.replays([probe], 2)[0]) / self._effort.fewest_copies if probe is not None else self._effort.graph_s
        copies = self._effort.copies(seconds)
        cold = Cold.for_operands(size, facts.cache_bytes, budget, copies, self._effort.most_sets)
        issued = self._compile_task(task, plan, tensors, self._eager_forms) if any(op.body.random for op in op_tasks(task)) else compiled
        sets = [compiled] + [self._compile_task(task, plan, {n: _copy(t) for n, t in tensors.items()}) for _ in range(1, cold.sets)]
        for other in sets[1:]:  # the first call may run a forward op, or flatten weights, which must not be in a graph
            self._bench.run(other)
        written = {plan.values[operand.value].storage for operand in task.writes}
        kept = results_kept(sum(plan.storages[name].bytes for name in written), facts.cache_bytes)
        cases = [(in_turn([each.results for each in sets], self._flush, kept), cold.copies)]
        if not cold.always:
            cases.append((in_turn([compiled.results], self._flush, kept), copies))
        graphs = self._bench.graphs(cases) if probe is not None else []
        estimates = self._bench.slopes(cases, graphs=graphs) if graphs else self._eager(cases)
        if graphs and self._effort.sustained_s and self._sustained(task):
            samples.burst_s = estimates[0]
            estimates = self._bench.slopes(cases, graphs=graphs, busy_s=self._effort.sustained_s, watch=self._watch)
        samples.cold_s, samples.warm_s = estimates[0], estimates[-1]
        samples.issue_s = self._issue(issued, seconds, task.body.launches)

    def _compile_task(self, task: Task, plan: Plan, tensors: Mapping[str, torch.Tensor], forms: Forms = _IN_GRAPHS) -> Compiled:
        return compile_alone(task, plan, tensors, self._device_of, forms)

    def _probe(self, key: str, compiled: Compiled) -> Graph | None:
        """A small graph of the task, for a rough estimate of its time. Returns None, and adds a note, if the task cannot be captured."""
        try:
            return self._bench.capture(lambda: repeated(compiled)(self._effort.fewest_copies))
        except GpuStalledError:
            raise
        except Exception as error:
            self._require_usable(key)
            self.notes.append(f"{key} cannot be captured in a graph ({brief(error)}); timed in eager mode, including waits for the host")
            return None

    def _eager(self, cases: list[Case]) -> list[list[float]]:
        """Like `Bench.slopes`, but without graphs."""
        times = self._bench.between([partial(copies, count) for copies, n in cases for count in (n, 2 * n)])
        return [per_copy(times[2 * i], times[2 * i + 1], n) for i, (_, n) in enumerate(cases)]

    def issue_s(self, plans: Iterable[Plan], machine: Machine) -> dict[str, float]:
        """Median host seconds to issue the task of each key of `plans`, and nothing else of it. Keys that fail are skipped."""
        issue_s: dict[str, float] = {}
        for plan in plans:
            for key, task in plan.keys(machine).items():
                if key in issue_s or not measurable(task):
                    continue
                try:
                    compiled = self._compile_task(task, plan, fill(task, plan, self._pool), self._eager_forms)
                    for _ in range(2):
                        self._bench.run(compiled)
                    issue_s[key] = statistics.median(self._issue(compiled, 0.0, task.body.launches))
                except Exception:
                    self._require_usable(key)
        self.release()
        return issue_s

    def _issue(self, compiled: Compiled, seconds: float, launches: int) -> list[float]:
        """Host seconds per task by round, on an idle stream whose queue stays far from full."""
        count = max(1, min(self._effort.most_issues, int(_ISSUE_S / max(seconds, 1e-7)), _ISSUE_LAUNCHES // max(1, launches)))
        return self._bench.host_s(compiled, count)

    def _require_usable(self, key: str) -> None:
        try:
            wait(self.driver)
        except Exception as error:
            self.failures[key] = f"{BROKEN} ({self.failures.get(key) or brief(error)})"
            self._compiled.clear()
            raise SchedcastError(
                f"measuring {key} left the GPU unusable ({brief(error)}); what was measured before is saved: start again (this op will not"
                " be measured again), and report it"
            ) from error


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return with_strides(tensor, tensor.stride())


#: The first words of the reason why a key was not measured that made the GPU unusable.
BROKEN = "it left the GPU unusable"


#: The most keys between two saves, which share one profiler session. A group is large, since each session takes about a second and a used
#: profiler may slow the launches that follow. A group ends early when its operands, which the profiler needs all at once, fill the memory.
GROUP = 300


@dataclass(frozen=True)
class Outcome:
    """The result of a session: the number of keys that were tried, failures included, and the keys that the deadline left."""

    measured: int
    left: tuple[str, ...]


def calibrate_gpu(
    plans: Iterable[Plan],
    machine: Machine,
    driver: Driver,
    profile: Profile,
    save_to: Path | None,
    progress: Progress,
    deadline_s: float | None = None,
    effort: Effort | None = None,
    keep_samples: bool = True,
    watch: Callable[[], None] | None = None,
) -> Outcome:
    """Measure every missing key of `plans` and add it to `profile`, which is saved to `save_to` after each group of keys.

    No key is begun later than `deadline_s` seconds from now; another session can continue with the rest. Without `keep_samples` only the
    profile is saved, without raw samples. `watch` is called while the GPU is under sustained load. Raises SchedcastError if `machine` does
    not describe this GPU, or if a key left the GPU unusable; what was measured before is then in the profile.
    """
    end_s = float("inf") if deadline_s is None else driver.now_s() + deadline_s
    begun = save_to.with_name(f".{save_to.name}.key") if save_to is not None else None
    if save_to is not None and begun is not None and begun.exists():
        profile.failures[begun.read_text()] = f"{BROKEN}: its process died"
        profile.save(save_to)
        begun.unlink()
    # A key that made the GPU unusable is not measured again; its cost is estimated.
    todo = [
        (plan, key, task)
        for plan, keys in missing_keys(plans, machine, profile)
        for key, task in keys.items()
        if not profile.failures.get(key, "").startswith((STALLED, BROKEN))
    ]
    partitions = {device: _partition(device, machine, driver) for device in dict.fromkeys(task.device for _, _, task in todo)}
    by_sms = {_sms(partition): partition for partition in partitions.values()}
    sites, float32 = Sites(machine), profile.identity.precision

    def sustained(task: Task) -> bool:
        return bound_by_compute(task, sites.site(task.device), float32)

    more: dict[str, Any] = {"effort": effort, "sustained": sustained, "watch": watch}
    samplers = {sms: CudaSampler(driver, partition=partition, **more) for sms, partition in by_sms.items()}
    todo.sort(key=lambda item: _sms(partitions[item[2].device]))
    done = 0
    progress(0, len(todo), "")
    if begun is not None:
        begun.parent.mkdir(parents=True, exist_ok=True)  # the machine's first profile
    with objects_kept():
        while done < len(todo) and driver.now_s() < end_s:
            sms = _sms(partitions[todo[done][2].device])
            sampler = samplers[sms]
            try:
                for plan, key, task in todo[done : done + GROUP]:
                    full = sampler.held_bytes > driver.facts.memory_bytes * MEMORY_SHARE
                    if full or driver.now_s() >= end_s or _sms(partitions[task.device]) != sms:
                        break
                    done += 1
                    if begun is not None:
                        begun.write_text(key)
                    sampler.measure(plan, {key: task})
                    progress(done, len(todo), key.partition("|")[0])
                sampler.learn_geometry()
            finally:  # stores what was measured before an interruption, too
                store_samples(sampler.samples, sampler.failures, profile)
                profile.notes = list(dict.fromkeys([*profile.notes, *sampler.notes]))
                save_samples(sampler.samples if keep_samples else None, profile, save_to)
                sampler.release()
                if begun is not None:
                    begun.unlink(missing_ok=True)
    return Outcome(done, tuple(key for _, key, _ in todo[done:]))


def _partition(device: str, machine: Machine, driver: Driver) -> Partition | None:
    """The partition of the GPU that represents a device of `machine`: the first of as many as share its memory, or None for all SMs."""
    sms = machine.device(device).sms
    if sms == driver.facts.sms:
        return None
    count = sum(other.memory == machine.device(device).memory for other in machine.devices)
    partition = driver.partitions(count)[0] if count > 1 else None
    actual = partition.sms if partition else driver.facts.sms
    if actual != sms:
        what = f"one of {count} partitions of {driver.facts.name}" if partition else driver.facts.name
        raise SchedcastError(
            f"{machine.name} says that {device} has {sms} SMs; {what} has {actual}: describe the machine that you calibrate"
        )
    return partition


def _sms(partition: Partition | None) -> int:
    """SMs of a partition; 0 for the whole GPU."""
    return partition.sms if partition else 0
