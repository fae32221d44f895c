"""How many measured steps of the committed validations lie in the 90 % intervals that were predicted for them.

    python -m tools coverage

Target: 80 to 97 % over all validations on CPUs.
"""

from collections.abc import Sequence
from math import log1p

from simulator.engine.costs.cost import Z_90
from simulator.predict.coverage import Judged, by_group, by_strategy, coverage, judged, worst
from simulator.predict.discrepancy import discrepancy, group_of
from traces.documents.comparison import Validation
from traces.documents.shipped import shipped_validations


def covered_by_others(validations: Sequence[Validation], kind: str) -> dict[str, list[bool]]:
    """By group, whether each step is as far from its prediction as the errors of other models say, 9 times in 10.

    For each step the discrepancy is estimated without the validations of its model. So no step judges itself, and the width that other
    errors give an interval is excluded.
    """
    reached: dict[str, list[bool]] = {}
    for validation in validations:
        processes = bool(validation.device.get("processes"))
        for row in validation.rows if validation.device.get("kind") == kind else ():
            if row.scored_error is not None:
                error = discrepancy(validations, row.strategy, kind, validation.mode, validation.model, processes)
                reached.setdefault(group_of(row.strategy, processes), []).append(abs(log1p(row.scored_error)) <= Z_90 * error)
    return reached


def line(name: str, steps: list[Judged]) -> str:
    """A row of the table."""
    return f"| {name} | {sum(step.inside for step in steps)} of {len(steps)} | {coverage(steps):.0%} | {worst(steps).ratio - 1:+.0%} |"


def main() -> None:
    """Print the coverage by strategy, by the groups that share a discrepancy, and over all."""
    steps = judged(shipped_validations(), "cpu")
    print("| strategy | inside | coverage | worst, measured over predicted |\n|---|---|---|---|")
    for name, own in [*by_strategy(steps).items(), *((name.capitalize(), own) for name, own in by_group(steps).items())]:
        print(line(name, own))
    print(line("All", steps))
    print("\n| group | within the discrepancy that other models give | share |\n|---|---|---|")
    for name, inside in covered_by_others(shipped_validations(), "cpu").items():
        print(f"| {name} | {sum(inside)} of {len(inside)} | {sum(inside) / len(inside):.0%} |")


if __name__ == "__main__":
    main()
