"""One training after another, each with a seed of its own: other initial parameters, and other batches of the same data."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from calibrate.numerics import Numerics
from calibrate.testbed import Progress, Testbed, no_progress
from calibrate.training import Training
from executors.run import Run
from simulator.model.job import Job
from simulator.plan.plan import Plan
from traces.documents.curves import Curve


@dataclass
class Repeated:
    """The trainings of a job with the seeds from its own on: `seeds` of them.

    The arguments are those of `Training.begin`. Only the first seed's plans are checked, timed for `step_runs_s` and completed by `done`,
    the first plan's run; it is None until then. The first seed's training is `first` while it exists.
    """

    job: Job
    testbed: Testbed
    plans: Mapping[str, Plan]
    autograd: bool
    check: Collection[str] = ()
    evaluate_every: int = 0
    seeds: int = 1
    data: str | None = None
    numerics: dict[str, Numerics] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    step_runs_s: tuple[float, ...] = ()
    done: Run | None = None
    _finished: tuple[Curve, ...] = ()
    _training: Training | None = None

    def begin(self) -> None:
        """Load and check the first seed's trainings. Raises SchedcastError if they cannot be made."""
        self._training = self._begun(0, self.check)
        self.numerics, self.differences = self._training.numerics, self._training.differences()
        self.data = self._training.batches.name if self._training.batches is not None else None

    def train(self, steps: int, timeline: bool = False, progress: Progress = no_progress) -> None:
        """Train `steps` iterations with every seed. `timeline`: measure one of the first plan, with the first seed."""
        for number in range(self.seeds):
            if number:
                self._training = self._begun(number)
            for _ in self._training.turns(steps, self._shifted(progress, number)):
                self._keep_times(number)
            if not number:
                self.done = self._training.finish(timeline)
            self._finished += self._training.curves()
            self._training = None  # frees its tensors before the next one's are made

    def _begun(self, number: int, check: Collection[str] = ()) -> Training:
        job = self.job.with_seed(self.job.seed + number)
        return Training.begin(job, self.testbed, self.plans, self.autograd, check, self.evaluate_every)

    def _keep_times(self, number: int) -> None:
        if not number:
            self.step_runs_s = self._training.first.steps_s

    def _shifted(self, progress: Progress, number: int) -> Progress:
        """The progress of one seed's trainings as a part of all of them."""
        words = f", seed {self.job.seed + number}" if self.seeds > 1 else ""
        return lambda done, total, text: progress(number * total + done, self.seeds * total, text + words)

    def curves(self) -> tuple[Curve, ...]:
        """The curves so far, seed by seed. Those of a seed are as long as the shortest of them."""
        current = self._training.curves() if self._training is not None else ()
        return self._finished + (current if current and current[0].losses else ())
