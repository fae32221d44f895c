"""TurboDL with its methods added one by one, predicted against measured on this CPU: four models, each in a separate process.

Targets: median |error| at most 6 %, worst at most 15 %, where a target is met at max(target, 2 x A/A spread); and the right
order of any two levels whose measured step times differ by more than 5 %. `python -m tools.ablation resnet50` runs one model.
With SCHEDCAST_SAVE=FOLDER the documents are saved there.
"""

import statistics
import sys
from itertools import combinations

from simulator.strategies import registry as strategies
from tools.accuracy import print_header, print_row, validated
from traces.documents.comparison import ValidationResult

MODELS = (("resnet50", 16, 64), ("googlenet", 16, 64), ("vgg16", 16, 32), ("densenet201", 4, 32))
LEVELS = ("turbodl:streams=off", *strategies.get("turbodl").steps)
#: Levels whose measured step times differ by less than this have no order.
NEAR = 0.05


def in_order(rows: list[ValidationResult]) -> tuple[int, int]:
    """(right, scored): pairs of levels predicted in their measured order, and pairs whose measured times differ by more than NEAR."""
    right = scored = 0
    for a, b in combinations(rows, 2):
        if abs(a.measured_step_s / b.measured_step_s - 1) > NEAR:
            scored += 1
            right += (a.predicted_step_s < b.predicted_step_s) == (a.measured_step_s < b.measured_step_s)
    return right, scored


def main() -> None:
    """Print a row per level, and the figures of all models together."""
    errors, missed, right, scored = [], 0, 0, 0
    print_header()
    for model, batch, size in MODELS:
        if sys.argv[1:] and model not in sys.argv[1:]:
            continue
        validation = validated(model, batch, size, LEVELS, file=f"turbodl-{model}-b{batch}")
        for row in validation.ran:
            print_row(validation, row)
        rows = [row for row in validation.ran if row.strategy == "turbodl"]
        errors += [abs(row.scored_error) for row in rows]
        missed += sum(abs(row.scored_error) > max(0.15, 2 * validation.aa_spread) for row in rows)
        ordered = in_order(rows)
        right, scored = right + ordered[0], scored + ordered[1]
    print(f"median |error| {statistics.median(errors):.1%}, worst {max(errors):.1%}; above 15 % and the noise: {missed}")
    print(f"pairs of levels in the right order: {right} of {scored}")


if __name__ == "__main__":
    main()
