"""TurboDL's methods one after another on this CPU: predicted against measured, four models, each in a process of its own.

Stated: median |error| at most 6 %, worst 15 %, where |error| counts as met at max(stated, 2 x A/A spread); the order of two
levels right wherever their measured step times differ by more than 5 %. `python -m tests.benchmarks.ablation resnet50` takes one model.
With STEPCAST_SAVE=FOLDER the documents are kept there.
"""

import os
import statistics
import sys
from itertools import combinations
from pathlib import Path

from simulator.strategies import registry as strategies
from tests.benchmarks.accuracy import print_header, print_row, validated
from traces.comparison import ValidationResult

MODELS = (("resnet50", 16, 64), ("googlenet", 16, 64), ("vgg16", 16, 32), ("densenet201", 4, 32))
LEVELS = ("turbodl:streams=off", *strategies.get("turbodl").steps)
#: Levels whose measured step times are nearer to each other have no order.
NEAR = 0.05


def in_order(rows: list[ValidationResult]) -> tuple[int, int]:
    """Of the pairs of levels that differ, how many are predicted in their measured order, and how many there are."""
    right = asked = 0
    for a, b in combinations(rows, 2):
        if abs(a.measured_step_s / b.measured_step_s - 1) > NEAR:
            asked += 1
            right += (a.predicted_step_s < b.predicted_step_s) == (a.measured_step_s < b.measured_step_s)
    return right, asked


def main() -> None:
    """Print a row per level and the pooled figures."""
    errors, missed, right, asked = [], 0, 0, 0
    folder = os.environ.get("STEPCAST_SAVE")
    print_header()
    for model, batch, size in MODELS:
        if sys.argv[1:] and model not in sys.argv[1:]:
            continue
        found = validated(model, batch, size, LEVELS)
        if folder:
            found.save(Path(folder) / f"turbodl-{model}-b{batch}.json")
        for row in found.ran:
            print_row(found, row)
        rows = [row for row in found.ran if row.strategy == "turbodl"]
        errors += [abs(row.scored_error) for row in rows]
        missed += sum(abs(row.scored_error) > max(0.15, 2 * found.aa_spread) for row in rows)
        ordered = in_order(rows)
        right, asked = right + ordered[0], asked + ordered[1]
    print(f"median |error| {statistics.median(errors):.1%}, worst {max(errors):.1%}; beyond 15 % and the noise: {missed}")
    print(f"pairs of levels in the right order: {right} of {asked}")


if __name__ == "__main__":
    main()
