"""Costs of the machine rather than of an op: the executor's time per task, peak rates, and the cache's effective size."""

import statistics
from collections.abc import Sequence
from itertools import pairwise

import torch

from calibrate.cpu.sampler import Sampler
from calibrate.tiny_model import tiny_job, tiny_plan
from executors.cpu.backend import CpuBackend
from executors.measured import Measured
from executors.program import Executable
from executors.tensors import job_tensors
from simulator.machine.this_cpu import this_cpu
from simulator.plan.bodies.host import Host
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, PARAMETER, Operand, Storage, Task, Value
from traces.documents.profile import Dispatch, Profile, Stats
from traces.process import seconds_of

#: Ops per lane, elements of each op (about 60 us on one core), and runs with one lane and with two.
_OPS, _ELEMENTS, _RUNS = 200, 20_000, 9


def shared_overhead_s(backend: CpuBackend, device: str) -> float:
    """Seconds by which the gap between two short ops of a lane grows while a second such lane runs; at least 0.

    Both worker threads run Python between their ops and share its lock: a thread that gives up the lock for an op waits for it afterwards.
    Tasks without an op do not show this cost, and tasks of many milliseconds hardly do, so short ops are timed.

    This is the difference of two medians over interleaved runs. That the ops themselves take longer is measured as interference instead.
    """
    programs = {lanes: _lanes_program(backend, device, lanes) for lanes in (1, 2)}
    gaps_s: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(_RUNS):
        for lanes, program in programs.items():
            first = [item for item in program.run(1).times if program.binding.plan.tasks[item.index].stream == 0]
            gaps_s[lanes].append(Stats.from_samples(_gaps_s(first)).mean_s)  # winsorized
    return max(0.0, statistics.median(gaps_s[2]) - statistics.median(gaps_s[1]))


def _lanes_program(backend: CpuBackend, device: str, lanes: int) -> Executable:
    """A program with `lanes` lanes of short ops that has run once."""
    values = {f"x{lane}": _value(f"x{lane}", device, PARAMETER) for lane in range(lanes)}
    tasks = []
    for number in range(_OPS):  # the lanes alternate, as in the issue order of a step
        for lane in range(lanes):
            name = f"tanh{number}.{lane}"
            values[name] = _value(name, device, ACTIVATION)
            body = OpCall("aten.tanh.default", '[{"$":0}]')
            tasks.append(Task(name, body, device, lane, reads=(values[f"x{lane}"].operand(),), writes=(values[name].operand(),)))
    storages = {name: Storage(name, 4 * _ELEMENTS, device) for name in values}
    tensors = {f"x{lane}": torch.randn(_ELEMENTS) for lane in range(lanes)}
    program = backend.load(Plan("shared-overhead", tuple(tasks), values, storages), tensors)
    program.run(1)
    return program


def _value(name: str, device: str, kind: str) -> Value:
    operand = Operand(name, (_ELEMENTS,), (1,), "float32")
    return Value(
        name, operand.shape, operand.strides, dtype=operand.dtype, device=device, kind=kind, source=operand if kind == PARAMETER else None
    )


def _gaps_s(lane: Sequence[Measured]) -> list[float]:
    """Seconds from the end of each task of a lane to the start of the next, without the reference kernel."""
    return [after.start_s - after.reference_s - before.end_s for before, after in pairwise(lane)]


_CHUNKS, _STEPS, _SAMPLES = 6, 12, 15


def op_switch_s(backend: CpuBackend) -> float:
    """Mean seconds by which a tiny op takes longer in a step than when it is repeated; at least 0.

    In a step other ops have evicted the op's code from the caches. This costs the same few microseconds for every op, so it is measured
    once, on a model of many different tiny ops, and becomes part of the overhead per task.
    """
    job, machine = tiny_job(), this_cpu()
    plan = tiny_plan(job, machine)
    built = job.build()
    program = backend.load(plan, job_tensors(job, built, job.graph()))
    sampler = Sampler(backend)
    keys = plan.keys(machine)
    sampler.add(plan, keys)
    for number in range(_SAMPLES):
        sampler.sample(list(keys), number)
    measured: dict[int, list[float]] = {}
    for _ in range(_CHUNKS):
        for item in program.run(_STEPS).times:
            measured.setdefault(item.index, []).append(item.end_s - item.start_s)
    index_of = {cost_key(task, machine): index for index, task in enumerate(plan.tasks)}
    extra_s = [
        statistics.median(measured[index]) - statistics.median(sampler.samples[key].warm_s[1:])
        for key, index in index_of.items()
        if key not in sampler.failures
    ]
    return max(0.0, statistics.fmean(extra_s))


_TASKS = 2000
#: Seconds after which no run is repeated.
_REPEAT_S = 0.5


def measure_host(backend: CpuBackend, profile: Profile) -> None:
    """Measure the profile's dispatch costs, peak FLOP/s, bandwidth and cache size; takes a few seconds."""
    device = next(iter(backend.groups))
    gap_s = _gap_s(backend, device)
    profile.dispatch = Dispatch(task_overhead_s=gap_s + op_switch_s(backend))
    if len(backend.groups[device]) > 1:
        profile.dispatch.shared_overhead_s = shared_overhead_s(backend, device)
        profile.dispatch.wake_s = _wake_s(backend, device)
    rates: dict[str, float] = {}

    def work(_: int) -> None:
        rates["fp32"] = _peak_flops(torch.float32)
        rates["bf16"] = _peak_flops(torch.bfloat16)
        rates["fp16"] = _peak_flops(torch.float16)
        source = torch.ones(16 << 20)
        target = torch.empty_like(source)
        rates["bandwidth"] = 2 * source.nbytes / _best_s(lambda: target.copy_(source), 5)
        rates["cache"] = _cache_bytes()

    backend.workers.run(work, (0,))
    cores = len(backend.workers.cores)
    profile.peak_flops = {precision: rates[precision] * cores for precision in ("fp32", "bf16", "fp16")}
    profile.bandwidth_bytes_per_s = rates["bandwidth"]
    profile.cache_bytes = int(rates["cache"])


def _gap_s(backend: CpuBackend, device: str) -> float:
    """Median seconds from the end of a task to the start of the next on one lane, in a plan of empty tasks."""
    tasks = [Task(f"empty{i}", Host(0.0), device) for i in range(_TASKS)]
    program = backend.load(Plan("overhead", tuple(tasks), {}, {}), {})
    program.run(1)
    return statistics.median(_gaps_s(program.run(1).times))


def _wake_s(backend: CpuBackend, device: str) -> float:
    """Median seconds from the end of a task on a busy lane to the start of a dependent task on an idle lane, over 200 pairs."""
    tasks = []
    for i in range(200):
        tasks.append(Task(f"busy{i}", Host(3e-4), device))
        tasks.append(Task(f"dependent{i}", Host(5e-5), device, stream=1, after=(f"busy{i}",)))
    program = backend.load(Plan("wake", tuple(tasks), {}, {}), {})
    program.run(1)
    times = {item.index: item for item in program.run(1).times}
    gaps = [times[i + 1].start_s - times[i + 1].reference_s - times[i].end_s for i in range(0, len(tasks), 2)]
    return statistics.median(gaps)


def _best_s(function, repeats: int) -> float:
    """The shortest of several runs: a rate is a ceiling, not a typical value. Runs that take long are not repeated as often."""
    best, spent_s = float("inf"), 0.0
    for _ in range(repeats):
        taken_s = seconds_of(function)
        best, spent_s = min(best, taken_s), spent_s + taken_s
        if spent_s > _REPEAT_S:
            break
    return best


def _peak_flops(dtype: torch.dtype) -> float:
    """FLOP/s of a product in this type. A core without instructions for bf16 and fp16 is far slower with them than with fp32."""
    a, b = torch.randn(512, 512).to(dtype), torch.randn(512, 512).to(dtype)
    return 2 * 512**3 / _best_s(lambda: torch.mm(a, b), 20)


def _cache_bytes() -> float:
    """Bytes of other data that it takes to lose half the speed-up of a cached buffer.

    A 512 KiB buffer is read right after X MiB of other data. Its time rises from warm to cold as X passes the cache's effective size.
    """
    probe, other = torch.ones(128 << 10), torch.ones(24 << 20)
    sizes = [0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 96]
    seconds = []
    for size in sizes:
        samples = []
        for _ in range(9):
            probe.sum()
            other[: int(size * (1 << 20)) // 4].sum()
            samples.append(seconds_of(probe.sum))
        seconds.append(statistics.median(samples))
    warm, cold = min(seconds), seconds[-1]
    middle = (warm + cold) / 2
    for size, next_size, low, high in zip(sizes, sizes[1:], seconds, seconds[1:], strict=False):
        if low < middle <= high:
            return (size + (next_size - size) * (middle - low) / (high - low)) * (1 << 20)
    return sizes[-1] * (1 << 20)
