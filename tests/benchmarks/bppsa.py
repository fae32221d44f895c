"""BPPSA on this CPU: the bit-stream RNN at several lengths and batches, scanned linearly and in parallel, predicted against measured.

Stated: median |error| of baseline, linear and Blelloch's scan at most 8 %, where |error| counts as met at max(stated,
2 x A/A spread). Every run made is printed; the level that is chosen by itself is printed too, and not counted.
With STEPCAST_SAVE=FOLDER the documents are kept there. `python -m tests.benchmarks.bppsa 64 256` takes these lengths only.
"""

import os
import statistics
import sys
from pathlib import Path

from tests.benchmarks.accuracy import print_header, print_row, validated

LENGTHS, BATCHES = (64, 256, 1024, 4096), (1, 16)
STRATEGIES = ("bppsa:scan=linear", "bppsa:scan=blelloch", "bppsa")
STATED = 0.08


def main() -> None:
    """Print a row per length, batch and strategy, and the pooled figures."""
    folder = os.environ.get("STEPCAST_SAVE")
    errors, missed = [], 0
    for length in map(int, sys.argv[1:] or LENGTHS):
        for batch in BATCHES:
            found = validated("rnn_bitstream", batch, length, STRATEGIES)
            if folder:
                found.save(Path(folder) / f"bppsa-rnn_bitstream-t{length}-b{batch}.json")
            print(f"T = {length}, B = {batch}")
            print_header()
            for row in found.ran:
                print_row(found, row)
                if row.options.get("scan") != "hybrid":
                    errors.append(abs(row.scored_error))
                    missed += errors[-1] > max(STATED, 2 * found.aa_spread)
    print(f"median |error| {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    print(f"beyond the stated figure and the noise: {missed} of {len(errors)}")


if __name__ == "__main__":
    main()
