"""Published figures of the BPPSA paper's recurrent workloads, and the scope of the predictions."""

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from simulator.job import Job


class Epoch(NamedTuple):
    """Seconds of one epoch: forward alone, training by back-propagation, and training by BPPSA."""

    forward_s: float
    baseline_s: float
    bppsa_s: float

    @property
    def baseline_backward_s(self) -> float:
        """Total minus forward, as in appendix G."""
        return self.baseline_s - self.forward_s

    @property
    def bppsa_backward_s(self) -> float:
        """The same for BPPSA; it includes the Jacobians of an RNN."""
        return self.bppsa_s - self.forward_s

    @property
    def speedup(self) -> float:
        """The speed-up of the whole epoch."""
        return self.baseline_s / self.bppsa_s

    @property
    def backward_speedup(self) -> float:
        """The speed-up of the backward alone."""
        return self.baseline_backward_s / self.bppsa_backward_s


#: Table 4: V100, mini-batches of 16, by length of the sequence.
TABLE_4 = {
    10: Epoch(1.57, 4.49, 4.24),
    30: Epoch(2.13, 5.50, 4.91),
    100: Epoch(3.82, 8.87, 6.64),
    300: Epoch(8.79, 18.49, 11.71),
    1000: Epoch(25.86, 53.33, 29.29),
    3000: Epoch(75.33, 157.11, 79.48),
    10000: Epoch(250.28, 510.13, 265.02),
    30000: Epoch(748.99, 1557.94, 764.31),
}
#: The length at which the paper's own backward of BPPSA takes as long as at three times this length.
OUTLIER = 10000
#: Mini-batch of table 4.
BATCH = 16
#: Samples of an epoch; sections 4.1 and 4.2.
BITSTREAMS, CLIPS = 32_000, 6_705
#: Section 5: greatest speed-ups over all points, overall on RTX 2070, of the backward on RTX 2080 Ti, and of the GRU on both.
GREATEST_OVERALL, GREATEST_BACKWARD = 2.75, 108.0
GREATEST_GRU_OVERALL, GREATEST_GRU_BACKWARD = 2.36, 13.4
#: Section 5.1, T = 1000, B = 16 on RTX 2070.
RTX_2070_OVERALL, RTX_2070_BACKWARD = 2.73, 16.0


class Case(NamedTuple):
    """A workload: `rnn_bitstream` or `gru_features`, length of the sequences, and mini-batch."""

    model: str
    length: int
    batch: int

    @property
    def job(self) -> Job:
        """The job as the paper trains it: Adam in its for-loop form, the only one in PyTorch 1.1 and 1.2."""
        return Job(self.model, self.batch, image_size=self.length, optimizer="adam", form="for")

    @property
    def iterations(self) -> int:
        """The iterations of one epoch; the last mini-batch may be incomplete."""
        return ceil((BITSTREAMS if self.model == RNN else CLIPS) / self.batch)


RNN, GRU = "rnn_bitstream", "gru_features"


@dataclass(frozen=True)
class Scope:
    """The scope of the predictions."""

    lengths: tuple[int, ...] = tuple(TABLE_4)
    """The lengths that are compared at the mini-batch of table 4."""
    length: int = 1000
    """The length at which mini-batches are compared; figure 8d to 8f."""
    batches: tuple[int, ...] = (256, 128, 64, 32, 16, 8, 4, 2)
    sets: tuple[tuple[str, int], ...] = (("S", 259), ("M", 517), ("L", 1034))
    """Sets of audio features and their lengths; table 3."""
    set_batches: tuple[int, ...] = (16, 32, 64)
    other_machine: str = "p100"
    """A GPU with fewer SMs and less bandwidth, for the claims that compare two."""

    @property
    def by_length(self) -> tuple[Case, ...]:
        """The cases of table 4 and figure 8a to 8c."""
        return tuple(Case(RNN, length, BATCH) for length in self.lengths)

    @property
    def by_batch(self) -> tuple[Case, ...]:
        """The cases of figure 8d to 8f."""
        return tuple(Case(RNN, self.length, batch) for batch in self.batches)

    @property
    def gru(self) -> dict[Case, str]:
        """The cases of figure 9, each with the name of its set."""
        return {Case(GRU, length, batch): name for name, length in self.sets for batch in self.set_batches}
