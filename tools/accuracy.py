"""Predicted against measured on this machine: five models, each in a separate process, under all strategies but BPPSA.

Targets: median |error| at most 6 %, worst at most 15 %, where a target is met at max(target, 2 x A/A spread); and the right
sign of every speed-up that differs from 1 by more than the A/A spread + 3 %. Every run is printed.

With SCHEDCAST_SAVE=FOLDER the documents are saved there, one per model. Those in `traces/data/MACHINE/validations` determine the width of
prediction intervals. The benchmark also counts how many measured steps lie in intervals derived from the other models' errors.
"""

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

from scipy.special import ndtri

from simulator.predict.discrepancy import discrepancy
from simulator.strategies import registry as strategies
from traces.documents.comparison import Validation, ValidationResult
from ui.present.labels import row_labels

MODELS = (
    ("lenet5", 256, None), ("resnet18", 16, 64), ("mobilenet_v2", 16, 64), ("vgg16", 16, 32), ("transformer_base", 4, 16),
)  # fmt: skip

#: BPPSA has a separate benchmark.
STRATEGIES = tuple(name for name in strategies.names(1) if name != "bppsa")


def validated(
    model: str, batch: int, size: int | None, chosen: tuple[str, ...] = (), more: tuple[str, ...] = (), file: str = ""
) -> Validation:
    """Run `schedcast validate --json` for the `chosen` strategies, or for all. `more`: further arguments.

    `file`: the document's name in the folder of SCHEDCAST_SAVE, if that is set.
    """
    arguments = ["validate", "--model", model, "--batch", str(batch), "--json", *(["--image-size", str(size)] if size else [])]
    arguments += [*more, *(word for strategy in chosen for word in ("--strategy", strategy))]
    command = [sys.executable, "-c", "from ui.cli import main; main()", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    document = json.loads(done.stdout)
    document.pop("schema")
    validation = Validation.model_validate(document)
    if file and "SCHEDCAST_SAVE" in os.environ:
        validation.save(Path(os.environ["SCHEDCAST_SAVE"]) / f"{file}.json")
    return validation


def print_header() -> None:
    """Print the names of the columns of `print_row`."""
    names = ("model", "strategy", "predicted", "measured", "error", "speed-ups", "A/A")
    print("{:18}{:34}{:>11}{:>11}{:>8}{:>21}{:>7}".format(*names), flush=True)


def print_row(validation: Validation, row: ValidationResult) -> None:
    """Print the figures of one strategy."""
    label = row_labels(list(validation.ran))[list(validation.ran).index(row)]
    print(
        f"{validation.model:18}{label:34}{1e3 * row.predicted_step_s:8.1f} ms{1e3 * row.measured_step_s:8.1f} ms{row.scored_error:+8.1%}"
        f"{row.predicted_speedup:15.3f} /{row.measured_speedup:.3f}{validation.aa_spread:7.1%}",
        flush=True,
    )


def main() -> None:
    """Print a row per strategy, and the figures of all models together."""
    errors, right, scored, documents = [], 0, 0, []
    print_header()
    for model, batch, size in MODELS:
        validation = validated(model, batch, size, STRATEGIES, file=f"{model}-b{batch}")
        documents.append(validation)
        for row in validation.ran:
            errors.append(abs(row.scored_error))
            print_row(validation, row)
        right, scored = right + validation.signs[0], scored + validation.signs[1]
    print(f"median |error| {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    print(f"signs of speed-ups right: {right} of {scored}")
    inside = [in_interval(row, validation, documents) for validation in documents for row in validation.ran]
    print(f"measured steps inside the 90 % intervals from the other models' errors: {sum(inside)} of {len(inside)}")


def in_interval(row: ValidationResult, validation: Validation, documents: list[Validation]) -> bool:
    """Whether the measured step lies in the 90 % interval that follows from the other models' discrepancy."""
    reach = float(ndtri(0.95)) * discrepancy(documents, row.strategy, "cpu", "eager", but=validation.model)
    return abs(math.log1p(row.scored_error)) <= reach


if __name__ == "__main__":
    main()
