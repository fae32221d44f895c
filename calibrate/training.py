"""Training one job several times, by plans and by plain PyTorch, on the same batches and from the same parameters.

The trainings take turns of some iterations each, so that a machine that speeds up or slows down does so for all of them. Batches are made
between the turns, and no step time includes them. `Repeated` does this for several seeds.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

import torch

from calibrate.numerics import Numerics, References, compare, steps_to_compare
from calibrate.testbed import PlainLoop, Progress, Testbed, no_progress
from executors.binding import op_tasks
from executors.cpu.cores import available_cores
from executors.run import Execution, Feeds, Run
from executors.tensors import job_tensors, module_tensors
from simulator.model.built import Built
from simulator.model.job import Job
from simulator.model.workloads.data import Batches
from simulator.plan.plan import Plan
from traces.documents.training import AUTOGRAD, Curve, Evaluation
from traces.errors import SchedcastError

#: Samples that are evaluated at once, unless the job's batch is larger.
AT_ONCE = 64


@torch.inference_mode()
def classified(
    scores: Callable[[tuple[torch.Tensor, ...]], torch.Tensor], batches: Batches, numbers: range | None = None, at_once: int = AT_ONCE
) -> float:
    """The share of the samples with these numbers (None: the held-out ones) whose class has the largest of `scores`, [samples, classes]."""
    numbers = range(batches.samples, batches.samples + batches.held_out) if numbers is None else numbers
    parts = batches.parts(numbers, at_once)
    return sum(int((scores(inputs).argmax(1).cpu() == target).sum()) for inputs, target in parts) / len(numbers)


class Accuracy:
    """Evaluates weights in a copy of the job's module, in evaluation mode: the training that they come from is not touched."""

    def __init__(self, job: Job, batches: Batches, device: torch.device):
        """`device`: where the copy is evaluated."""
        self._batches, self._most, self._device = batches, max(AT_ONCE, job.batch), device
        self._module = job.build().module.eval().requires_grad_(False).to(device)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The parameters and buffers of the copy, by name, for the weights to evaluate."""
        return module_tensors(self._module)

    def evaluation(self, iteration: int) -> Evaluation:
        """The accuracy with the weights in `tensors`, which are those after `iteration` iterations."""
        torch.set_num_threads(len(available_cores()))
        samples, held_out = self._batches.samples, self._batches.held_out
        return Evaluation(
            iteration=iteration,
            train_accuracy=self._share(range(min(held_out, samples))),
            test_accuracy=self._share(range(samples, samples + held_out)),
        )

    def _share(self, numbers: range) -> float:
        return classified(lambda inputs: self._module(*(tensor.to(self._device) for tensor in inputs)), self._batches, numbers, self._most)


def check_evaluable(job: Job, option: str) -> None:
    """Raise SchedcastError if the job has no held-out samples of known classes. `option`: what asks for an accuracy."""
    batches = job.data()
    if batches is None or not batches.held_out:
        raise SchedcastError(
            f"{option} needs classes to tell apart, and {job.model} has no data set: it repeats one batch; train a model that has one, such"
            " as lenet5 or resnet20"
        )


#: Steps that are compared with plain PyTorch's before a training: the second one shows the effects of the first one.
CHECKED_STEPS = 2
#: Iterations of the first turn, and the most and the fewest iterations of any turn (the last turn may have fewer).
FIRST, MOST, LEAST = 16, 256, 4
#: A turn takes about `TURN_S` seconds, and its batches at most `TURN_BYTES` bytes.
TURN_S, TURN_BYTES = 0.5, 128 << 20


class Learner(Protocol):
    """One training. `ends_s`: seconds of steps since the start, one entry per iteration of the completed turns."""

    ends_s: list[float]

    @property
    def losses(self) -> Sequence[float]:
        """One per iteration of the completed turns."""

    def run(self, steps: int, feeds: list[Feeds] | None) -> None:
        """Train `steps` more iterations, on the batches in `feeds` or, if it is None, on the job's own batch."""

    def drain(self) -> None:
        """Complete every iteration begun, so that all have a loss."""

    def copy_current(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Copy the newest parameters and buffers into `targets`, by name, without any effect on the training."""


class PlainLearner:
    """A learner that runs plain PyTorch's loop."""

    def __init__(self, plain: PlainLoop, inputs: int):
        """`inputs`: how many tensors of a batch are inputs of the module."""
        self._plain, self._inputs = plain, inputs
        self.copy_current = plain.copy_current
        self.ends_s: list[float] = []

    @property
    def losses(self) -> Sequence[float]:
        return self._plain.losses

    def run(self, steps: int, feeds: list[Feeds] | None) -> None:
        batches = None if feeds is None else [(tuple(feed[f"input:{i}"] for i in range(self._inputs)), feed["target:0"]) for feed in feeds]
        for length_s in self._plain.train(steps, batches):
            self.ends_s.append((self.ends_s[-1] if self.ends_s else 0.0) + length_s)

    def drain(self) -> None:
        """Do nothing: a step completes its iteration."""


@dataclass
class Training:
    """Learners of one job by name; the first is the one that the training is about.

    `turns` trains them, then `finish` completes the first one. `about` describes in words how some of them train. If `batches` is None, the
    job's own batch is repeated. `numerics` says, for the plans that were checked, how far their first steps are from plain PyTorch's.
    `evaluate_every`: measure accuracy before the first iteration, after every `evaluate_every` iterations, and after the last; 0: never.
    """

    job: Job
    testbed: Testbed
    learners: dict[str, Learner]
    about: dict[str, str]
    batches: Batches | None
    built: Built
    numerics: dict[str, Numerics] = field(default_factory=dict)
    evaluate_every: int = 0
    evaluations: dict[str, list[Evaluation]] = field(default_factory=dict)

    @staticmethod
    def begin(
        job: Job, testbed: Testbed, plans: Mapping[str, Plan], autograd: bool, check: Collection[str] = (), evaluate_every: int = 0
    ) -> "Training":
        """Load plans on the testbed's backend and, with `autograd`, plain PyTorch.

        The first steps of the plans named in `check` are compared with plain PyTorch's before anything is trained. Raises SchedcastError if
        the data cannot be made.
        """
        batches = job.data()
        built = job.build()
        numerics = _first_steps(job, built, {name: plans[name] for name in check}, testbed)
        tensors = job_tensors(job, built, job.graph())
        learners: dict[str, Learner] = {name: Execution(plan, tensors, testbed.backend, job.seed) for name, plan in plans.items()}
        about: dict[str, str] = {}
        if autograd:
            # Plans draw their own dropout masks. Losses agree only if plain PyTorch draws the same ones, which takes it some time.
            masks = any(op.body.random for plan in plans.values() for task in plan.tasks for op in op_tasks(task))
            plain = testbed.plain_loop(job, built, masks)
            learners[AUTOGRAD] = PlainLearner(plain, len(built.inputs))
            about[AUTOGRAD] = ", ".join(filter(None, ("plain PyTorch", plain.about)))
        return Training(job, testbed, learners, about=about, batches=batches, built=built, numerics=numerics, evaluate_every=evaluate_every)

    def turns(self, steps: int, progress: Progress = no_progress) -> Iterator[int]:
        """Train `steps` iterations. After each turn of all learners, yields how many iterations all of them have been given.

        At the end, all learners have completed them. Only then does a pipeline drain: accuracy is measured with what it has learned so far.
        """
        names = list(self.learners)
        accuracy = None
        if self.evaluate_every and self.batches is not None:
            accuracy = Accuracy(self.job, self.batches, self.testbed.backend.torch_device)
        self._evaluate(accuracy, 0)
        done, count = 0, self._turn_length(FIRST, self._next_stop(0, steps))
        while done < steps:
            feeds = None if self.batches is None else [self._feeds(self.batches, done + i) for i in range(count)]
            for place in range(len(names)):
                name = names[(place + done) % len(names)]
                progress(done * len(names) + place * count, steps * len(names), name)
                self.learners[name].run(count, feeds)
            done += count
            if done == self._next_stop(done - 1, steps):
                self._evaluate(accuracy, done)
            yield done
            slowest_s = max(learner.ends_s[-1] for learner in self.learners.values()) / done
            count = self._turn_length(min(MOST, int(TURN_S / slowest_s)) if slowest_s else MOST, self._next_stop(done, steps) - done)

        for learner in self.learners.values():
            learner.drain()

    def _next_stop(self, done: int, steps: int) -> int:
        """The first iteration after `done` at which accuracy is measured, or the last one."""
        return min(steps, (done // self.evaluate_every + 1) * self.evaluate_every) if self.evaluate_every else steps

    def _evaluate(self, accuracy: Accuracy | None, iteration: int) -> None:
        if accuracy is None:
            return
        for name, learner in self.learners.items():
            learner.copy_current(accuracy.tensors)
            self.evaluations.setdefault(name, []).append(accuracy.evaluation(iteration))

    def differences(self) -> list[str]:
        """A line for each checked plan whose numbers are not those of plain PyTorch."""
        return [
            f"{name} does not compute what plain PyTorch computes: after the first steps, gradients differ by {numerics.max_grad_error:.1g}"
            f" and parameters by {numerics.max_param_error:.1g} of the largest; look for state outside the model's buffers, or for hooks"
            for name, numerics in self.numerics.items()
            if not numerics.equal(self.job.precision)
        ]

    def _feeds(self, batches: Batches, iteration: int) -> Feeds:
        inputs, target = batches[iteration]
        return replace(self.built, inputs=inputs, keywords={}, target=target).named_inputs()

    def _turn_length(self, count: int, left: int) -> int:
        """Iterations of a turn: about `count`, but no more than memory allows, whole graphs, and no very short turn at the end."""
        count = max(LEAST, count)
        if self.batches is not None:
            size = sum(tensor.nbytes for tensor in self.built.named_inputs().values())
            count = min(count, max(2, TURN_BYTES // max(1, size)))
        unit = self.testbed.backend.unit
        if unit > 1:
            count = max(2, count // unit) * unit
        return left if left < count + LEAST else count

    def curves(self) -> tuple[Curve, ...]:
        """The curves so far, up to the last iteration of which every learner has both loss and time."""
        done = min(min(len(learner.losses), len(learner.ends_s)) for learner in self.learners.values())
        return tuple(
            Curve(
                name=name,
                about=self.about.get(name, ""),
                losses=tuple(map(finite, learner.losses[:done])),
                seconds=tuple(learner.ends_s[:done]),
                seed=self.job.seed,
                evaluations=tuple(each for each in self.evaluations.get(name, ()) if each.iteration <= done),
            )
            for name, learner in self.learners.items()
        )

    @property
    def first(self) -> Execution:
        """The execution of the first learner, which the training is about."""
        return cast(Execution, next(iter(self.learners.values())))

    def finish(self, timeline: bool) -> Run:
        """Complete every iteration that the first learner has begun."""
        return self.first.finish(timeline)


def _first_steps(job: Job, built: Built, plans: Mapping[str, Plan], testbed: Testbed) -> dict[str, Numerics]:
    """Compare the first steps of plans with plain PyTorch's, on the job's own batch. `built` is left as it was.

    A training whose numbers are not finite in plain PyTorch either is skipped: there is nothing to compare.
    """
    backend = testbed.backend
    steps = CHECKED_STEPS if backend.unit == 1 else steps_to_compare(backend)
    references = References(job, built, steps, backend)
    numerics = {}
    for name, plan in sorted(plans.items(), key=lambda item: references.key(item[1])):
        expected = references.of(plan)
        if expected.finite:
            numerics[name] = references.judged(plan, compare(job, built, plan, backend, expected, steps), backend)
    return numerics


def finite(loss: float) -> float | None:
    """The loss, or None if it is not finite."""
    return loss if math.isfinite(loss) else None


@dataclass
class Repeated:
    """The trainings of a job with `seeds` seeds, starting with its own.

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
            if number or self._training is None:
                self._training = self._begun(number)
            for _ in self._training.turns(steps, self._shifted(progress, number)):
                if not number:
                    self.step_runs_s = self._training.first.steps_s
            if not number:
                self.done = self._training.finish(timeline)
            self._finished += self._training.curves()
            self._training = None  # frees its tensors before the next one's are made

    def _begun(self, number: int, check: Collection[str] = ()) -> Training:
        job = self.job.with_seed(self.job.seed + number)
        return Training.begin(job, self.testbed, self.plans, self.autograd, check, self.evaluate_every)

    def _shifted(self, progress: Progress, number: int) -> Progress:
        """The progress of one seed's trainings as a part of all of them."""
        words = f", seed {self.job.seed + number}" if self.seeds > 1 else ""
        return lambda done, total, text: progress(number * total + done, self.seeds * total, text + words)

    def curves(self) -> tuple[Curve, ...]:
        """The curves so far, seed by seed. Those of a seed are as long as the shortest of them."""
        current = self._training.curves() if self._training is not None else ()
        return self._finished + (current if current and current[0].losses else ())
