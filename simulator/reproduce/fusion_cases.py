"""Published figures of the optimizer-fusion paper, the scope of the predictions, and the names of its schedules."""

from dataclasses import dataclass

from simulator.job import Job
from simulator.reproduce.predicting import BASELINE, Missing, Step

FF, BF, BF2 = "forward-fusion", "backward-fusion", "backward-fusion:update_stream=on"
#: The name of each strategy in tables.
CALLED = {BASELINE: "baseline", FF: "forward-fusion", BF: "backward-fusion, one stream", BF2: "backward-fusion, own stream"}
SHORT = {FF: "FF", BF: "BF one stream", BF2: "BF own stream"}

#: Figure 3, ms: elapsed times between the ends of the phases. The figure prints running sums, and these are their differences.
PHASES_MS = {
    BASELINE: {"forward": 21.90, "backward": 55.61, "optimizer": 16.70, "total": 94.21},
    FF: {"forward + update": 28.65, "backward": 55.77, "total": 84.42},
    BF: {"forward": 21.99, "backward + update": 58.93, "total": 80.92},
}
#: Table 2, ms: means of 100 iterations.
TABLE_2_MS = {BASELINE: 98.77, FF: 84.52, BF: 82.99}
#: Table 2, and section C.4 for the Transformer: printed speed-ups.
TABLE_2_SPEEDUPS = {FF: 1.17, BF: 1.19}
TRANSFORMER_SPEEDUPS = {FF: 1.030, BF: 1.019}


@dataclass(frozen=True)
class Scope:
    """The scope of the predictions. The paper prints sweeps and optimizers as curves without numbers; sweeps end at its largest batches."""

    phases: tuple[str, int] = ("mobilenet_v2", 32)
    """Model and batch of figure 3 and table 2."""
    transformer: tuple[str, int, tuple[int, ...]] = ("transformer_base", 256, (32, 64))
    """Model, batch and lengths of sentences; section C.4 does not state the lengths."""
    sweeps: tuple[tuple[str, tuple[int, ...]], ...] = (
        ("mobilenet_v2", (1, 8, 32, 64, 128, 200)),
        ("resnet18", (1, 8, 32, 100, 200)),
        ("resnet50", (1, 8, 32, 64, 100)),
        ("resnet152", (1, 8, 32, 60)),
        ("densenet201", (1, 8, 20, 32, 40)),
        ("vgg19_bn", (1, 8, 20, 32, 40)),
    )
    """Model and batches; figure 5."""
    same_batch: int = 32
    """The batch at which models are compared; figure 6."""
    optimizers: tuple[str, ...] = ("sgd", "momentum", "adagrad", "rmsprop", "adam", "adadelta")
    """At the model and batch of `phases`; figure 7."""


#: Predicted steps by strategy text.
StepsByStrategy = dict[str, Step | Missing]
#: Predicted steps by model, batch and strategy text.
Sweeps = dict[str, dict[int, StepsByStrategy]]


def job(model: str, batch: int, size: int | None = None, optimizer: str = "adam") -> Job:
    """Return a job as the paper trains it: the update of every parameter is launched separately."""
    return Job(model, batch, size, optimizer, "for")


def first_missing(steps: StepsByStrategy) -> Missing | None:
    """Return the first step that could not be predicted, or None."""
    return next((step for step in steps.values() if isinstance(step, Missing)), None)


def optimizer_share(step: Step) -> float:
    """Return the share of a step's time after its last backward task."""
    return step.stretches["update"] / sum(step.stretches.values())
