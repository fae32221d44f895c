"""A compute-bound op timed at calibration and between the steps of a validation, so that a change of the GPU's speed shows in both."""

import torch

from calibrate.cuda.bench import Bench, repeated
from executors.cuda.driver import Driver

#: Edge of the square matrices, and how many products make a sample (about a millisecond on a large GPU).
EDGE, COPIES = 2048, 8


class GpuAnchor:
    """Products of two float32 matrices in a graph of their own."""

    def __init__(self, driver: Driver, edge: int = EDGE):
        self._bench = Bench(driver)
        a, b, out = (torch.randn(edge, edge, device=driver.device) for _ in range(3))
        self._held = (a, b, out)  # a graph does not keep the tensors that it works on

        def product() -> None:
            torch.mm(a, b, out=out)

        self._bench.run(product)
        self._graph = self._bench.capture(lambda: repeated(product)(COPIES))

    def sample(self, rounds: int = 5) -> list[float]:
        """Seconds per product, one per round."""
        return [seconds / COPIES for seconds in self._bench.replays([self._graph], rounds)[0]]
