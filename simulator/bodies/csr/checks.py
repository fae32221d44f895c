"""What all rules ask of their geometry and of their tasks."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.bodies.csr.pattern import Pattern
    from simulator.bodies.csr.rules import Rule
    from simulator.plan.task import Task

#: Indices are int32.
MOST_ENTRIES = 2**31 - 1


def fits(rule: "Rule", task: "Task", *elements: int) -> None:
    """Raise ValueError unless the task reads operands of so many elements per sample and writes the rule's values.

    What is read comes first: a mask is drawn only for a weight of the right size.
    """
    (write,) = task.writes
    full = task.body.full or (rule.of == "linear" and rule.mask is None)
    samples = 1 if rule.shared else write.shape[0] if full and len(write.shape) == 3 else 1 if full else write.shape[-1]
    if len(task.reads) != len(elements) or any(o.elements != n * samples for o, n in zip(task.reads, elements, strict=True)):
        raise ValueError(f"{rule.key} reads {elements} elements per sample of {samples}, not {[o.shape for o in task.reads]}")
    matrix = (rule.rows, rule.cols)
    expected = (matrix if samples == 1 else (samples, *matrix)) if full else (rule.nnz, samples)
    if write.shape != expected:
        raise ValueError(f"the values of {rule.key} are {expected}, but {write.value} is {write.shape}")


def check(rule: str, positive: tuple[int, ...], entries: tuple[int, ...]) -> None:
    """Raise ValueError where an extent of `positive` is none, or where int32 cannot number as many as one of `entries`."""
    if min(positive) < 1:
        raise ValueError(f"a {rule} has an extent of {min(positive)}; expected at least 1")
    if max(entries) > MOST_ENTRIES:
        raise ValueError(f"the transposed Jacobian of a {rule} has up to {max(entries)} entries; expected at most {MOST_ENTRIES}")


def axes(rule: "Rule") -> tuple["Pattern", "Pattern"]:
    """The patterns of the vertical and of the horizontal axis."""
    from simulator.bodies.csr import windows

    extents = zip((rule.height, rule.width), rule.out, strict=True)
    if rule.of == "adaptive-average-pool":
        return tuple(windows.adaptive_axis(extent, out) for extent, out in extents)
    dilation = getattr(rule, "dilation", (1, 1))
    rest = zip(rule.kernel, rule.stride, rule.padding, dilation, strict=True)
    return tuple(windows.axis(extent, out, *each) for (extent, out), each in zip(extents, rest, strict=True))
