"""BPPSA predicted against measured on this CPU: the bit-stream RNN at several lengths and batches, scanned linearly and in parallel.

Target: median |error| of the baseline, the linear scan and Blelloch's scan at most 8 %, where a target is met at
max(target, 2 x A/A spread). Every run is printed. The hybrid scan, which chooses its level itself, is printed but not counted.
With SCHEDCAST_SAVE=FOLDER the documents are saved there. `python -m tools.bppsa 64 256` runs these lengths only.
"""

import statistics
import sys

from tools.accuracy import print_header, print_row, validated

LENGTHS, BATCHES = (64, 256, 1024, 4096), (1, 16)
STRATEGIES = ("bppsa:scan=linear", "bppsa:scan=blelloch", "bppsa")
TARGET = 0.08


def main() -> None:
    """Print a row per length, batch and strategy, and the figures of all runs together."""
    errors, missed = [], 0
    for length in map(int, sys.argv[1:] or LENGTHS):
        for batch in BATCHES:
            validation = validated("rnn_bitstream", batch, length, STRATEGIES, file=f"bppsa-rnn_bitstream-t{length}-b{batch}")
            print(f"T = {length}, B = {batch}")
            print_header()
            for row in validation.ran:
                print_row(validation, row)
                if row.options.get("scan") != "hybrid":
                    errors.append(abs(row.scored_error))
                    missed += errors[-1] > max(TARGET, 2 * validation.aa_spread)
    print(f"median |error| {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    print(f"above the target and the noise: {missed} of {len(errors)}")


if __name__ == "__main__":
    main()
