"""A compute-bound op that is timed during calibration and during steps, so that a change of the machine's speed is visible in both.

It is a 160 x 160 matrix product, run at most every 10 ms: two untimed calls, then a timed one. After other work the first call takes 20 to
50 % longer and the second up to 5 %, depending on that work; the third does not. The time of all three calls is subtracted from the
measurement around them.
"""

import time

import torch

SIZE = 160
EVERY_NS = 10_000_000
WARM_CALLS = 2


class ReferenceKernel:
    """The reference kernel of one worker, with its operands and its measured durations in nanoseconds."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self._a, self._b = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
        self._next_ns = 0
        self.durations_ns: list[int] = []

    def tick(self) -> int:
        """Run the op if it is due. Returns the nanoseconds spent, 0 if it was not due."""
        begin = time.perf_counter_ns()
        if begin < self._next_ns:
            return 0
        for _ in range(WARM_CALLS):
            torch.mm(self._a, self._b)
        timed = time.perf_counter_ns()
        torch.mm(self._a, self._b)
        end = time.perf_counter_ns()
        self._next_ns = end + EVERY_NS
        self.durations_ns.append(end - timed)
        return time.perf_counter_ns() - begin

    def take(self) -> list[float]:
        """Remove and return the durations measured since the last call, in seconds."""
        durations_ns, self.durations_ns = self.durations_ns, []
        return [ns * 1e-9 for ns in durations_ns]
