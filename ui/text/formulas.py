"""How each quantity that the app and the reports show is computed: the formula, and what stands in it."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

FORMULAS: Mapping[str, str] = MappingProxyType({
    "Step time": (
        "Seconds per batch in the steady state: iterations of the plan follow one another until two successive lengths agree"
        " within 0.1 %. An event simulation gives every task its cost when alone, and shares SMs or cores, memory bandwidth,"
        " links and the host's time."
    ),
    "90 % interval": (
        "The 5 % and 95 % quantiles of 1,000 draws. A draw multiplies the seconds of every source of error (a kernel's cost, a"
        " class of ops, a bandwidth, a launch time) by exp(r * e) with a normal e; the step is the longest chain of work. Known"
        " errors of such predictions widen it: no interval is narrower than they are."
    ),
    "Against PyTorch": (
        "Step time of plain PyTorch, the user's own loop as autograd issues it, over this step time. Both use the same draws,"
        " so that errors of what they share cancel in the interval."
    ),
    "Over the baseline": (
        "Step time of the baseline, the same step as a plan on one stream, over this step time, by the same draws."
    ),
    "Probability": (
        "The share of the draws in which this step is shorter than the other, or the probability by the known accuracy of such"
        " speed-ups, whichever is less sure. Faster or slower: at least 95 %. Likely: at least 75 %."
    ),
    "Busy": (
        "Seconds in which a device computes, over the step time; transfers do not count. The highest of all devices."
    ),
    "Peak memory": (
        "The most bytes that live at one moment: every value from its first write to its last reader, parameters and optimizer"
        " state always. The capacity is the memory's size or the limit that was given."
    ),
    "Exposed transfer": (
        "Seconds of the step in which a device waits for transfers or collectives and computes nothing. Hidden ones count 0."
    ),
    "Idle": (
        "1 - (busy seconds of all devices) / (devices * step time): the bubble of a pipeline, and waiting for the host."
    ),
    "Why": (
        "Every instant of the critical path belongs to one part: the work of a phase, launches, contention, or waiting. The"
        " difference of two strategies' parts adds up to the difference of their step times."
    ),
    "Costs": (
        "Measured: the profile has this very kernel. Fitted: scaled from kernels that were measured. From specifications: a"
        " roofline with the committed efficiency of its class of ops. Shares are of the predicted task seconds."
    ),
})  # fmt: skip


def formulas_markdown(names: Iterable[str] = FORMULAS) -> str:
    """The formulas of some quantities as Markdown."""
    return "\n\n".join(f"**{name}.** {FORMULAS[name]}" for name in names)
