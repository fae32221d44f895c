"""How many measured steps of the committed validations lie in the 90 % intervals that were predicted for them.

    python -m tests.benchmarks coverage

Target: 80 to 97 % over all validations on CPUs.
"""

from simulator.predict.coverage import Judged, by_group, by_strategy, coverage, covered_by_others, judged, worst
from traces.documents.shipped import shipped_validations


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
