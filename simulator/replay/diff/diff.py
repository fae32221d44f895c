"""Why one run's step is longer than another's, in terms that add up to the difference.

The nodes of the two runs are paired, and runs between them are simulated: the first with the second's kernel times, with its launches, with
its synchronizations, and so on, in every combination. A term's share is the mean of what it adds over all orders of exchange. What the
simulations of the two runs themselves are off by is the remainder.
"""

from collections.abc import Iterable
from math import fsum

from simulator.replay.diff.contributions import contributions
from simulator.replay.diff.hybrid import Hybrid
from simulator.replay.diff.pairs import pair
from simulator.replay.diff.run import Run
from simulator.replay.diff.shares import fair_shares
from traces import units
from traces.documents.diff_result import Contribution, Diff, DiffTerm
from traces.errors import SchedcastError

#: Runs whose aligned share is below this are of different models.
LEAST_SHARE = 0.5
#: A term below this share of the step has no contributions of interest.
LEAST_TERM = 1e-4
#: Contributions of a term at most, and the share of the term that the smallest has at least.
MOST_CONTRIBUTIONS, LEAST_CONTRIBUTION = 8, 0.05
#: The remainder of two replays.
NOT_REPLAYED = "not explained by the replays"


def difference(a: Run, b: Run, compared: str, remainder: str) -> Diff:
    """Explain `b.step_s` − `a.step_s`. `remainder`: the name of what the simulations are off by.

    Raises SchedcastError if the two have too little in common, or if a step takes no time.
    """
    for run in (a, b):
        if run.step_s <= 0:
            raise SchedcastError(f"the step of {run.name} takes no time; expected recorded work in every step; record it again")
    pairing = pair(a, b)
    share = units.percent(pairing.share, signed=False)
    if pairing.share < LEAST_SHARE:
        raise SchedcastError(
            f"{a.name} and {b.name} have only {share} of their device time in common; expected two runs of one model, with at least"
            f" {units.percent(LEAST_SHARE, signed=False)}"
        )
    hybrid = Hybrid(a, b, pairing.of_b)
    differing = hybrid.differing()
    shares = fair_shares(differing, hybrid.step_s)
    difference_s = b.step_s - a.step_s
    remainder_s = difference_s - fsum(shares.values())
    longest_s = max(a.step_s, b.step_s)
    terms = [
        DiffTerm(part=part, seconds=seconds, contributions=largest(contributions(hybrid, part, differing), seconds, longest_s))
        for part, seconds in sorted(shares.items(), key=lambda item: -abs(item[1]))
    ]
    if remainder_s:
        terms.append(DiffTerm(part=remainder, seconds=remainder_s))
    return Diff(
        compared=compared,
        a=a.name,
        b=b.name,
        a_step_s=a.step_s,
        b_step_s=b.step_s,
        difference_s=difference_s,
        terms=tuple(terms),
        remainder_s=remainder_s,
        steps=a.steps,
        aligned_share=pairing.share,
        notes=tuple(_notes(a, b, pairing.by_class)),
    )


def largest(rows: Iterable[Contribution], seconds: float, step_s: float) -> tuple[Contribution, ...]:
    """Return the largest contributions to a term of `seconds`, in a step of `step_s`; none if they do not matter."""
    if abs(seconds) < LEAST_TERM * step_s:
        return ()
    ranked = sorted(rows, key=lambda row: (-abs(row.seconds), row.label))[:MOST_CONTRIBUTIONS]
    return tuple(row for row in ranked if abs(row.seconds) >= LEAST_CONTRIBUTION * abs(seconds))


def _notes(a: Run, b: Run, by_class: int) -> list[str]:
    notes = [f"{name}: {note}" for name, run in (("A", a), ("B", b)) for note in run.notes]
    if by_class:
        notes.append(f"{by_class} kernels of A were compared with kernels of another name, but of one kind, in their place in B")
    return notes
