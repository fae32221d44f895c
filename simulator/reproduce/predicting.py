"""Predicted steps for papers: each job and strategy once, and of each only what tables show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from simulator.job import Job
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan
from simulator.plan.task import Resource
from simulator.predict.forecast import Forecast, forecast_many
from simulator.predict.preset import preset_costs
from traces.comparison import Shares
from traces.errors import StepcastError, UnknownNameError
from traces.overlap import overlapped_kernel_seconds, phase_stretches
from traces.reproduction import OK

BASELINE = "baseline"


@dataclass(frozen=True)
class Step:
    """One predicted step.

    `stretches`: wall-clock seconds of forward, backward and update; `streams`: how many of the GPU's streams the plan uses;
    `overlapped_s`: seconds per step in which at least two kernels run at once.
    """

    step_s: float
    interval_s: tuple[float, float]
    peak_bytes: int
    memory_bytes: int
    stretches: dict[str, float]
    streams: int
    overlapped_s: float

    @property
    def fits(self) -> bool:
        """Whether the card's memory holds it."""
        return self.peak_bytes <= self.memory_bytes

    @property
    def status(self) -> str:
        """Whether it fits, in words: ok, or how much too large it is."""
        return OK if self.fits else f"does not fit: needs {self.peak_bytes / 1e9:.1f} GB of {self.memory_bytes / 1e9:.1f} GB"


@dataclass(frozen=True)
class Missing:
    """A step that cannot be predicted, and why."""

    why: str

    @property
    def status(self) -> str:
        """In words."""
        return f"not available: {self.why}"


class Steps:
    """Predictions on one machine, from the model: nothing is measured. `told(text)` is called before each.

    `free_launches`: the host issues in no time, which shows what a gain owes to launches (those of a calibrated machine keep their time).
    """

    def __init__(self, machine: str, told: Callable[[str], None] = lambda text: None, free_launches: bool = False):
        self.machine_name, self._told, self._free_launches = machine, told, free_launches
        self._found: dict[tuple[str, str], Step | Missing] = {}
        self._shares = {"measured": 0.0, "fitted": 0.0, "guessed": 0.0}

    @property
    def shares(self) -> Shares | None:
        """On what the costs of all predictions rest, by predicted task time; None before the first."""
        total = sum(self._shares.values())
        return Shares(**{name: part / total for name, part in self._shares.items()}) if total else None

    def tell(self, text: str) -> None:
        """Say what is predicted next, where a paper predicts in a way of its own."""
        self._told(text)

    def on(self, machine: str) -> "Steps":
        """Predictions on another machine, told of in the same way."""
        return Steps(machine, self._told)

    def without_launches(self) -> "Steps":
        """Predictions on the same machine with a host that issues in no time."""
        return Steps(self.machine_name, self._told, free_launches=True)

    def of(self, job: Job, strategies: Sequence[str]) -> dict[str, Step | Missing]:
        """By strategy text, the baseline always among them. What cannot be predicted says why."""
        wanted = list(dict.fromkeys([BASELINE, *strategies]))
        new = [text for text in wanted if (job.digest, text) not in self._found]
        self._told(job.label)
        if new:
            self._predict(job, new)
        return {text: self._found[job.digest, text] for text in wanted}

    def _predict(self, job: Job, texts: Sequence[str]) -> None:
        try:
            machine, model = preset_costs(job, self.machine_name)
            machine = _launching_free(machine) if self._free_launches else machine
            job.factory  # noqa: B018 - a model that does not exist is said once, not by each strategy
            for text, found in forecast_many(job, texts, {}, machine, model):
                self._found[job.digest, text] = Missing(_brief(found)) if isinstance(found, StepcastError) else self._step(found, machine)
        except StepcastError as error:
            self._found |= {(job.digest, text): Missing(_brief(error)) for text in (BASELINE, *texts)}

    def _step(self, found: Forecast, machine: Machine) -> Step:
        timeline, device = found.timeline, found.plan.devices[0]
        start, end = timeline.window_s
        for name, share in found.shares.model_dump().items():
            self._shares[name] += share * timeline.step_s
        return Step(
            timeline.step_s,
            found.interval_s,
            found.peak_bytes[device],
            machine.memory(device).size_bytes,
            phase_stretches(timeline),
            streams(found.plan),
            overlapped_kernel_seconds(timeline) * timeline.step_s / (end - start),
        )


def streams(plan: Plan) -> int:
    """How many streams of devices the plan's tasks run on; tasks of the host have none."""
    return len({(task.device, task.stream) for task in plan.tasks if task.body.resource is not Resource.HOST})


def _launching_free(machine: Machine) -> Machine:
    return replace(machine, hosts=tuple(replace(host, dispatch_s=0.0, record_s=0.0, wait_s=0.0) for host in machine.hosts))


def _brief(error: StepcastError) -> str:
    """An unknown name without the list of the known ones."""
    return str(error).partition(" (did you")[0].partition("; expected")[0] if isinstance(error, UnknownNameError) else str(error)
