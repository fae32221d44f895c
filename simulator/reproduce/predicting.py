"""Predict the steps that a paper needs: each job and strategy once, keeping only what tables show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from simulator.job import Job
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.plan.task import Resource
from simulator.predict.forecast import Forecast, forecast_many
from simulator.predict.preset import preset_costs
from traces import units
from traces.comparison import Shares
from traces.errors import StepcastError, UnknownNameError
from traces.overlap import overlapped_kernel_seconds, phase_stretches, transfer_seconds
from traces.reproduction import OK

BASELINE = "baseline"


@dataclass(frozen=True)
class Step:
    """One predicted step.

    `stretches`: elapsed seconds of forward, backward and update. `streams`: the number of GPU streams that the plan uses. `overlapped_s`:
    seconds per step in which at least two kernels run at once. `transfer_s`: seconds per step of all transfers together, hidden or not.
    """

    step_s: float
    interval_s: tuple[float, float]
    peak_bytes: int
    memory_bytes: int
    stretches: dict[str, float]
    streams: int
    overlapped_s: float
    transfer_s: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether the step fits in the card's memory."""
        return self.peak_bytes <= self.memory_bytes

    @property
    def status(self) -> str:
        """ "ok" if the step fits, else a phrase that says how much memory it needs."""
        return OK if self.fits else f"does not fit: needs {units.memory(self.peak_bytes)} of {units.memory(self.memory_bytes)}"


@dataclass(frozen=True)
class Missing:
    """A step that cannot be predicted, and the reason."""

    why: str

    @classmethod
    def because(cls, error: StepcastError) -> "Missing":
        """Return what is missing because of `error`; of an unknown name, without the list of known names."""
        text = str(error)
        return cls(text.partition(" (did you")[0].partition("; expected")[0] if isinstance(error, UnknownNameError) else text)

    @property
    def status(self) -> str:
        """A phrase that says why the step is missing."""
        return f"not available: {self.why}"


class Steps:
    """Predictions on one machine, from the model: nothing is measured. `progress(text)` is called before each prediction.

    `free_launches`: the host issues tasks in no time, which shows how much of a gain is due to launches. Launches whose cost is in a
    machine's profile keep their time.
    """

    def __init__(self, machine: str, progress: Callable[[str], None] = lambda text: None, free_launches: bool = False):
        self.machine_name, self._progress, self._free_launches = machine, progress, free_launches
        self._steps: dict[tuple[str, str], Step | Missing] = {}
        self._shares = {"measured": 0.0, "fitted": 0.0, "guessed": 0.0}

    @property
    def shares(self) -> Shares | None:
        """Shares of measured, fitted and guessed costs in the predicted task time of all predictions; None before the first."""
        total_s = sum(self._shares.values())
        return Shares(**{name: seconds / total_s for name, seconds in self._shares.items()}) if total_s else None

    def report(self, text: str) -> None:
        """Report progress, for a paper that predicts in a way of its own."""
        self._progress(text)

    def on(self, machine: str) -> "Steps":
        """Return predictions on another machine, with the same progress function."""
        return Steps(machine, self._progress)

    def without_launches(self) -> "Steps":
        """Return predictions on the same machine with a host that issues tasks in no time."""
        return Steps(self.machine_name, self._progress, free_launches=True)

    def of(self, job: Job, strategies: Sequence[str]) -> dict[str, Step | Missing]:
        """Predict a job under the baseline and `strategies`; returns a step, or the reason why it is missing, by strategy text."""
        texts = list(dict.fromkeys([BASELINE, *strategies]))
        new = [text for text in texts if (job.digest, text) not in self._steps]
        self._progress(job.label)
        if new:
            self._predict(job, new)
        return {text: self._steps[job.digest, text] for text in texts}

    def _predict(self, job: Job, texts: Sequence[str]) -> None:
        try:
            machine, model = preset_costs(job, self.machine_name)
            machine = _with_free_launches(machine) if self._free_launches else machine
            job.factory  # noqa: B018 - an unknown model raises here once, not for each strategy
            for text, result in forecast_many(job, texts, {}, machine, model):
                failed = isinstance(result, StepcastError)
                self._steps[job.digest, text] = Missing.because(result) if failed else self._step(result, machine)
        except StepcastError as error:
            self._steps |= {(job.digest, text): Missing.because(error) for text in (BASELINE, *texts)}

    def _step(self, forecast: Forecast, machine: Machine) -> Step:
        timeline, device = forecast.timeline, forecast.plan.devices[0]
        start, end = timeline.window_s
        for name, share in forecast.shares.model_dump().items():
            self._shares[name] += share * timeline.step_s
        return Step(
            timeline.step_s,
            forecast.interval_s,
            forecast.peak_bytes[device],
            machine.memory(device).size_bytes,
            phase_stretches(timeline),
            streams(forecast.plan),
            overlapped_kernel_seconds(timeline) * timeline.step_s / (end - start),
            transfer_seconds(timeline) * timeline.step_s / (end - start),
        )


def streams(plan: Plan) -> int:
    """Return the number of device streams that the plan's tasks run on; host tasks have none."""
    return len({(task.device, task.stream) for task in plan.tasks if task.body.resource is not Resource.HOST})


def _with_free_launches(machine: Machine) -> Machine:
    return replace(machine, hosts=tuple(replace(host, dispatch_s=0.0, record_s=0.0, wait_s=0.0) for host in machine.hosts))
