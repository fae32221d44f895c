"""The predicted and the measured step of a validation: the parts that it reports, and what contributes to them."""

from collections import defaultdict

from simulator.predict.parts import part_of
from simulator.predict.waterfall import UNEXPLAINED, mean_durations
from simulator.replay.diff.diff import difference, largest
from simulator.replay.diff.of_timeline import run_of_timeline
from traces.documents.comparison import Comparison, ValidationResult
from traces.documents.diff_result import Contribution, Diff, DiffTerm
from traces.errors import SchedcastError


def compare_validated(result: ValidationResult, label: str, timelines: Comparison | None) -> Diff:
    """Explain why a strategy's measured step is not as long as predicted. `timelines`: None if the report has none.

    Raises SchedcastError for a strategy that did not run, or if the document says nothing about it.
    """
    if not result.ok:
        raise SchedcastError(f"{label} did not run ({result.status}); choose a strategy that did")
    names = f"{label} predicted", f"{label} measured"
    if not result.waterfall:
        if timelines is None:
            raise SchedcastError(
                f"the validation does not say where {label}'s time goes; validate again with --out DIR, and name that folder"
            )
        runs = (run_of_timeline(timeline, name) for timeline, name in zip((timelines.predicted, timelines.measured), names, strict=True))
        return difference(*runs, "validation", UNEXPLAINED)
    by_part = _by_part(timelines) if timelines is not None else {}
    longest_s = max(result.predicted_step_s, result.measured_step_s)
    terms = tuple(
        DiffTerm(part=change.part, seconds=change.seconds, contributions=largest(by_part.get(change.part, ()), change.seconds, longest_s))
        for change in sorted(result.waterfall, key=lambda change: (change.part == UNEXPLAINED, -abs(change.seconds)))
    )
    return Diff(
        compared="validation",
        a=names[0],
        b=names[1],
        a_step_s=result.predicted_step_s,
        b_step_s=result.measured_step_s,
        difference_s=result.measured_step_s - result.predicted_step_s,
        terms=terms,
        remainder_s=sum(term.seconds for term in terms if term.part == UNEXPLAINED),
        steps=1,
        aligned_share=None,
    )


def _by_part(timelines: Comparison) -> dict[str, list[Contribution]]:
    """Return by part what the layers on the predicted critical path contribute: the mean time of their tasks, measured less predicted."""
    predicted, measured = (mean_durations(timeline) for timeline in (timelines.predicted, timelines.measured))
    begin_s, end_s = timelines.predicted.window_s
    spans = {span.task: span for span in timelines.predicted.spans}
    on_path = {link.task for link in timelines.predicted.critical_path if begin_s < link.end_s and link.start_s < end_s}
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for task in on_path & predicted.keys() & measured.keys():
        span = spans[task]
        total = totals[part_of(span.phase), f"{span.layer}, {span.phase}" if span.layer else task]
        total[0] += predicted[task]
        total[1] += measured[task]
    parts: dict[str, list[Contribution]] = defaultdict(list)
    for (part, label), (a_s, b_s) in totals.items():
        parts[part].append(Contribution(label=label, seconds=b_s - a_s, a_s=a_s, b_s=b_s))
    return parts
