"""How each quantity that the app and the reports show is computed: the formula with its units, and what stands in it."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from simulator.engine.steady import CLOSE
from simulator.predict.intervals import DRAWS
from simulator.replay.diff.task_errors import BESIDE, DISTURBED, SMALL_ERROR
from traces.documents.comparison import SIGN_MARGIN
from traces.documents.training import LAST, PARTS
from traces.documents.verdict import BUSY, LEAST_MEASURED, SAME
from ui.present.labels import PEAK

FORMULAS: Mapping[str, str] = MappingProxyType({
    "Step time": (
        "Seconds per batch in the steady state, shown in ms: iterations of the plan follow one another until the schedule repeats itself"
        f" exactly. If it never does, it is the mean of a long run that one of twice its length confirms to {CLOSE:.0%}, or else is marked"
        " as not settled. An event simulation gives every task its cost when alone, and shares SMs or cores, memory bandwidth, links and"
        " the host's time. Where lanes wait for each other and a validation sampled the costs, it is the mean over simulations with the"
        " costs of one sampling each."
    ),
    "90 % interval": (
        f"The 5 % and 95 % quantiles of {DRAWS:,} draws, in ms. A draw multiplies the seconds of every source of error (a kernel's cost, a"
        " class of ops, a bandwidth, a launch time) by exp(r · e), with a normal e and the standard deviation r of that source; the step"
        " is the longest chain of work. Known errors of such predictions widen it: no interval is narrower than they are."
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
        " speed-ups, whichever is less sure. The verdict is the interval's."
    ),
    "Verdict": (
        f"What the 90 % interval of the speed-up says: same if all of it is within {SAME:.0%} of 1, else faster or slower if all of it lies"
        f" on one side of 1, else cannot tell. No verdict: other processes took more than {BUSY:.0%} of the cores, or less than"
        f" {LEAST_MEASURED:.0%} of the predicted time rests on measured costs. Of the fastest of k predicted rows: both logarithmic"
        " distances of the interval from the speed-up grow by z(1 - 5 % / k) / z(95 %), since it was chosen (Bonferroni)."
    ),
    "Busy": (
        "Seconds in which a device computes, over the step time; transfers do not count. The highest of all devices."
    ),
    PEAK.capitalize(): (
        "The most bytes that are allocated at one moment on the device that holds most: every value from its first write to its last"
        " reader (on several streams of a GPU, until the one that allocated it comes after that), parameters and optimizer state always,"
        " and on a GPU what an optimizer makes for itself. A job fits a GPU if what PyTorch's allocator reserves for that, the driver and"
        " the CUDA context fit the memory, or the limit that was given."
    ),
    "Exposed transfer": (
        "Seconds of the step in which a device waits for transfers or collectives and computes nothing, on the device with the most of"
        " them. Hidden ones count 0."
    ),
    "Idle": (
        "1 - (busy seconds of all devices) / (devices · step time): the bubble of a pipeline, and waiting for the host."
    ),
    "Why": (
        "Every instant of the critical path belongs to one part: the work of a phase, launches, contention, or waiting. The"
        " difference of two strategies' parts adds up to the difference of their step times."
    ),
    "Costs": (
        "Measured: the profile has this very kernel. Fitted: scaled from kernels that were measured. From specifications: a"
        " roofline with the committed efficiency of its class of ops. Shares are of the predicted task seconds."
    ),
    "Staleness": (
        "The number of updates that plain training would have made before the mini-batch and that a stage's weights lack, in its forward."
        " It is read off the plan's order. Weights are stale if it is not 0 in every stage."
    ),
    "Measured step": (
        "The median of the steps of all rounds that count, in ms. In every round all strategies and plain PyTorch run in turn, step after"
        " step without waiting in between. The first step of a turn does not count."
    ),
    "Error": "predicted / measured - 1 of the times next to it. Negative: it took longer than predicted.",
    "Against PyTorch, measured": (
        "Median step time of plain PyTorch over that of the strategy. The interval is that of Wilcoxon's signed ranks (Student's with few"
        " rounds) on the ratios of the two medians in each round; it reaches at least as far as the A/A spread. With k strategies each"
        " interval leaves out 10 % / k, so that all of them hold with 90 % and the fastest may be picked (Bonferroni)."
    ),
    "Over the baseline, measured": (
        "Median step time of the baseline over that of the strategy, with the interval of such ratios by round. The baseline is the same"
        " step as a plan on one lane; on a CPU a lane uses one core."
    ),
    "A/A spread": (
        "|a / b - 1| of the median step times of the baseline and of a second baseline, measured in the same rounds: what the same program"
        f" differs from itself. A speed-up within the spread plus {SIGN_MARGIN:.0%} of 1 has no sign to predict."
    ),
    "Drift": (
        "Time of a fixed operation during the steps over its time at calibration. Costs from another time are corrected for it:"
        " predicted · drift / measured - 1."
    ),
    "Memory, predicted / measured": (
        "Predicted: the most bytes that live at one moment. Measured: the allocator's peak. Both for the device with the most."
    ),
    "Numbers": (
        "max |a - b| / max |b| over all gradients, and the same over all parameters after some steps, against plain PyTorch's b with the"
        " same masks of dropout; the larger of the two. Identical: 0, bit for bit. With stale weights b comes from a trainer with weights"
        " as old as the plan's."
    ),
    "Task time": "Mean seconds of the task's executions in the steady period, in ms; of a phase, layer or op, the sum of its tasks.",
    "Longer by": "Executions in the steady period · (measured - predicted), in ms.",
    "Likely cause": (
        f"As predicted: off by at most {SMALL_ERROR:.0%}. Disturbed: the mean is more than {DISTURBED:g} times the median execution."
        f" Beside others: for {BESIDE:.0%} more or less of its time than predicted. Else too short to predict, or its cost."
    ),
    "Step over the best": "Step time of the plan over that of the best one, with the 5 % and 95 % quantiles of the same draws for both.",
    "Probability of being fastest": "The share of the draws in which no other plan that fits is faster. Equally fast plans share a draw.",
    "Lower bound": (
        "The largest of: the longest cycle of tasks that wait for each other, over its periods; the SM time of all kernels, over the SMs;"
        " the time that their bytes take at full memory bandwidth; the time that transfers take on a link; what the host spends on issuing"
        " a period. In ms. No simulated step is shorter."
    ),
    "Above the bound": "Step time of the best plan, over the smallest lower bound of all plans that fit, - 1.",
    "Tied plans": (
        f"Plans whose step over the best has a 90 % interval within {SAME:.0%} of 1, or one that contains 1."
    ),
    "Term of a difference": (
        "What the step gains on average when one of the runs takes this from the other, over all orders in which the terms are exchanged"
        " (the Shapley value), in ms. The terms add up to the difference. A validation's terms are its waterfall's parts. Below a term is"
        " what contributes most to it, with its time per step in both runs."
    ),
    "Step of a training": "The median time between the ends of two successive iterations, in ms; making batches does not count.",
    "Against PyTorch, trained": (
        f"Step of the training by plain PyTorch, over this one. Its interval is that of a measured speed-up, from {PARTS} parts of the"
        " iterations (fewer of a short training), which all trainings took in turns."
    ),
    "Loss at the end": f"The mean over the last {LAST:.0%} of the iterations; with several seeds, the median over the seeds.",
    "Difference of losses": "max |a - b| over all iterations, over the largest |loss|.",
    "Coverage": "The steps that were measured inside the 90 % interval that was predicted for them, over all steps. Honest: about 90 %.",
    "FLOPs per byte": "FLOPs of one execution, over the bytes that it reads and writes.",
    "FLOP/s": "FLOPs of one execution, over its seconds with nothing in the cache.",
    "Share of the roof": "FLOP/s reached, over min(peak FLOP/s, memory bandwidth · FLOPs per byte). Above 100 %: the cache supplied it.",
    "Cold over warm": "Median seconds with nothing in the cache, over those with the tensors in it.",
    "Spread": "Half the distance of the quartiles, over the median of the samples.",
    "Slow-down": (
        "Seconds of a task while another runs, over its seconds alone. Modeled: by shared SMs and bandwidth, without the fitted multiplier."
    ),
    "Step time (GPU)": "The GPU's time per iteration, end to end, in ms. Median and mean leave the first recorded step out.",
    "Error of a replay": "replayed / recorded - 1: whether launches, streams and synchronization were understood.",
    "Part of a step": (
        "Every instant of the recorded step belongs to one part: computing, else communication or a copy that no kernel hides, else what"
        " the idle GPU waits for. The parts add up to the step."
    ),
    "Saves": "Mean step time of the replay, less that of the replay with the change, in ms. Each change alone.",
    "Speed-up": "Mean step time of the replay, over that of the replay with the change.",
    "Of peak": "FLOPs of matrix products, convolutions and attention, by recorded shapes, over the data sheet's peak · the ops' seconds.",
    "Of bandwidth": "Bytes of arguments and result, each once, over the data sheet's bandwidth · the ops' seconds.",
    "Of the roofline": "max(FLOPs / peak, bytes / bandwidth), over the ops' seconds: what a perfect kernel would take of them.",
    "MFU": (
        "Seconds of the FLOPs of matrix products, convolutions and attention at the data sheet's peak of their precision, over the step on"
        " all devices. Recorded: over the mean step; ops without shapes do not count."
    ),
    "Tokens per second": "Tokens of a step, over the step; in parentheses, over the number of devices too.",
    "Cost of a rank": "By how many ms a step of the job would be shorter if this rank took the median rank's times for this kind of work.",
})  # fmt: skip

#: The quantity of a column, by its head.
_COLUMNS: Mapping[str, str] = MappingProxyType({
    "predicted ms": "Step time", "step ms": "Step time", "90 % interval": "90 % interval", "against PyTorch": "Against PyTorch",
    "verdict": "Verdict", "over baseline": "Over the baseline", "over baseline, predicted": "Over the baseline", "busiest device": "Busy",
    PEAK: PEAK.capitalize(), "communication not hidden ms": "Exposed transfer", "idle": "Idle", "MFU": "MFU", "costs": "Costs",
    "measured ms": "Measured step", "error": "Error", "over baseline, measured": "Over the baseline, measured",
    "memory pred. / meas.": "Memory, predicted / measured", "numbers": "Numbers", "gradients differ by": "Numbers",
    "parameters differ by": "Numbers", "PyTorch run twice: gradients": "Numbers", "step over the best": "Step over the best",
    "P(fastest)": "Probability of being fastest", "lower bound ms": "Lower bound", "weights": "Staleness",
    "trains differently": "Staleness", "what makes the difference": "Term of a difference", "ms per step": "Step of a training",
    "in the interval": "Coverage", "tokens/s": "Tokens per second",
    "FLOPs per byte": "FLOPs per byte", "GFLOP/s": "FLOP/s", "of the roof": "Share of the roof", "cold / warm": "Cold over warm",
    "spread": "Spread", "takes longer, measured": "Slow-down", "modeled": "Slow-down", "where the time goes": "Part of a step",
    "saves ms": "Saves", "speed-up": "Speed-up", "rank": "Cost of a rank",
    "of peak": "Of peak", "of bandwidth": "Of bandwidth", "of the roofline": "Of the roofline",
})  # fmt: skip
#: Other meanings of heads, in tables with a certain column.
_ELSEWHERE: Mapping[str, Mapping[str, str]] = MappingProxyType({
    "over baseline, measured": {"against PyTorch": "Against PyTorch, measured"},
    "longer by ms": {"predicted ms": "Task time", "measured ms": "Task time", "longer by ms": "Longer by", "likely cause": "Likely cause"},
    "ms per step": {"against PyTorch": "Against PyTorch, trained", "losses against PyTorch": "Difference of losses"},
    "saves ms": {"mean step ms": "Step time (GPU)"},
    "busy ms recorded": {"error": "Error of a replay"},
    "slow step": {"recorded ms": "Step time (GPU)"},
    "recorded ms": {"error": "Error of a replay", "recorded ms": "Step time (GPU)", "replayed ms": "Step time (GPU)"},
})  # fmt: skip


#: The quantities of a prediction.
PREDICTED = (
    "Step time", "90 % interval", "Against PyTorch", "Over the baseline", "Probability", "Verdict", "Busy", PEAK.capitalize(),
    "Exposed transfer", "Idle", "MFU", "Why", "Costs", "Staleness",
)  # fmt: skip


def formulas_markdown(names: Iterable[str]) -> str:
    """The formulas of some quantities as Markdown."""
    return "\n\n".join(f"**{name}.** {FORMULAS[name]}" for name in names)


def column_formulas(heads: Iterable[str]) -> dict[str, str]:
    """The name of the quantity that each column of a table shows, by its head. Columns that show no quantity are omitted."""
    heads = list(heads)
    meanings = dict(_COLUMNS)
    for head, others in _ELSEWHERE.items():
        if head in heads:
            meanings |= others
    return {head: meanings[head] for head in heads if head in meanings}


def formulas_of(heads: Iterable[str], more: Iterable[str] = ()) -> dict[str, str]:
    """The formulas of a table's columns, and of `more` quantities, by quantity."""
    return {name: FORMULAS[name] for name in (*column_formulas(heads).values(), *more)}
