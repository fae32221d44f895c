"""What became of a trace, in sentences."""

from typing import TYPE_CHECKING

from traces.units import duration, error, percent

if TYPE_CHECKING:
    from calibrate.traced.from_trace import Traced

#: Names that are listed.
_MOST = 5


def summary(traced: "Traced") -> list[str]:
    """How much of the trace belongs to the job, how long its steps take, and what was left out on either side."""
    steps = f"{traced.steps} step{'s' * (traced.steps != 1)}"
    lines = [f"{percent(traced.share, signed=False)} of the recorded kernel time belongs to the job ({steps})."]
    step = f"A step takes the GPU {duration(traced.step_s)} from its first kernel to its last"
    if traced.period_s is not None:
        step += f", and the next begins {duration(traced.period_s)} after it"
    lines.append(f"{step}.")
    check = traced.check
    alone = f"{duration(check.step_s)} ({error(check.step_s, traced.step_s)})"
    kernels = f"these layers' kernels {percent(check.held_out_kernels)}"
    held_out = f"{duration(check.held_out_s)} ({error(check.held_out_s, traced.step_s)}; {kernels})"
    lines.append(
        f"Predicted from these costs, one step alone takes {alone}. Without the costs of every second layer, which the fits then supply, it"
        f" takes {held_out}."
    )
    if traced.outside_s:
        lines.append(f"Between steps the host spends {duration(traced.outside_s)}, as for loading data, which no forecast contains.")
    others = ", ".join(f"{count} {name}, {duration(seconds)}" for name, count, seconds in traced.others[:_MOST])
    if others:
        lines.append(f"Recorded each step, but no part of the job: {others}.")
    if traced.missing:
        names = ", ".join(list(traced.missing.values())[:_MOST])
        more = f" and {len(traced.missing) - _MOST} more" if len(traced.missing) > _MOST else ""
        lines.append(f"Not recorded, priced by the model fitted on the recorded costs: {names}{more}.")
    return [*lines, *(f"{note[:1].upper()}{note[1:]}." for note in traced.profile.notes[1:])]
