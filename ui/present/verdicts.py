"""The verdict of a validation: which schedule is fastest, whether it beats plain PyTorch, whether the machine was busy, and the errors of
single tasks, phases, layers and ops.
"""

from collections.abc import Sequence
from types import MappingProxyType

from simulator.replay.diff.task_errors import Cause, GroupError, TaskError
from traces import units
from traces.documents.comparison import BASELINE, Validation
from traces.documents.verdict import BUSY, is_busy
from ui.present.labels import differing, labelled_rows, model_name, plain_threads, row_labels
from ui.present.tables import numbers_cell

#: Rows of a table at most.
SHOWN = 12
#: Where errors of a cause are, in words.
_WHERE = MappingProxyType({
    Cause.DISTURBED: "in executions that were disturbed",
    Cause.BESIDE_MORE: "in tasks that ran beside others for longer than predicted",
    Cause.BESIDE_LESS: "in tasks that ran beside others for less time than predicted",
    Cause.SHORT: "in tasks too short to predict",
    Cause.COST: "in the costs of tasks",
})  # fmt: skip


def group_cells(groups: Sequence[GroupError], by: str) -> list[dict[str, str]]:
    """One row per group, the largest error first."""
    return [
        {
            by: group.name,
            "tasks": str(group.tasks),
            "predicted ms": units.ms(group.predicted_s),
            "measured ms": units.ms(group.measured_s),
            "error": units.error(group.predicted_s, group.measured_s),
            "longer by ms": signed_ms(group.difference_s),
        }
        for group in groups[:SHOWN]
    ]


def offender_cells(errors: Sequence[TaskError]) -> list[dict[str, str]]:
    """One row for each of the tasks with the largest errors, with its likely cause."""
    return [
        {
            "task": error.task,
            "phase": error.phase,
            "predicted ms": units.ms(error.predicted_s),
            "measured ms": units.ms(error.measured_s),
            "longer by ms": signed_ms(error.difference_s),
            "likely cause": str(error.cause),
        }
        for error in errors[:SHOWN]
    ]


def cause_words(errors: Sequence[TaskError]) -> str:
    """How much of the tasks' error each cause has, in one sentence; empty without errors."""
    seconds = {cause: sum(abs(e.difference_s) for e in errors if e.cause is cause) for cause in Cause if cause is not Cause.PREDICTED}
    total_s = sum(seconds.values())
    if not total_s:
        return ""
    ranked = sorted(((share_s / total_s, cause) for cause, share_s in seconds.items() if share_s), key=lambda item: -item[0])
    parts = ", ".join(f"{units.percent(share, signed=False)} {_WHERE[cause]}" for share, cause in ranked)
    return f"Of the tasks' errors, added up without their signs: {parts}."


def signed_ms(seconds: float) -> str:
    """A difference of times, in ms without the unit: +1.2."""
    return f"{seconds * 1e3:+.3g}" if seconds else "0"


def numerics_cells(validation: Validation) -> list[dict[str, str]]:
    """One row per strategy that ran: how far its results are from plain PyTorch's, and PyTorch's from its own, run twice."""
    return [
        {
            "strategy": label,
            "gradients differ by": units.difference(result.max_grad_error),
            "parameters differ by": units.difference(result.max_param_error),
            "PyTorch run twice: gradients": units.difference(result.reference_grad_error),
            "parameters": units.difference(result.reference_param_error),
            "numbers": numbers_cell(result),
            "trains differently": differing(result.semantics) or "no",
        }
        for label, result in labelled_rows(validation)
        if result.ok and result.strategy != "pytorch"
    ]


def busy_line(share: float | None, kind: str = "cpu") -> str:
    """That what was measured beside other processes is no measurement; an empty string if they took little, or nobody knows.

    `share`: what they took of the cores, or of the GPU (`kind` "gpu"), from 0 to 1.
    """
    if not is_busy(share):
        return ""
    what = "GPU" if kind == "gpu" else "cores"
    return (
        f"busy machine: not a measurement. Other processes took {100 * share:.0f} % of the {what}; above {100 * BUSY:.0f} % no time is"
        " reliable. Measure again when they have ended; --wait SECONDS waits for that."
    )


def busy_note(share: float) -> str:
    """What a profile that was measured beside other processes says of its costs."""
    return f"some costs are no measurement: other processes took {100 * share:.0f} % of the machine meanwhile"


def headline(validation: Validation) -> str:
    """The result in one sentence, with the step times behind it. An empty string if there is nothing to compare."""
    if validation.busy:
        return busy_line(validation.busy_share, str(validation.device.get("kind")))
    if validation.headline_gain is None:
        return ""
    rival_s = _rival_s(validation)
    times = f"{units.duration(validation.fastest.measured_step_s)} per step, {units.duration(rival_s)} with {_rival(validation)}"
    return f"{short_headline(validation)}: {times}.{f' {unsteady_line(validation.swing)}' if validation.unsteady else ''}"


def unsteady_line(swing: float) -> str:
    """That the machine changed its speed during a measurement: `swing` is by what factor the quartiles of a schedule's steps lie apart."""
    return (
        f"The machine changed its speed meanwhile: a quarter of a schedule's steps took at least {swing:.1f} times as long as another"
        " quarter, so errors say little. Validate again at a quieter time."
    )


def headlines(validations: Sequence[Validation]) -> list[str]:
    """The headlines of several validations; each begins with the model if there is more than one. That the machine was busy comes first."""
    busiest = max((each for each in validations if each.busy), key=lambda each: each.busy_share, default=None)
    lines = [(model_name(validation.model), headline(validation)) for validation in validations if not validation.busy]
    named = [f"{model}: {line}" if len(validations) > 1 else line for model, line in lines if line]
    return [*([headline(busiest)] if busiest is not None else []), *named]


def short_headline(validation: Validation) -> str:
    """The result in a few words, for titles. An empty string if there is nothing to compare."""
    gain = validation.headline_gain
    if gain is None:
        return ""
    label = row_labels(validation.results)[validation.results.index(validation.fastest)]
    rival = _rival(validation)
    return {
        "faster": f"{label} is {gain.text} as fast as {rival}",
        "same": f"No schedule is faster than {rival}: {label} is the same, {gain.text}",
        "slower": f"No schedule is faster than {rival}: the fastest, {label}, reaches {gain.text}",
        "cannot tell": f"Too noisy to tell whether {label} is faster than {rival}, at {gain.text}",
        "no verdict": "Busy machine: not a measurement",
    }[gain.verdict]


def _rival(validation: Validation) -> str:
    """What the fastest strategy is compared with."""
    if validation.reference_step_s is None:
        return "the baseline"
    threads = plain_threads(validation)
    return f"plain PyTorch on {threads}" if threads else "plain PyTorch"


def _rival_s(validation: Validation) -> float | None:
    if validation.reference_step_s is not None:
        return validation.reference_step_s
    return next((result.measured_step_s for result in validation.ran if result.strategy == BASELINE), None)
