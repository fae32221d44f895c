"""Samples of cost keys: a task compiled alone with the executors' own functions, its samples, and how they become costs in a profile."""

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from executors.binding import PLAIN, Binding, Forms, Instance
from executors.kernels.registry import handlers
from simulator.engine.costs.model import measurable
from simulator.machine.machine import Machine
from simulator.model.user_code import brief
from simulator.plan.plan import Plan
from simulator.plan.task import INPUT, Task
from traces.documents.profile import KeyCost, Profile, Stats
from traces.documents.profile_files import append_samples
from traces.errors import out_of_memory


@dataclass(frozen=True)
class Compiled:
    """The executor's function for a task, an instance with the task's operands in its slots, and the slots that it writes."""

    run: Callable[[Instance], None]
    instance: Instance
    written: list[int]

    def __call__(self) -> None:
        """Run the task and drop its results, as a step does after their last reader."""
        self.run(self.instance)
        for slot in self.written:
            self.instance.slots[slot] = None

    def results(self) -> list[torch.Tensor]:
        """Run the task and return its results, which only the caller keeps."""
        self.run(self.instance)
        slots, results = self.instance.slots, []
        for slot in self.written:
            results.append(slots[slot])
            slots[slot] = None
        return results


def compile_alone(
    task: Task, plan: Plan, tensors: Mapping[str, torch.Tensor], device_of: Callable[[str], torch.device], forms: Forms = PLAIN
) -> Compiled:
    """Compile `task` of `plan` on `tensors`, one for each value that it reads or changes. They are bound as they are, not copied."""
    task = replace(task, body=task.body.as_measured)
    names = {o.value for o in (*task.inputs, *task.writes)}
    values = {name: plan.values[name] for name in names}
    carried = {name: tensors[name] for name, value in values.items() if value.storage in plan.carried}
    values = {name: value if name in carried else replace(value, source=None, kind=INPUT) for name, value in values.items()}
    alone = Plan("calibration", (task,), values, plan.storages)
    binding = Binding(alone, {}, device_of, forms=forms, carried=carried)
    run = handlers()[task.body.kind](task, binding)
    written = [binding.slot[o.value] for o in task.writes if o.value in binding.slot]
    instance = Instance(0, len(binding.slot), [])
    for name, tensor in tensors.items():
        if name in binding.slot:
            instance.slots[binding.slot[name]] = tensor
    return Compiled(run, instance, written)


#: Samples above this multiple of the median count as that, as in `traces.documents.profile.Stats`: another thread took the core meanwhile.
MOST_RELATIVE = 2.0


@dataclass
class Samples:
    """Samples of one key in seconds: `cold_s` and `warm_s` on the device, `issue_s` on the host (GPU only).

    `burst_s`: cold, in a burst; empty unless `cold_s` and `warm_s` were taken under sustained load.

    `numbers`: on an interleaved testbed, when in its rounds each pair was taken.

    `grid` and `blocks_per_sm` are the geometry of its longest kernel, and `geometry_from` says how it was found. `kernels`: how many the
    profiler saw (None: it saw none, or was not asked).
    """

    task: Task
    cold_s: list[float] = field(default_factory=list)
    warm_s: list[float] = field(default_factory=list)
    issue_s: list[float] = field(default_factory=list)
    burst_s: list[float] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    grid: int | None = None
    blocks_per_sm: int | None = None
    geometry_from: str = ""
    kernels: int | None = None

    def keep(self, pair_s: tuple[float, float], number: int) -> None:
        """Add a pair of cold and warm seconds, taken as `number`."""
        self.cold_s.append(pair_s[0])
        self.warm_s.append(pair_s[1])
        self.numbers.append(number)

    def relative(self, numbers: frozenset[int]) -> dict[int, float]:
        """By number, the pairs with the given numbers as multiples of their median; above `MOST_RELATIVE`, they count as that."""
        pairs_s = {
            number: cold_s + warm_s
            for number, cold_s, warm_s in zip(self.numbers, self.cold_s, self.warm_s, strict=True)
            if number in numbers
        }
        middle_s = statistics.median(pairs_s.values()) if pairs_s else 0.0
        return {number: min(pair_s / middle_s, MOST_RELATIVE) for number, pair_s in pairs_s.items()} if middle_s else {}


def reason(error: Exception) -> str:
    """Why a key could not be measured, on one line."""
    return "not enough memory at the time" if out_of_memory(error) else brief(error)


def missing_keys(plans: Iterable[Plan], machine: Machine, profile: Profile) -> Iterator[tuple[Plan, dict[str, Task]]]:
    """For each plan, its keys that the profile lacks and that have not failed since it was read. Keys of earlier plans are not repeated.

    Keys that failed in an earlier calibration are tried again: memory may have been short only then.
    """
    seen = set(profile.costs) | set(profile.new_failures)
    for plan in plans:
        missing = {key: task for key, task in plan.keys(machine).items() if key not in seen and measurable(task)}
        seen |= set(missing)
        yield plan, missing


def store_samples(
    samples: Mapping[str, Samples], failures: Mapping[str, str], profile: Profile, numbers: Collection[int] | None = None
) -> None:
    """Write the statistics of each key, or the reason why it could not be measured, into the profile.

    `numbers` selects samples of each key (default: all). A key without samples, whose measurement was interrupted, is skipped.
    """
    wanted = None if numbers is None else frozenset(numbers)
    for key, key_samples in samples.items():
        if key in failures:
            profile.fail(key, failures[key])
            continue
        count = len(key_samples.warm_s)
        chosen = range(count) if wanted is None else [i for i, number in enumerate(key_samples.numbers) if number in wanted]
        if not chosen:
            continue
        work = key_samples.task.body.work(key_samples.task)
        profile.costs[key] = KeyCost(
            warm=Stats.from_samples([key_samples.warm_s[i] for i in chosen]),
            cold=Stats.from_samples([key_samples.cold_s[i] for i in chosen]),
            op_class=work.op_class,
            flops=work.flops,
            bytes=work.bytes,
            grid=key_samples.grid,
            blocks_per_sm=key_samples.blocks_per_sm,
            issue_s=Stats.from_samples(key_samples.issue_s).median_s if key_samples.issue_s else None,
            geometry_from=key_samples.geometry_from,
            launches=key_samples.task.body.loop_length,
            model=profile.measured_model,
            burst_s=Stats.from_samples(key_samples.burst_s).median_s if key_samples.burst_s else None,
            kernels=key_samples.kernels,
        )
        profile.failures.pop(key, None)


def save_samples(samples: Mapping[str, Samples] | None, profile: Profile, save_to: Path | None) -> None:
    """Save the profile to `save_to`, and raw samples in a file next to it unless `samples` is None. Does nothing if `save_to` is None."""
    if save_to is not None:
        if samples is not None:
            append_samples(save_to, _raw(samples))
        profile.save(save_to)


def _raw(samples: Mapping[str, Samples]) -> list[dict]:
    return [
        {"key": key, "state": state, "samples_s": values}
        for key, key_samples in samples.items()
        for state in ("cold", "warm", "issue", "burst")
        if (values := getattr(key_samples, f"{state}_s"))
    ]
