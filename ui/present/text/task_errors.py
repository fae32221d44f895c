"""The errors of single tasks, and of their phases, layers and ops, as table cells and sentences; and how results compare with PyTorch's."""

from collections.abc import Sequence
from types import MappingProxyType

from simulator.replay.diff.task_errors import Cause, GroupError, TaskError
from traces import units
from traces.documents.comparison import Validation
from ui.present.text.labels import differing, labelled_rows
from ui.present.text.tables import numbers_cell

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
