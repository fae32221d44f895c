"""Published figures of the TurboDL paper, the scope of the predictions, and the names of its configurations.

The paper's denominator is Caffe with cuDNN, which is not one stream: it runs the parts of a layer's backward on separate streams, with
a barrier between layers.
"""

from dataclasses import dataclass

from simulator.job import Job
from simulator.reproduce.predicting import BASELINE, Missing, Step
from simulator.strategies import registry as strategies

#: The paper's configurations as strategies; each adds one method to the one before.
CUDNN, ASYNC, TURBODL = strategies.get("turbodl").steps
CALLED = {BASELINE: "one stream", CUDNN: "Caffe+cuDNN", ASYNC: "+ asynchronous", TURBODL: "+ priorities"}

#: Section 4.2, P100: speed-ups of TurboDL over Caffe+cuDNN, by built-in model.
SPEEDUPS = {"lenet5": 1.38, "vgg16": 1.27, "alexnet_grouped": 1.21, "googlenet": 1.30, "resnet50": 1.35, "caffenet": 1.31}
#: Figure 11b: asynchronous layers without priorities.
ASYNC_SPEEDUPS = {"resnet50": 1.15}
#: Section 4.3: streams of VGG-16.
STREAMS = {"vgg16": {CUDNN: 38, TURBODL: 3}}
#: Section 4.2: VGG-16 by batch. The gain at 200 is not printed.
VGG_BY_BATCH = {100: 1.27, 400: 1.18}
#: Figure 9: ResNets, with the batch that each was trained at.
DEPTHS = {"resnet18": 1.27, "resnet34": 1.29, "resnet50": 1.35, "resnet101": 1.38, "resnet152": 1.40}


@dataclass(frozen=True)
class Scope:
    """The scope of the predictions."""

    networks: tuple[tuple[str, int], ...] = (
        ("lenet5", 64), ("vgg16", 100), ("alexnet_grouped", 128), ("googlenet", 32), ("resnet50", 32), ("caffenet", 256),
    )  # fmt: skip
    """Model and batch; figure 7. AlexNet and CaffeNet are those with grouped convolutions."""
    by_batch: tuple[str, tuple[int, ...]] = ("vgg16", (100, 200, 400))
    """Model and batches; figure 8."""
    depths: tuple[tuple[str, int], ...] = (("resnet18", 32), ("resnet34", 32), ("resnet50", 32), ("resnet101", 28), ("resnet152", 18))
    """Models from shallow to deep, and their batches; figure 9."""
    other_machine: str = "k20"
    """The smaller card of figure 10, for the same networks."""


#: Predicted steps by strategy text.
StepsByStrategy = dict[str, Step | Missing]


def job(model: str, batch: int) -> Job:
    """Return a job as Caffe trains it: stochastic gradient descent with momentum, with separate kernels for each parameter."""
    return Job(model, batch, form="for")


def gain(steps: StepsByStrategy, text: str, over: str = CUDNN) -> float | None:
    """Return the speed-up of a configuration over another; None if either could not be predicted."""
    step, base = steps[text], steps[over]
    return None if isinstance(step, Missing) or isinstance(base, Missing) else base.step_s / step.step_s
