"""Training one job several times over, by plans and by plain PyTorch, on the same batches and from the same parameters.

They take turns, some iterations each, so that a machine that speeds up or slows down does so for all of them. Batches are made between
the turns, and are no part of any time.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from calibrate.cpu.session import Progress
from calibrate.cpu.testbed import Testbed
from calibrate.numerics import reference
from executors.binding import draws_mask, op_tasks
from executors.reference import Reference
from executors.run import Execution, Run
from executors.tensors import job_tensors
from simulator.job import Job
from simulator.models.built import Built
from simulator.models.factory import training_step
from simulator.plan.plan import Plan
from simulator.workloads.data import Batches
from traces.training import Curve

#: Name of the curve of plain PyTorch.
AUTOGRAD = "autograd"
#: Iterations of the first turn, of any turn at most and, where they are left, at least.
FIRST, MOST, LEAST = 16, 256, 4
#: A turn takes about so long, and its batches so many bytes.
TURN_S, TURN_BYTES = 0.5, 128 << 20


class Learner(Protocol):
    """One training. `losses` and `ends_s` (seconds of steps since the start) by iteration, of the turns that are done."""

    losses: Sequence[float]
    ends_s: Sequence[float]

    def run(self, steps: int, feeds: list[dict[str, torch.Tensor]] | None) -> None:
        """Train so many more iterations, on `feeds` where there are some."""


class PlainLearner:
    """Plain PyTorch's loop as a learner."""

    def __init__(self, plain: Reference, testbed: Testbed, batch: int, inputs: int):
        """`batch`: samples per step; `inputs`: how many tensors of a feed are inputs of the module."""
        self.plain, self._stand, self._batch, self._inputs = plain, testbed, batch, inputs
        self.losses: list[float] = []
        self.ends_s: list[float] = []

    def run(self, steps: int, feeds: list[dict[str, torch.Tensor]] | None) -> None:
        """The stand times the steps, each with its loss kept and its batch, on the device already, fed before it."""
        batches = _Fed(self.plain, [self._fed(feed) for feed in feeds] if feeds is not None else None)
        with training_step(self._batch):
            lengths_s = self._stand.plain_s(batches, steps)
        for length_s in lengths_s:
            self.ends_s.append((self.ends_s[-1] if self.ends_s else 0.0) + length_s)
        self.losses += map(float, batches.losses)

    def _fed(self, feed: dict[str, torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        device = self._stand.backend.torch_device
        inputs = tuple(feed[f"input:{i}"].to(device) for i in range(self._inputs))
        return inputs, feed["target:0"].to(device)


@dataclass
class _Fed:
    """Steps of plain PyTorch on batches of their own."""

    plain: Reference
    batches: list[tuple[tuple[torch.Tensor, ...], torch.Tensor]] | None
    losses: list[torch.Tensor] = field(default_factory=list)

    def step(self) -> None:
        """One step on the next batch."""
        if self.batches is not None:
            self.plain.feed(*self.batches[len(self.losses)])
        self.losses.append(self.plain.step())


@dataclass
class Training:
    """Learners of one job by name, the one that the training is about first. `turns` trains them; then `finish` completes the first.

    `about`: how some of them train, in words. Without `batches` the job's own batch is repeated.
    """

    job: Job
    testbed: Testbed
    learners: dict[str, Learner]
    about: dict[str, str]
    batches: Batches | None
    built: Built

    @staticmethod
    def begin(job: Job, testbed: Testbed, plans: Mapping[str, Plan], autograd: bool) -> "Training":
        """Load plans on the stand's backend, and plain PyTorch where asked for.

        Raises StepcastError where the data cannot be made.
        """
        batches = job.data()
        built = job.build()
        tensors = job_tensors(job, built, job.graph())
        learners: dict[str, Learner] = {name: Execution(plan, tensors, testbed.backend, job.seed) for name, plan in plans.items()}
        about: dict[str, str] = {}
        if autograd:
            # Plans draw dropout masks of their own: only with the same ones do losses agree. To draw them takes plain PyTorch some time.
            masks = any(draws_mask(op) for plan in plans.values() for task in plan.tasks for op in op_tasks(task))
            plain, spare = (reference(job, built, same_masks=masks, backend=testbed.backend) for _ in range(2))
            with training_step(job.batch):
                how = testbed.settle(spare)
            learners[AUTOGRAD] = PlainLearner(plain, testbed, job.batch, len(built.inputs))
            about[AUTOGRAD] = f"plain PyTorch{how and ', '}{how}"
        return Training(job, testbed, learners, about, batches, built)

    def turns(self, steps: int, progress: Progress = lambda done, total, text: None) -> Iterator[int]:
        """Train `steps` iterations; yields how many all learners have completed after every round of turns."""
        names = list(self.learners)
        done, count = 0, self._whole(FIRST, steps)
        while done < steps:
            feeds = None if self.batches is None else [self._feeds(done + i) for i in range(count)]
            for place in range(len(names)):
                name = names[(place + done) % len(names)]
                progress(done * len(names) + place * count, steps * len(names), name)
                self.learners[name].run(count, feeds)
            done += count
            yield done
            slowest_s = max(learner.ends_s[-1] for learner in self.learners.values()) / done
            count = self._whole(min(MOST, int(TURN_S / slowest_s)) if slowest_s else MOST, steps - done)

    def _feeds(self, iteration: int) -> dict[str, torch.Tensor]:
        inputs, target = self.batches[iteration]
        return replace(self.built, inputs=inputs, keywords={}, target=target).named_inputs()

    def _whole(self, count: int, left: int) -> int:
        """Iterations of a turn of about `count`: no more than memory allows, whole graphs, and no stump of a turn at the end."""
        count = max(LEAST, count)
        if self.batches is not None:
            size = sum(tensor.nbytes for tensor in self.built.named_inputs().values())
            count = min(count, max(2, TURN_BYTES // max(1, size)))
        unit = self.testbed.backend.unit
        if unit > 1:
            count = max(2, count // unit) * unit
        return left if left < count + LEAST else count

    def curves(self) -> tuple[Curve, ...]:
        """What has been trained so far: as many iterations of everyone as everyone has both loss and time of."""
        known = min(min(len(learner.losses), len(learner.ends_s)) for learner in self.learners.values())
        return tuple(
            Curve(
                name=name,
                about=self.about.get(name, ""),
                losses=tuple(map(finite, learner.losses[:known])),
                seconds=tuple(learner.ends_s[:known]),
            )
            for name, learner in self.learners.items()
        )

    @property
    def first(self) -> Execution:
        """The execution that the training is about."""
        return next(iter(self.learners.values()))

    def finish(self, timeline: bool) -> Run:
        """Complete every iteration of the first learner."""
        return self.first.finish(timeline)


def finite(loss: float) -> float | None:
    """None where it is not."""
    return loss if math.isfinite(loss) else None
