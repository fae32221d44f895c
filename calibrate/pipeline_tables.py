"""Trainings with stale weights in plain PyTorch, one mini-batch after another: the accuracy lost to staleness.

`StaleReference` defines what pipelines compute that never drain; executed plans are compared with it. All trainings take about half an
hour, so each is stored in the data folder when it ends, until the last one has ended: after an interruption, the next run continues with
the others.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrate.numerics import reference
from calibrate.testbed import Progress
from calibrate.training import classified
from executors.reference import StaleReference
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.model.workloads.data import Batches, cluttered_digits
from simulator.papers import pipeline as paper
from simulator.papers.pipeline import PAPER
from simulator.papers.pipeline_model import numbered_layers, stale_weights
from simulator.papers.pipeline_trainings import Trained, Training
from simulator.strategies import registry as strategies
from simulator.strategies.pipeline.staleness import Staleness, staleness
from traces.documents.profile_files import data_folder
from traces.documents.reproduction import Table
from traces.errors import UnusableFileError
from traces.files import read_json, write_json

#: How often a training is evaluated, and on how many samples at a time.
EVALUATIONS, AT_ONCE = 10, 256
#: Side of the digit in images of 32 pixels, as in MNIST.
FRAMED = 20


#: A machine with a device for every stage. Which weights are stale does not depend on its costs.
SEVERAL = "k80x16"
#: One evaluation: iterations, accuracy on held-out samples, and the mean loss since the evaluation before (NaN: not finite).
Evaluated = tuple[int, float, float]


@dataclass
class Kept:
    """The trainings that have ended, in files of a folder. `begin` is called with a few words before each one that has to be made."""

    folder: Path
    begin: Callable[[str], None]
    _used: set[Path] = field(default_factory=set)

    def trained(self, task: Trained, training: Training, seed: int) -> list[Evaluated]:
        """Return the evaluations of a training, which runs unless they are stored."""
        self.begin(f"{task.network}, {training.name or training.placed}, seed {seed}")
        what = repr((replace(task, table="", trainings=(), seeds=0, level=0.0), training, seed, torch.__version__))
        path = self.folder / f"{hashlib.blake2b(what.encode(), digest_size=8).hexdigest()}.json"
        self._used.add(path)
        if path.exists():
            try:
                return [(step, accuracy, math.nan if loss is None else loss) for step, accuracy, loss in read_json(path, "training")]
            except (UnusableFileError, TypeError, ValueError):
                pass  # made again
        run = trained(task, training, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, [(step, accuracy, loss if math.isfinite(loss) else None) for step, accuracy, loss in run])
        return run

    def forget(self) -> None:
        """Remove the files of the requested trainings."""
        for path in self._used:
            path.unlink(missing_ok=True)


def tables(progress: Progress) -> tuple[Table, ...]:
    """A table for each task of the paper's scope, with the accuracy of its trainings; and the curves of those with a time."""
    total = sum(task.seeds * len(task.trainings) for task in paper.SCOPE.trained)
    done = iter(range(total))
    kept = Kept(data_folder() / "trainings", lambda text: progress(next(done), total, text))
    made = {
        (task, each): [kept.trained(task, each, seed) for seed in range(task.seeds)]
        for task in paper.SCOPE.trained
        for each in task.trainings
    }
    shown = tuple(
        PAPER.table(task.table, _rows(task, [made[task, each] for each in task.trainings]), seeds=task.seeds, steps=task.steps)
        for task in paper.SCOPE.trained
    )
    curves = [row for task in paper.SCOPE.trained for each in task.timed for row in _curve(task, each, made[task, each])]
    kept.forget()
    return (*shown, PAPER.table("curves", curves))


def _rows(task: Trained, made: list[list[list[Evaluated]]]) -> Iterator[tuple]:
    """Yield the rows of a task's table. `made`: its trainings, with every seed. The others are compared with the first."""
    layers, without = numbered_layers(task.job(0).graph()), math.nan
    for training, runs in zip(task.trainings, made, strict=True):
        finals = [run[-1][1] for run in runs]
        without = median(finals) if math.isnan(without) else without
        reached = median(next((step for step, accuracy, _ in run if accuracy >= task.level), math.inf) for run in runs)
        stale = stale_weights(layers, training.placement) if training.placement else 0.0
        values = (stale, median(finals), min(finals), max(finals), without - median(finals), reached if math.isfinite(reached) else None)
        yield {"training": training.name or "stale", "pairs after": training.placed}, values


def _curve(task: Trained, training: Training, runs: list[list[Evaluated]]) -> Iterator[tuple]:
    """Yield the medians of a training by iteration."""
    for evaluated in zip(*runs, strict=False):  # a training that broke is shorter
        step, losses = evaluated[0][0], [loss for _, _, loss in evaluated]
        labels = {**task.labels(training), "after": step}
        yield labels, (median(accuracy for _, accuracy, _ in evaluated), median(losses) if all(map(math.isfinite, losses)) else None)


def trained(task: Trained, training: Training, seed: int) -> list[Evaluated]:
    """Train once. Returns the evaluations in order; a loss that is not finite ends the training."""
    job = task.job(seed, training)
    batches = _batches(task, job)
    built = job.build()
    _activate(built.module, training.activation)
    trainer = reference(job, built, False, stale=_staleness(job, training) or None)
    every, evaluated, losses = max(1, task.steps // EVALUATIONS), [], []
    for step in range(1, task.steps + 1):
        if step > training.pipelined * task.steps and isinstance(trainer, StaleReference):
            trainer.stale({})  # the pipeline has drained: what enters from now on is trained plainly
        inputs, target = batches[step - 1]
        trainer.feed(_shown(inputs, training), target)
        losses.append(float(trainer.step()))
        broken = not math.isfinite(losses[-1])
        if broken or step % every == 0:
            evaluated.append((step, _accuracy(trainer.module, batches, training), math.nan if broken else fmean(losses)))
            losses = []
        if broken:
            break
    return evaluated


def _batches(task: Trained, job: Job) -> Batches:
    if task.data == "digits":
        return job.data()
    return cluttered_digits(job.build().inputs[0].shape[1], job.batch, task.image_size, job.seed)


def _activate(module: nn.Module, activation: str) -> None:
    """Replace every ReLU by `activation`, if that is tanh."""
    for parent in list(module.modules()) if activation == "tanh" else ():
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.Tanh())


def _staleness(job: Job, training: Training) -> dict[str, Staleness]:
    """The staleness of each parameter, found in the plan of the pipeline."""
    if not training.placement and not training.strategy:
        return {}
    registers = f"{paper.strategy_text(job, training.placement)},on=simulated,backward_weights={training.backward_weights}"
    strategy, options = strategies.parse(training.strategy or registers, {})
    machine = load_machine(SEVERAL if training.strategy else "this-cpu")
    return staleness(strategy.plan(job, machine, CostModel(machine), options))


def _shown(inputs: tuple[Tensor, ...], training: Training) -> tuple[Tensor, ...]:
    """The images or, framed, with a black frame and gray levels from 0 to 1, as MNIST has them."""
    if training.inputs == "standard":
        return inputs
    (images,) = inputs
    least, most = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    side = images.shape[-1] * FRAMED // 32
    small = F.interpolate((images - least) / (most - least), (side, side), mode="bilinear", antialias=True)
    before = (images.shape[-1] - side) // 2
    after = images.shape[-1] - side - before
    return (F.pad(small, (before, after, before, after)),)


def _accuracy(module: nn.Module, batches: Batches, training: Training) -> float:
    """The share of the held-out samples that the newest weights classify correctly."""
    module.eval()
    share = classified(lambda inputs: module(*_shown(inputs, training)), batches, at_once=AT_ONCE)
    module.train()
    return share
