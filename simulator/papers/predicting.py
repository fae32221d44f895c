"""Predict the steps that a paper needs: each job and strategy once, storing only what tables show."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

from simulator.engine.costs.contention import MEMORY
from simulator.engine.costs.cost import Cost
from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.machine.presets import PYTORCH
from simulator.machine.scaled import Scale, scaled
from simulator.model.job import Job
from simulator.plan.task import Resource, Task
from simulator.predict.forecast import Forecast, answer
from simulator.predict.target import Target, preset_target
from traces import units
from traces.documents.comparison import Shares
from traces.documents.profile import Profile
from traces.documents.reproduction import OK
from traces.documents.spans import overlapped_kernel_seconds, phase_stretches
from traces.documents.step import Step
from traces.errors import Code, Refusal, SchedcastError

BASELINE = "baseline"
T = TypeVar("T")
#: The part of the device that a kernel takes alone.
_SHARES = attrgetter("compute_share"), attrgetter("memory_share")


class PredictedStep(Step):
    """One predicted step.

    `stretches`: elapsed seconds of forward, backward and update. `streams`: the number of GPU streams that the plan uses. `overlapped_s`:
    seconds per step in which at least two kernels run at once. `least_s`: how long computing units or bandwidth are busy for the kernels of
    a step, whichever is longer: no order of the same kernels takes less. `convolutions_s`: the time of the convolutions, one after another.
    `by_cache_s`: what the updates would save if all that they read were in the cache.
    """

    peak_bytes: int
    memory_bytes: int
    stretches: dict[str, float]
    streams: int
    overlapped_s: float
    least_s: float = 0.0
    convolutions_s: float = 0.0
    by_cache_s: float = 0.0

    @property
    def status(self) -> str:
        """ "ok" if the step fits in the card's memory, else a phrase that says how much it needs."""
        fits = self.peak_bytes <= self.memory_bytes
        return OK if fits else f"does not fit: needs {units.memory(self.peak_bytes)} of {units.memory(self.memory_bytes)}"


#: Predicted steps by strategy text.
StepsByStrategy = Mapping[str, PredictedStep | Refusal]


def status_of(result: Any) -> str:
    """Return the status of a step, or of another result that has one; of a refusal, a phrase with the reason."""
    return f"not available: {result.words}" if isinstance(result, Refusal) else result.status


def figure(step: PredictedStep | Refusal, name: str = "step_s") -> Any:
    """Return a figure of a step; None if it could not be predicted."""
    return None if isinstance(step, Refusal) else getattr(step, name)


def first_refusal(*steps: object) -> Refusal | None:
    """Return the first of the results that is a refusal, or None."""
    return next((step for step in steps if isinstance(step, Refusal)), None)


def unless_refused(steps: StepsByStrategy) -> dict[str, PredictedStep] | Refusal:
    """Return the steps if none of them is refused, else the first refusal."""
    predicted: dict[str, PredictedStep] = {}
    for text, step in steps.items():
        if isinstance(step, Refusal):
            return step
        predicted[text] = step
    return predicted


def _shortened(refusal: Refusal) -> Refusal:
    """The refusal of an unknown name without the list of known names."""
    if refusal.code is not Code.NAME:
        return refusal
    return replace(refusal, words=refusal.words.partition(" (did you")[0].partition("; expected")[0])


def ratio(one: float | None, other: float | None) -> float | None:
    """Return one / other; None if one of them is missing."""
    return None if one is None or other is None else one / other


def speedup(steps: StepsByStrategy, text: str, over: str = BASELINE) -> float | None:
    """Return how many times faster a strategy is than another; None if one of them is missing."""
    return ratio(*(figure(steps[each]) if each in steps else None for each in (over, text)))


@dataclass(frozen=True)
class Conditions:
    """What is changed in an experiment.

    `free_launches`: the host issues tasks in no time, which shows how much of a gain is due to launches. Launches whose cost is in a
    machine's profile keep their time. `links`: the factor of the bandwidth of all links. `host`: what issues tasks, as
    `presets.load_machine` takes it. `places`: the share of a GPU's places for blocks that a kernel takes at most; the others are free for
    other kernels. `filled`: kernels that are bound by bandwidth take all places until they end, so that none runs concurrently. `coarse`:
    one block is resident on an SM, as on presets without limits of an SM. `cache`: whether GPUs have a cache; without one, all that a
    kernel reads comes from memory, so that an order of kernels has no locality.
    """

    free_launches: bool = False
    links: float = 1.0
    host: str = PYTORCH
    places: float = 1.0
    filled: bool = False
    coarse: bool = False
    cache: bool = True


class _ChangedKernels(CostModel):
    """Costs of kernels that leave more or fewer places for blocks to others."""

    def __init__(self, machine: Machine, profile: Profile | None, precision: str | None, conditions: Conditions):
        super().__init__(machine, profile, precision)
        self._conditions = conditions

    def _with_shares(self, cost: Cost, task: Task, device: str) -> Cost:
        own, changed = super()._with_shares(cost, task, device), self._conditions
        places = self.machine.device(device).sms * own.blocks_per_sm
        grid = own.grid if changed.places == 1 else min(own.grid, max(1, int(changed.places * places)))
        if changed.filled and own.group == MEMORY:
            grid = places * -(-grid // places)
        return replace(own, grid=grid)


class Steps:
    """Predictions on one machine, from the model: nothing is measured. `progress(text)` is called before each prediction."""

    def __init__(self, machine: str, progress: Callable[[str], None] = lambda text: None, conditions: Conditions = Conditions()):
        self.machine_name, self._progress, self._conditions = machine, progress, conditions
        self._steps: dict[tuple[str, str], PredictedStep | Refusal] = {}
        self._shares = {"measured": 0.0, "fitted": 0.0, "guessed": 0.0}

    @property
    def shares(self) -> Shares | None:
        """Shares of measured, fitted and guessed costs in the predicted task time of all predictions; None before the first."""
        total_s = sum(self._shares.values())
        return Shares(**{name: seconds / total_s for name, seconds in self._shares.items()}) if total_s else None

    def report(self, text: str) -> None:
        """Report progress, for a paper with a different way of predicting."""
        self._progress(text)

    def attempt(self, text: str, compute: Callable[[], T]) -> T | Refusal:
        """Report progress and return what `compute` returns, or a refusal if it raises SchedcastError."""
        self._progress(text)
        try:
            return compute()
        except SchedcastError as error:
            return _shortened(Refusal.by(error))

    def on(self, machine: str) -> "Steps":
        """Return predictions on another machine, with the same progress function."""
        return Steps(machine, self._progress, self._conditions)

    def under(self, **changed: Any) -> "Steps":
        """Return predictions on the same machine with other `Conditions`."""
        return Steps(self.machine_name, self._progress, replace(self._conditions, **changed))

    def asks(self, job: Job, *strategies: str) -> dict[str, tuple[str, ...]]:
        """The options of `schedcast predict` that ask for steps of a job on this machine, with this host (`PaperCase.asks`)."""
        size = {} if job.image_size is None else {"image-size": (str(job.image_size),)}
        host = {} if self._conditions.host == PYTORCH else {"host": (self._conditions.host,)}
        optimizer = (f"{job.optimizer}:{job.form}",)
        named = {"model": (job.model,), "batch": (str(job.batch),), **size, "optimizer": optimizer, "machine": (self.machine_name,)}
        return {**named, **host, "strategy": strategies}

    def predict(self, job: Job, strategies: Iterable[str], over: str = BASELINE) -> dict[str, PredictedStep | Refusal]:
        """Predict a job under `over`, with which others are compared, and `strategies`; returns a step or a refusal by strategy text."""
        texts = list(dict.fromkeys([over, *strategies]))
        new = [text for text in texts if (job.digest, text) not in self._steps]
        self._progress(job.label)
        if new:
            self._predict(job, new)
        return {text: self._steps[job.digest, text] for text in texts}

    def _predict(self, job: Job, texts: Sequence[str]) -> None:
        try:
            conditions = self._conditions
            preset = preset_target(job, self.machine_name, host=conditions.host)
            machine, model = scaled(preset.machine, Scale(link=conditions.links)), preset.costs
            if conditions.coarse:
                machine = replace(machine, devices=tuple(replace(device, sm=None) for device in machine.devices))
                model = CostModel(machine, model.profile, model.precision)
            if not conditions.cache:
                machine = replace(machine, memories=tuple(replace(memory, cache_bytes=0) for memory in machine.memories))
                model = CostModel(machine, model.profile, model.precision)
            if conditions.places < 1 or conditions.filled:
                model = _ChangedKernels(machine, model.profile, model.precision, conditions)
            if conditions.free_launches:
                machine = replace(
                    machine, hosts=tuple(replace(host, dispatch_s=0.0, record_s=0.0, wait_s=0.0, loop_s=0.0) for host in machine.hosts)
                )
                model = CostModel(machine, model.profile, model.precision)
            job.factory  # noqa: B018 - an unknown model raises here once, not for each strategy
            for text in texts:
                result = answer(job, text, Target(machine, model))
                self._steps[job.digest, text] = _shortened(result) if isinstance(result, Refusal) else self._step(result, machine)
        except SchedcastError as error:
            refusal = _shortened(Refusal.by(error))
            self._steps |= {(job.digest, text): refusal for text in texts}

    def _step(self, forecast: Forecast, machine: Machine) -> PredictedStep:
        timeline, device = forecast.timeline, forecast.plan.devices[0]
        start, end = timeline.window_s
        for name, share in forecast.shares.model_dump().items():
            self._shares[name] += share * timeline.step_s
        return PredictedStep(
            step_s=timeline.step_s,
            interval_s=forecast.interval_s,
            peak_bytes=forecast.peak_bytes[device],
            memory_bytes=machine.memory(device).size_bytes,
            stretches=phase_stretches(timeline),
            streams=len({(task.device, task.stream) for task in forecast.plan.tasks if task.body.resource is not Resource.HOST}),
            overlapped_s=overlapped_kernel_seconds(timeline) * timeline.step_s / (end - start),
            least_s=max(sum(share(cost) * cost.cold_s for cost in forecast.costs) for share in _SHARES),
            convolutions_s=sum(cost.cold_s for cost in forecast.costs if cost.op_class.endswith("conv")),
            by_cache_s=sum(c.cold_s - c.warm_s for task, c in zip(forecast.plan.tasks, forecast.costs, strict=True) if task.body.is_update),
        )
