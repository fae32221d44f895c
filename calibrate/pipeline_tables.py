"""Trainings with stale weights in plain PyTorch, one mini-batch after another: what staleness costs in accuracy.

`StaleReference` defines what pipelines compute that never drain; executed plans are compared with it.
"""

import math
from collections.abc import Callable, Iterator
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrate.numerics import reference
from calibrate.testbed import Progress
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
from traces.documents.reproduction import Table

#: How often a training is evaluated, on so many samples at once.
EVALUATIONS, AT_ONCE = 10, 256
#: Side of the digit in images of 32 pixels, as in MNIST.
FRAMED = 20


def tables(progress: Progress) -> tuple[Table, ...]:
    """A table for each task of the paper's scope: the accuracy of its trainings."""
    total = sum(task.seeds * len(task.trainings) for task in paper.SCOPE.trained)
    done = iter(range(total))
    return tuple(
        PAPER.table(task.table, _rows(task, lambda text: progress(next(done), total, text)), seeds=task.seeds, steps=task.steps)
        for task in paper.SCOPE.trained
    )


def _rows(task: Trained, begin: Callable[[str], None]) -> Iterator[tuple]:
    """Train with every seed, and yield the rows of the task's table. The first training is the one that others are compared with."""
    layers, without = numbered_layers(task.job(0).graph()), math.nan
    for training in task.trainings:
        runs = []
        for seed in range(task.seeds):
            begin(f"{task.network}, {training.name or training.placed}, seed {seed}")
            runs.append(trained(task, training, seed))
        finals = [run[-1][1] for run in runs]
        without = median(finals) if math.isnan(without) else without
        reached = median(next((step for step, accuracy in run if accuracy >= task.level), math.inf) for run in runs)
        stale = stale_weights(layers, training.placement) if training.placement else 0.0
        values = (stale, median(finals), min(finals), max(finals), without - median(finals), reached if math.isfinite(reached) else None)
        yield {"training": training.name or "stale", "pairs after": training.placed}, values


def trained(task: Trained, training: Training, seed: int) -> list[tuple[int, float]]:
    """Train once. Returns (iterations, accuracy on held-out samples) in order; a loss that is not finite ends the training."""
    job = task.job(seed, training)
    batches = _batches(task, job)
    built = job.build()
    _activate(built.module, training.activation)
    trainer = reference(job, built, False, stale=_staleness(job, training))
    every, evaluated = max(1, task.steps // EVALUATIONS), []
    for step in range(1, task.steps + 1):
        if step > training.pipelined * task.steps and isinstance(trainer, StaleReference):
            trainer.stale({})  # the pipeline has drained: what enters from now on is trained plainly
        inputs, target = batches[step - 1]
        trainer.feed(_shown(inputs, training), target)
        broken = not math.isfinite(float(trainer.step()))
        if broken or step % every == 0:
            evaluated.append((step, _accuracy(trainer.module, batches, training)))
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
    if not training.placement:
        return {}
    text = f"{paper.strategy_text(job, training.placement)},on=simulated,backward_weights={training.backward_weights}"
    strategy, options = strategies.parse(text, {})
    machine = load_machine("this-cpu")
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


@torch.no_grad()
def _accuracy(module: nn.Module, batches: Batches, training: Training) -> float:
    """The share of the held-out samples that the newest weights classify correctly."""
    module.eval()
    correct = 0
    for inputs, target in batches.parts(range(batches.samples, batches.samples + batches.held_out), AT_ONCE):
        correct += int((module(*_shown(inputs, training)).argmax(1) == target).sum())
    module.train()
    return correct / batches.held_out
