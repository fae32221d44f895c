"""Plain PyTorch's training of a job on a GPU."""

from collections.abc import Mapping, Sequence

import torch

from executors.cuda.driver import Driver, Stream
from executors.reference import Reference
from executors.tensors import module_tensors
from simulator.model.user_code import training_step


class GpuLoop:
    """Plain PyTorch on a stream of the whole GPU (`calibrate.testbed.PlainLoop`)."""

    about = ""

    def __init__(self, plain: Reference, driver: Driver, stream: Stream, batch: int):
        """`batch`: the number of samples per step."""
        self._plain, self._driver, self._stream, self._batch = plain, driver, stream, batch
        self.losses: list[float] = []

    def train(self, steps: int, batches: Sequence[tuple] | None = None) -> list[float]:
        """Issue the steps back to back; each has the mean length. Batches are moved to the device before them."""
        if batches is not None:
            batches = [(tuple(map(self._moved, inputs)), self._moved(target)) for inputs, target in batches]
        driver, losses = self._driver, []
        driver.synchronize()
        driver.use(self._stream)
        with training_step(self._batch):
            begin = driver.now_s()
            for number in range(steps):
                if batches is not None:
                    self._plain.feed(*batches[number])
                losses.append(self._plain.step())
            driver.synchronize()
            length_s = (driver.now_s() - begin) / steps
        self.losses += map(float, losses)
        return [length_s] * steps

    def copy_current(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Copy the module's parameters and buffers into `targets`, by name."""
        for name, tensor in module_tensors(self._plain.module).items():
            targets[name].detach().copy_(tensor.detach())

    def restart(self, warm_up: int) -> None:
        """Do nothing: the loop has no process of its own, and PyTorch keeps the GPU's memory between steps."""

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(next(self._plain.module.parameters()).device)
