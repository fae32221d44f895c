"""The GPU's anchor: a compute-bound op timed at calibration and between a validation's steps, so that both show a change of the clocks."""

import torch

from calibrate.cuda.bench import Bench, repeated
from executors.cuda.driver import Driver

#: Edge of the square matrices, and how many products make a sample (about a millisecond on a large GPU).
EDGE, COPIES = 2048, 8


class GpuAnchor:
    """Products of two float32 matrices, captured in a graph."""

    def __init__(self, driver: Driver, edge: int = EDGE):
        self._bench = Bench(driver)
        a, b, out = (torch.randn(edge, edge, device=driver.device) for _ in range(3))
        self._operands = (a, b, out)  # a graph does not keep its tensors alive

        def product() -> None:
            torch.mm(a, b, out=out)

        self._bench.run(product)
        self._graph = self._bench.capture(lambda: repeated(product)(COPIES))

    def sample(self, rounds: int = 5) -> list[float]:
        """Seconds per product, by round."""
        return [seconds / COPIES for seconds in self._bench.replays([self._graph], rounds)[0]]
