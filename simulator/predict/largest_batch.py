"""The largest batch that fits in memory, and other changes with which it fits, for a plan that does not."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from simulator.engine.memory.contents import fitting_words
from simulator.engine.memory.over_time import TooLargeError, excess_bytes
from simulator.machine.presets import single_gpu
from simulator.model.checkpoint import choice
from simulator.model.job import Job
from simulator.model.workloads.registry import get, is_language_model
from simulator.plan.bodies.update import STATE, forms
from simulator.predict.forecast import NONE, Forecast, memories_of
from simulator.predict.target import Target, preset_target
from simulator.strategies import registry as strategies
from simulator.strategies.options import Portion
from traces.documents.comparison import PYTORCH_DDP, PYTORCH_FSDP
from traces.errors import Refusal, SchedcastError

#: The most other batch sizes that are planned.
MOST_PLANS = 16
#: How many times as many microbatches are tried.
MORE_MICROBATCHES = 4
#: Other changes than of the batch are tried only if the plan has at most this many tasks: each change takes as long to plan as the plan
#: itself.
MOST_TASKS = 20_000


class Fitting(NamedTuple):
    """What fits if a plan does not: the `largest_batch`, and the changes that `would_fit`, if they were `tried`."""

    batch: int | None
    changes: tuple[str, ...] = ()
    tried: bool = True

    @property
    def words(self) -> tuple[str, ...]:
        """A phrase for each."""
        return fitting_words(*self)


def fitting(job: Job, text: str, predicted: Forecast | Refusal, target: Target, shared: Mapping[str, str] = NONE) -> Fitting:
    """Return what fits in place of a plan that does not. Arguments as in `largest_batch`."""
    tried = isinstance(predicted, Refusal) or len(predicted.plan.tasks) <= MOST_TASKS
    batch = largest_batch(job, text, predicted, target, shared)
    return Fitting(batch, would_fit(job, text, target, shared) if tried else (), tried)


def largest_batch(job: Job, text: str, predicted: Forecast | Refusal, target: Target, shared: Mapping[str, str] = NONE) -> int | None:
    """Return the largest batch below the job's whose plan fits; None if even the smallest does not fit or cannot be planned.

    `text` and `shared`: the strategy, as in `registry.parse`. `predicted`: the forecast of its plan on the target, which does not
    fit, or the refusal to plan it because it is too large. Batches are multiples of what divides the job's batch (`_unit`). Each candidate
    is captured, planned and simulated like the job itself.
    """

    def excess(batch: int) -> int | None:
        return _excess(replace(job, batch=batch), text, target, shared)

    needed = predicted.excess_bytes if isinstance(predicted, Refusal) else excess_bytes(predicted.memories)
    return largest_fitting(_unit(job, text, predicted, target, shared), job.batch, needed, excess)


def _excess(job: Job, text: str, target: Target, shared: Mapping[str, str]) -> int | None:
    """By how many bytes the job's plan exceeds a memory, at most 0 if it fits; None if it cannot be planned."""
    try:
        return excess_bytes(memories_of(job, text, target, shared))
    except TooLargeError as error:
        return error.excess_bytes
    except SchedcastError:
        return None


def would_fit(job: Job, text: str, target: Target, shared: Mapping[str, str] = NONE) -> tuple[str, ...]:
    """Return the options of the command line, each of which alone lets a plan fit that does not fit, with the batch as it is.

    Tried are full activation checkpointing, MORE_MICROBATCHES times as many microbatches, the optimizer's fused form, and on several
    devices a strategy that shards more; for a language model that none of these helps, the fewest GPUs on which it fits with what saves
    most memory, if need be with a sample for each. Arguments as in `largest_batch`; each candidate is planned and simulated.
    """
    changes = {}
    if job.checkpoint != choice.FULL:
        changes[f"--checkpoint {choice.FULL}"] = job.varied(checkpoint=choice.FULL), text
    strategy, options = strategies.parse(text, shared)
    if "microbatches" in strategy.option_names and (portion := _portion(job, text, target, shared)) is not None:
        own = _with_option(text, "microbatches", str(MORE_MICROBATCHES * portion.microbatches))
        changes[f"--strategy {own}"] = job, own
    elif job.batch % (more := MORE_MICROBATCHES * job.accumulate) == 0:
        changes[f"--accumulate {more}"] = job.varied(accumulate=more), text
    if job.form != "fused" and "fused" in forms(job.optimizer):
        changes[f"--optimizer {job.optimizer}:fused"] = replace(job, form="fused"), text
    if len(target.machine.devices) > 1:
        sharded = PYTORCH_FSDP if strategy.name == PYTORCH_DDP else "fsdp"
        if strategy.name != sharded:
            changes[f"--strategy {sharded}"] = job, sharded
        if getattr(options, "shard", None) == "0":
            own = _with_option(text, "shard", "1")
            changes[f"--strategy {own}"] = job, own
    needs = {option: _excess(own_job, own, target, shared) for option, (own_job, own) in changes.items()}
    fitting = tuple(option for option, excess in needs.items() if excess is not None and excess <= 0)
    return fitting or _on_more_gpus(job, target, shared)


#: Numbers of GPUs that are tried, the fewest first.
GPUS = (2, 4, 8, 16, 32, 64, 128, 256, 512)


def _on_more_gpus(job: Job, target: Target, shared: Mapping[str, str]) -> tuple[str, ...]:
    """The options with which a language model fits on the same cards, on at least as many, sharded and with full checkpointing."""
    card, machine = single_gpu(target.machine.name), target.machine
    if not card or not is_language_model(job.model):
        return ()
    saving, limit = job.varied(checkpoint=choice.FULL), machine.memories[0].size_bytes
    numbers = 2 + sum(name != "step" for name in STATE[job.optimizer])  # of a parameter: itself, its gradient and its state
    least = max(len(machine.devices), 4 * numbers * get(job.model).parameters / limit)
    for count in (each for each in GPUS if each >= least and (job.batch % each == 0 or each > job.batch)):
        larger = replace(saving, batch=count * job.accumulate) if count > job.batch else saving
        own = preset_target(larger, f"{count}x{card}", limit_bytes=limit)
        excess = _excess(larger, "fsdp", own, shared)
        if excess is not None and excess <= 0:
            named = f"--machine {count}x{card} " if count > len(machine.devices) else ""
            named += f"--batch {larger.batch} " if larger is not saving else ""
            checkpoint = "" if job.checkpoint == choice.FULL else f" --checkpoint {choice.FULL}"
            return (f"{named}--strategy fsdp{checkpoint}",)
    return ()


def _portion(job: Job, text: str, target: Target, shared: Mapping[str, str]) -> Portion | None:
    """Each device's part of the batch, if the strategy states it without a plan."""
    strategy, options = strategies.parse(text, shared)
    with suppress(SchedcastError):
        return strategy.portion(job, target.machine, options)
    return None


def _with_option(text: str, name: str, value: str) -> str:
    """A strategy's text with another value of one of its options."""
    strategy, _, options = text.partition(":")
    others = [pair for pair in options.split(",") if pair and pair.partition("=")[0].strip() != name]
    return f"{strategy}:{','.join([*others, f'{name}={value}'])}"


def _unit(job: Job, text: str, predicted: Forecast | Refusal, target: Target, shared: Mapping[str, str]) -> int:
    """What batches are multiples of: the microbatches, which a strategy may state, times its replicas.

    Of a strategy that does not say (`Strategy.portion`), the job's microbatches times what divides among the plan's devices and replicas;
    without a plan, one.
    """
    if (portion := _portion(job, text, target, shared)) is not None:
        return portion.microbatches * portion.replicas
    if isinstance(predicted, Refusal):
        return job.accumulate
    replicas = predicted.plan.semantics.get("replicas", 1)
    return job.accumulate * math.lcm(len(predicted.plan.devices), replicas if isinstance(replicas, int) else 1)


def largest_fitting(unit: int, batch: int, batch_excess: int, excess: Callable[[int], int | None]) -> int | None:
    """Return the largest multiple of `unit` below `batch` for which `excess` (in bytes) is at most 0; None if there is none.

    `batch_excess`, above 0, is that of `batch`. `excess` returns None for a batch that cannot be planned. Memory grows almost linearly with
    the batch, so the search interpolates between the largest batch known to fit and the smallest known not to, and three evaluations
    usually suffice. Where another moment of the step becomes the highest, memory grows faster than between the two: then the line through
    the two smallest batches known not to fit leads to the result. Where memory jumps, because a strategy schedules another batch
    differently, it bisects in turn, and where batches of different sizes need the same, it bisects at once. After MOST_PLANS evaluations
    the result is the largest batch known to fit.

    Memory grows by 2 bytes a sample, and 100 bytes fit:

    >>> largest_fitting(unit=1, batch=64, batch_excess=2 * 64 - 100, excess=lambda batch: 2 * batch - 100)
    50
    """
    low, low_excess = 0, None
    for smallest in (unit, 2 * unit):  # a batch of one sample is too small for batch-norm on single pixels
        if smallest < batch and (low_excess := excess(smallest)) is not None:
            low = smallest
            break
    if low_excess is None or low_excess > 0:
        return None
    high, high_excess = -(-batch // unit) * unit, batch_excess
    beyond: tuple[int, int] | None = None  # the second smallest batch known not to fit, and its excess
    moved = 0  # how often in succession the same bound moved
    flat = False  # whether the last batch needed what another one needs: an allocator reserves memory in steps
    for _ in range(MOST_PLANS - 2):
        if high - low <= unit:
            break
        if flat:
            between = (low + high) / 2
        elif abs(moved) < 2:
            between = low + (high - low) * -low_excess / (high_excess - low_excess)
        elif moved in (2, 3) and beyond is not None and beyond[1] > high_excess:
            between = high - high_excess * (beyond[0] - high) / (beyond[1] - high_excess)
        else:
            between = (low + high) / 2
        guess = min(max(int(between) // unit * unit, low + unit), high - unit)
        guess_excess = excess(guess)
        if guess_excess is None:
            break
        flat = guess_excess in (low_excess, high_excess)
        if guess_excess <= 0:
            low, low_excess, moved = guess, guess_excess, max(moved, 0) + 1
        else:
            beyond = high, high_excess
            high, high_excess, moved = guess, guess_excess, min(moved, 0) - 1
    return low
