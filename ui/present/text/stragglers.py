"""What each rank of a job costs it, in a sentence and a table, the same for the terminal and the app."""

from collections.abc import Sequence

from traces import units
from traces.documents.replay_result import StragglerCost

#: The head of the table's first column, and its title.
RANK, TITLE = "rank", "Stragglers: ms that a step would be shorter with the median rank's times"
#: A rank or a kind that costs less than this share of the step is not named.
NAMED_SHARE = 0.005


def words(costs: Sequence[StragglerCost], step_s: float) -> list[str]:
    """Which rank costs the others most, and which kind of work, one sentence per item; none for a single rank."""
    if not costs:
        return []
    ranks = [cost for cost in costs if cost.rank is not None and cost.kind is None]
    worst = max(ranks, key=lambda cost: cost.seconds)
    together = next(cost.seconds for cost in costs if cost.rank is None and cost.kind is None)
    if worst.seconds >= NAMED_SHARE * step_s:
        kinds = [cost for cost in costs if cost.rank == worst.rank and cost.kind is not None and cost.seconds >= NAMED_SHARE * step_s]
        why = ", ".join(f"{cost.kind} {units.ms(cost.seconds)}" for cost in sorted(kinds, key=lambda cost: -cost.seconds))
        share = units.percent(worst.seconds / step_s, signed=False)
        sentences = [f"Rank {worst.rank} costs the others {units.duration(worst.seconds)} of a step ({share}){f': {why}' if why else ''}."]
    else:
        sentences = [f"No rank alone costs the others more than {units.duration(NAMED_SHARE * step_s)} of a step."]
    if together >= NAMED_SHARE * step_s and together > 1.05 * worst.seconds:
        sentences.append(f"With the median rank's times on every rank, a step would be {units.duration(together)} shorter.")
    return sentences


def cells(costs: Sequence[StragglerCost]) -> list[dict[str, str]]:
    """One row per rank, and one for all together; one column per kind of work, and one for all."""
    rows: dict[int | None, dict[str, str]] = {}
    for cost in costs:
        row = rows.setdefault(cost.rank, {RANK: "all ranks" if cost.rank is None else str(cost.rank)})
        row[cost.kind or "in all"] = units.ms(cost.seconds)
    return list(rows.values())
