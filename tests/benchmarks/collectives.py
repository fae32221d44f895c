"""The error of collective laws on all-reduces of a DGX A100 (Vidur's measurements). Needs the shared data.

For each (ranks, nodes), a law is fitted on every fourth size and scored on the other sizes. Two measures of the data's noise are printed
too: the error of the straight line between the two fitted sizes around a held-out size, and the half-range of a size's repetitions divided
by their median.
"""

import csv
import gzip
import statistics
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from calibrate.distributed.collectives import fit_collective
from tests.support.shared_data import shared_folder
from traces.documents.collectives import CollectiveLaw

FILE = "a100_dgx_all_reduce.csv.gz"
#: One size in this many is fitted.
FITTED = 4
#: Below, times of one size differ by up to 3 times from run to run.
LARGE_BYTES = 1e6


class Sample(NamedTuple):
    """One size's median of its repetitions, and half their range by it."""

    size: float
    seconds: float
    noise: float


def all_reduces() -> dict[tuple[int, int], list[Sample]]:
    """Samples by (ranks, nodes), in order of size; empty without the data."""
    folder = shared_folder("collectives")
    if folder is None or not (folder / FILE).is_file():
        return {}
    found = defaultdict(dict)
    with gzip.open(folder / FILE, "rt") as file:
        for row in csv.DictReader(file):
            ranks, per_node = int(row["num_workers"]), int(row["devices_per_node"])
            low, high, median = (float(row[f"time_stats.all_reduce.{name}"]) for name in ("min", "max", "median"))
            sample = Sample(float(row["size"]), median * 1e-3, (high - low) / (2 * median))
            found[ranks, ranks // per_node][sample.size] = sample
    return {name: [sizes[size] for size in sorted(sizes)] for name, sizes in sorted(found.items(), key=lambda item: item[0][::-1])}


class Score(NamedTuple):
    """Errors of a law on the samples that it was not fitted on, by sample, and the noise of those."""

    law: CollectiveLaw
    held_out: list[Sample]
    errors: np.ndarray
    between: np.ndarray


def score(samples: list[Sample]) -> Score:
    """Fit on a quarter, score on the rest."""
    fitted, held_out = samples[::FITTED], [s for index, s in enumerate(samples) if index % FITTED]
    law = fit_collective((s.size, s.seconds) for s in fitted)
    truth = np.array([s.seconds for s in held_out])
    errors = np.array([law.seconds(s.size) for s in held_out]) / truth - 1
    straight = np.interp([s.size for s in held_out], [s.size for s in fitted], [s.seconds for s in fitted])
    return Score(law, held_out, abs(errors), abs(straight / truth - 1))


def main():
    """Print a row per number of ranks and nodes, of all sizes and of those from 1 MB."""
    found = all_reduces()
    if not found:
        print("the shared data are not here")
    print("all-reduce, DGX A100          held-out |error| of the law           |  line between neighbours   | repetitions")
    print("ranks nodes sizes     fitted pieces  median   90 %  worst within 10 % |  median   90 %  worst      |    90 %")
    for (ranks, nodes), samples in found.items():
        scored = score(samples)
        for name, least in (("all", 0.0), (">= 1 MB", LARGE_BYTES)):
            kept = np.array([s.size >= least for s in scored.held_out])
            error, between = scored.errors[kept], scored.between[kept]
            noise = np.quantile([s.noise for s in samples if s.size >= least], 0.9)
            print(
                f"{ranks:5} {nodes:5} {name:8} {len(scored.law.points):7} {len(scored.law.pieces):6}"
                f"  {np.median(error):6.1%} {np.quantile(error, 0.9):6.1%} {error.max():6.0%} {statistics.fmean(error <= 0.1):11.1%}"
                f" | {np.median(between):7.1%} {np.quantile(between, 0.9):6.1%} {between.max():6.0%}      | {noise:7.1%}"
            )


if __name__ == "__main__":
    main()
