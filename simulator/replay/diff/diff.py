"""Why one run's step is longer than another's, in terms that add up to the difference.

The nodes of the two runs are paired, and runs between them are simulated: the first with the second's kernel times, with its launches, with
its synchronizations, and so on, in every combination. A term's share is the mean of its contribution over all orders of exchange. The error
of the simulations of the two runs themselves is the remainder.

Contributions to a term: kernels by name and phase, host time by call, or by what it precedes.

A term's durations go from those of the first run to those of the second in small steps, once with all other terms of the first run and once
with those of the second. A node contributes its change wherever it is on the critical path of the counted steps. Effects that two nodes
have only together, or together with other terms, belong to no node; they remain as the rest.

Fair shares of a difference (Shapley): what each term adds, as the mean over all orders in which the terms can be exchanged.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import factorial, fsum

from simulator.replay.diff.hybrid import Hybrid, either
from simulator.replay.diff.pairs import LEAST_SHARE, Pairing, pair
from simulator.replay.diff.run import Run
from traces import units
from traces.documents.replay_result import Contribution, Diff, DiffTerm, WhatCompared
from traces.errors import SchedcastError


def fair_shares(terms: Sequence[str], value: Callable[[frozenset[str]], float]) -> dict[str, float]:
    """Return the share of each term in `value` of all terms less `value` of none; the shares add up to it.

    `value` is called once for each of the 2^n sets of terms.

    A step lasts as long as its host or its kernels, whichever is longer. Both became shorter, and neither alone would have gained as much:

    >>> def step_s(shorter):
    ...     return max(3.0 if "host" in shorter else 5.0, 1.0 if "kernels" in shorter else 4.0)
    >>> fair_shares(["host", "kernels"], step_s)
    {'host': -1.5, 'kernels': -0.5}
    """
    values = {frozenset(some): value(frozenset(some)) for size in range(len(terms) + 1) for some in combinations(terms, size)}
    orders = factorial(len(terms))
    shares = {}
    for term in terms:
        gains = [
            factorial(len(some)) * factorial(len(terms) - len(some) - 1) * (values[some | {term}] - before)
            for some, before in values.items()
            if term not in some
        ]
        shares[term] = fsum(gains) / orders
    return shares


#: The points between the two runs at which the critical path is examined.
PLACES = (0.1, 0.3, 0.5, 0.7, 0.9)


def contributions(hybrid: Hybrid, term: str, terms: Sequence[str]) -> list[Contribution]:
    """Return what contributes to `term`. `terms`: all in which the runs differ."""
    members = [
        index for index, own in enumerate(hybrid.term) if own == term and _seconds(hybrid.in_a[index]) != _seconds(hybrid.in_b[index])
    ]
    gains: dict[str, float] = defaultdict(float)
    if not members:
        return []
    contexts = [(), [other for other in terms if other != term]]
    for context in contexts:
        seconds = hybrid.seconds(context)
        for place in PLACES:
            for index in members:
                before_s, after_s = _seconds(hybrid.in_a[index]), _seconds(hybrid.in_b[index])
                seconds[index] = before_s + place * (after_s - before_s)
            on_path = hybrid.on_path(context, seconds)
            for index in members:
                change_s = _seconds(hybrid.in_b[index]) - _seconds(hybrid.in_a[index])
                gains[_label(hybrid, index)] += change_s * on_path[index] / (len(PLACES) * len(contexts) * hybrid.counted)
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for index, own in enumerate(hybrid.term):
        if own == term and _label(hybrid, index) in gains:
            total = totals[_label(hybrid, index)]
            total[0] += _seconds(hybrid.in_a[index]) / hybrid.steps
            total[1] += _seconds(hybrid.in_b[index]) / hybrid.steps
    return [Contribution(label=label, seconds=gain, a_s=totals[label][0], b_s=totals[label][1]) for label, gain in gains.items()]


def _seconds(node) -> float:
    return 0.0 if node is None else node.seconds


def _label(hybrid: Hybrid, index: int) -> str:
    """The name of a node: in the first run, and by the second if another kernel took its place."""
    a, b = hybrid.in_a[index], hybrid.in_b[index]
    if a is None or b is None:
        return f"{either(a, b).label} (only in {'B' if a is None else 'A'})"
    return a.label if a.label == b.label or not a.on_device else f"{a.label} as {b.label}"


#: A term below this share of the step has no contributions of interest.
LEAST_TERM = 1e-4
#: Contributions of a term at most, and the share of the term that the smallest has at least.
MOST_CONTRIBUTIONS, LEAST_CONTRIBUTION = 8, 0.05
#: The remainder of two replays.
NOT_REPLAYED = "not explained by the replays"


def difference(a: Run, b: Run, compared: WhatCompared, remainder: str) -> Diff:
    """Explain `b.step_s` − `a.step_s`. `remainder`: the name of the simulations' error.

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
        notes=tuple(_notes(a, b, pairing)),
    )


def largest(rows: Iterable[Contribution], seconds: float, step_s: float) -> tuple[Contribution, ...]:
    """Return the largest contributions to a term of `seconds`, in a step of `step_s`; none if they do not matter."""
    if abs(seconds) < LEAST_TERM * step_s:
        return ()
    ranked = sorted(rows, key=lambda row: (-abs(row.seconds), row.label))[:MOST_CONTRIBUTIONS]
    return tuple(row for row in ranked if abs(row.seconds) >= LEAST_CONTRIBUTION * abs(seconds))


def _notes(a: Run, b: Run, pairing: Pairing) -> list[str]:
    notes = [f"{name}: {note}" for name, run in (("A", a), ("B", b)) for note in run.notes]
    for number, alike in ((pairing.by_op, "launched by the same op"), (pairing.by_class, "but of one kind, in their place")):
        if number:
            notes.append(f"{number} kernels of A were compared with kernels of another name, {alike} in B")
    return notes
