"""Predicted against measured on this machine: five models, each in a process of its own, under every strategy that needs no chain.

Stated: median |error| at most 6 %, worst 15 %, where |error| counts as met at max(stated, 2 x A/A spread); the sign of a
speed-up right wherever it differs from 1 by more than the A/A spread + 3 %. Every run made is printed.

With STEPCAST_SAVE=FOLDER the documents are kept there, one per model: those in `traces/data/MACHINE/validations` say how wide the intervals
of predictions have to be. How many intervals hold is scored for each model with what the others say.
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
from traces.comparison import Validation, ValidationResult
from ui.text.labels import row_labels

MODELS = (
    ("lenet5", 256, None),
    ("resnet18", 16, 64),
    ("mobilenet_v2", 16, 64),
    ("vgg16", 16, 32),
    ("transformer_base", 4, 16),
)

#: BPPSA has a benchmark of its own.
STRATEGIES = tuple(name for name in strategies.names(1) if name != "bppsa")


def validated(model: str, batch: int, size: int | None, chosen: tuple[str, ...] = (), more: tuple[str, ...] = ()) -> Validation:
    """One `stepcast validate --json`; without `chosen` of all. `more`: further arguments."""
    arguments = ["validate", "--model", model, "--batch", str(batch), "--json", *(["--image-size", str(size)] if size else [])]
    arguments += [*more, *(word for strategy in chosen for word in ("--strategy", strategy))]
    command = [sys.executable, "-c", "from ui.cli import main; main()", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    document = json.loads(done.stdout)
    document.pop("schema")
    return Validation.model_validate(document)


def print_header() -> None:
    """The names of `print_row`'s columns."""
    names = ("model", "strategy", "predicted", "measured", "error", "speed-ups", "A/A")
    print("{:18}{:34}{:>11}{:>11}{:>8}{:>21}{:>7}".format(*names), flush=True)


def print_row(found: Validation, row: ValidationResult) -> None:
    """One strategy's figures."""
    label = row_labels(list(found.ran))[list(found.ran).index(row)]
    print(
        f"{found.model:18}{label:34}{1e3 * row.predicted_step_s:8.1f} ms{1e3 * row.measured_step_s:8.1f} ms{row.scored_error:+8.1%}"
        f"{row.predicted_speedup:15.3f} /{row.measured_speedup:.3f}{found.aa_spread:7.1%}",
        flush=True,
    )


def main() -> None:
    """Print a row per strategy and the pooled figures."""
    errors, right, asked, documents = [], 0, 0, []
    folder = os.environ.get("STEPCAST_SAVE")
    print_header()
    for model, batch, size in MODELS:
        found = validated(model, batch, size, STRATEGIES)
        documents.append(found)
        if folder:
            found.save(Path(folder) / f"{model}-b{batch}.json")
        for row in found.ran:
            errors.append(abs(row.scored_error))
            print_row(found, row)
        right, asked = right + found.signs[0], asked + found.signs[1]
    print(f"median |error| {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    print(f"signs of speed-ups right: {right} of {asked}")
    held = [holds(row, found, documents) for found in documents for row in found.ran]
    print(f"90 % intervals, as wide as the other models' errors ask for, that hold: {sum(held)} of {len(held)}")


def holds(row: ValidationResult, found: Validation, documents: list[Validation]) -> bool:
    """Whether the measured step lies in an interval of the other models' discrepancy."""
    reach = float(ndtri(0.95)) * discrepancy(documents, "cpu", "eager", but=found.model)
    return abs(math.log1p(row.scored_error)) <= reach


if __name__ == "__main__":
    main()
