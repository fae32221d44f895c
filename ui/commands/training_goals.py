"""What a training is to show beyond its losses: accuracy, a target, several seeds, seconds on another machine."""

from dataclasses import dataclass

from calibrate.accuracy import check_evaluable
from simulator.model.job import Job
from traces.errors import SchedcastError

#: By default accuracy is measured about this many times, at least so many iterations apart; not at all in trainings shorter than SHORT.
TIMES, APART, SHORT = 20, 20, 100
#: Seeds at most.
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Goals:
    """The options of `schedcast run` for this."""

    eval_every: int | None = None
    """Iterations between two evaluations; 0: none; None: chosen by the number of steps."""
    seeds: int = 1
    """Trainings with different seeds."""
    target: float | None = None
    """Test accuracy to reach."""
    predict_on: str | None = None
    """Name of a machine for whose predicted step times the curves are drawn."""

    def __post_init__(self):
        if self.eval_every is not None and (self.eval_every < 0 or self.eval_every == 1):
            raise SchedcastError(
                f"--eval-every is {self.eval_every}; expected at least 2 (a single iteration has no step time), or 0 for never"
            )
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise SchedcastError(f"--seeds is {self.seeds}; expected 1 to {MOST_SEEDS}")
        if self.target is not None and not 0 < self.target <= 1:
            raise SchedcastError(f"--target is {self.target}; expected a share of the samples above 0 and at most 1, such as 0.9")
        if self.target is not None and self.eval_every == 0:
            raise SchedcastError(f"--target {self.target} needs evaluations, and --eval-every 0 asks for none; leave one of them out")

    def evaluate_every(self, job: Job, steps: int) -> int:
        """Iterations between two evaluations; 0: none. Raises SchedcastError if accuracy is asked for and `job` has none."""
        if self.eval_every == 0:
            return 0
        if self.eval_every is not None:
            check_evaluable(job, f"--eval-every {self.eval_every}")
            return self.eval_every
        if self.target is not None:
            check_evaluable(job, f"--target {self.target}")
        elif steps < SHORT or job.factory.data is None:
            return 0
        return max(min(APART, steps // 4), -(-steps // TIMES), 2)


#: The losses alone.
PLAIN_GOALS = Goals()
