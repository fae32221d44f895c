"""The accuracy of a classifier while it is trained: on held-out samples, and on as many of those that it is trained on."""

import torch

from executors.cpu.cores import available_cores
from executors.tensors import module_tensors
from simulator.model.job import Job
from simulator.model.workloads.data import Batches
from traces.documents.curves import Evaluation
from traces.errors import SchedcastError

#: Samples that are evaluated at once, unless the job's batch is larger.
AT_ONCE = 64


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

    @torch.inference_mode()
    def _share(self, numbers: range) -> float:
        """The share of the samples with these numbers that are classified correctly."""
        correct = 0
        for inputs, target in self._batches.parts(numbers, self._most):
            scores = self._module(*(tensor.to(self._device) for tensor in inputs))
            correct += int((scores.argmax(1).cpu() == target).sum())
        return correct / len(numbers)


def check_evaluable(job: Job, option: str) -> None:
    """Raise SchedcastError if the job has no held-out samples of known classes. `option`: what asks for an accuracy."""
    batches = job.data()
    if batches is None or not batches.held_out:
        raise SchedcastError(
            f"{option} needs classes to tell apart, and {job.model} has no data set: it repeats one batch; train a model that has one, such"
            " as lenet5 or resnet20"
        )
