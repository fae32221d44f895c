"""A replay, the delay by each rank of a job, and the kernels' use of their GPU, in sentences and tables."""

from collections.abc import Sequence
from types import MappingProxyType

from simulator.replay.diagnosis import HOST_PARTS, VERDICT_SHARE, verdict
from traces import units
from traces.documents.replay_result import (
    KernelUse,
    MemoryPeak,
    Part,
    ReplayResult,
    ReplayStep,
    Roofline,
    RuleAnswer,
    StragglerCost,
    WhatIf,
)  # fmt: skip
from ui.present.blocks import Block, Headline, Section, Sentences, Table, Timelines
from ui.present.labels import lane_label
from ui.present.rules import JUDGED, record_words

#: The head of the table's first column, and its title.
RANK, TITLE = "rank", "Stragglers: ms that a step would be shorter with the median rank's times"
#: The column of the parts of a step.
PART = "where the time goes"
#: The heads of the first columns of what kernels, and the modules that launch them, reach of the GPU.
KERNELS, MODULES = "kernels", "modules"
#: Columns of words; the others are numbers, which are aligned to the right.
WORDS = frozenset({"change", JUDGED, "note", "stream", "step", PART, "slow step", "most of it", RANK, KERNELS, MODULES, "kernel", "why"})
#: A rank or a kind that costs less than this share of the step is not named.
NAMED_SHARE = 0.005


def section(result: ReplayResult) -> Section:
    """What a page says of a recorded run."""
    return Section("Replay of a recorded run", blocks(result), result.model_copy(update={"timeline": None}), "replay.json")


def blocks(result: ReplayResult) -> list[Block]:
    """From the verdict down to, as details, what was assumed: where the time goes, what slow steps and ranks cost, what changes gain."""
    answered, name = result.what_if, step_name(result, result.median_step)
    changes = ladder_cells(result) if answered is None else answers_cells(answered)
    bounds = bounds_cells(result) if answered is None and result.ladder else []
    assumed = rule_words(result) if answered is None else assumption_words(answered)
    drawn = [] if result.timeline is None else [Timelines([result.timeline], f"{name[:1].upper()}{name[1:]}, as recorded")]
    return [
        Headline(headline(result)),
        Sentences([
            *wait_words(result, result.median_step), *ladder_words(result), *slow_words(result),
            *words(result.stragglers, result.gpu_period_simulated_s), *replay_words(result),
        ]),
        *drawn,
        Table(diagnosis_cells(result), WORDS, title=f"Where the time of {name} goes"),
        Table(slow_cells(result), WORDS, title="Slow steps"),
        Table(cells(result.stragglers), WORDS, title=TITLE),
        Table(changes, WORDS, title="Changes, each alone"),
        Table(bounds, WORDS, title="Bounds: what a host, a network or an optimizer that takes no time would gain"),
        Sentences([] if answered is None else what_if_words(answered)),
        Sentences(assumed, detail=True),
        *details(result),
    ]  # fmt: skip


def details(result: ReplayResult) -> list[Block]:
    """What kernels reach of the GPU, by class and by module, the busiest streams, the steps, and how well kernels are placed."""
    reached = result.roofline
    return [
        Sentences([*use_words(reached), *memory_words(result.memory)], detail=True),
        Table(use_cells(reached.kernels), WORDS, title="What the kernels reach of the GPU, in a step", detail=True),
        Table(use_cells(reached.modules, MODULES), WORDS, title="The same by module, forward and backward", detail=True),
        Table(busy_cells(result), WORDS, title="Busiest streams", detail=True),
        Table(step_cells(result), WORDS, title="Steps", detail=True),
        Table(
            misplaced_cells(result), WORDS, title="Kernels that the replay places worst", narrow=Sentences(misplaced_words(result)),
            detail=True,
        ),
    ]  # fmt: skip


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
        alone = (
            f"With the median rank's times on rank {worst.rank} alone, a step would be {units.duration(worst.seconds)} shorter ({share})"
        )
        sentences = [f"{alone}{f': {why}' if why else ''}."]
    else:
        sentences = [f"No rank alone costs the others more than {units.duration(NAMED_SHARE * step_s)} of a step."]
    if together >= NAMED_SHARE * step_s and together > 1.05 * worst.seconds:
        sentences.append(f"With the median rank's times on every rank, it would be {units.duration(together)} shorter.")
    return sentences


def cells(costs: Sequence[StragglerCost]) -> list[dict[str, str]]:
    """One row per rank, and one for all together; one column per kind of work, and one for all."""
    rows: dict[int | None, dict[str, str]] = {}
    for cost in costs:
        row = rows.setdefault(cost.rank, {RANK: "all ranks" if cost.rank is None else str(cost.rank)})
        row[cost.kind or "in all"] = units.ms(cost.seconds)
    return list(rows.values())


#: The row of all changes that were asked.
TOGETHER = "together"
#: Rows of a table of streams or kernels at most.
SHOWN = 12
#: Worst-placed kernels that are explained in the terminal.
EXPLAINED = 3
#: A part of the step below this share is no row of the table.
ROW_SHARE = 0.0005

#: By part of a step: its row in the table, and its headline.
_PARTS = MappingProxyType({
    Part.COMPUTE: ("compute", "The GPU computes {share} of {step}: what helps is faster kernels."),
    Part.COMMUNICATION: ("communication not hidden", "Communication that no kernel hides takes {share} of {step}."),
    Part.OTHER_RANK: ("idle, waits for another rank", "The GPU waits for other ranks {share} of {step}."),
    Part.COPIES: ("copies not hidden", "Copies that no kernel hides take {share} of {step}."),
    Part.LOADER: ("idle, waits for the data loader", "The GPU waits for the data loader {share} of {step}, {ms} of {of} ms."),
    Part.ALLOCATION: (
        "idle, waits for memory to be allocated or freed",
        "The GPU waits for memory to be allocated or freed (cudaMalloc, cudaFree) {share} of {step}.",
    ),
    Part.HOST: ("idle, waits for the host (Python, launches)", "The GPU waits for Python {share} of {step}."),
    Part.SYNCHRONIZATION: (
        "idle after a synchronization or blocking copy",
        "Synchronizations cost {share} of {step}: the host waits for the GPU, then the GPU for the host.",
    ),
    Part.DEPENDENCY: ("idle, waits for another stream", "The GPU stands idle {share} of {step} between work of different streams."),
    Part.BETWEEN_KERNELS: ("idle between kernels", "Pauses between kernels take {share} of {step}."),
    Part.UNEXPLAINED: (
        "not explained: idle, or work that was not recorded",
        "What the GPU does {share} of {step} is not known: neither work nor a reason to wait is recorded.",
    ),
})  # fmt: skip


def headline(result: ReplayResult) -> str:
    """What to look at first: that the replay does not explain the recording, else what to look at first in the median step.

    The waits of ranks come after the reason why they are uncertain.
    """
    if result.disagreement is None:
        return " ".join(filter(None, (result.doubt, step_headline(result, result.median_step))))
    median = result.steps[result.median_step]
    of_mean = result.disagreement == result.error
    lengths = (result.gpu_period_measured_s, result.gpu_period_simulated_s) if of_mean else (median.measured_s, median.simulated_s)
    step = "mean step" if of_mean and len(result.steps) > 1 else step_name(result, result.median_step).removeprefix("the ")
    fault = f"The replay does not explain the recording: {step} {_lengths(*lengths)}, {units.percent(result.disagreement)}."
    return " ".join(filter(None, (fault, result.doubt)))


def step_headline(result: ReplayResult, number: int) -> str:
    """What to look at first in one step: its largest part that is not computing, unless all of them are small."""
    step = result.steps[number]
    part = verdict(step)
    share = next((each.share for each in step.parts if each.part is part), 0.0)
    figures = {"share": units.percent(share, signed=False), "step": step_name(result, number)}
    figures |= {"ms": units.ms(share * step.measured_s), "of": units.ms(step.measured_s)}
    return _PARTS[part][1].format(**figures) + _rank_words(step, part)


def _rank_words(step: ReplayStep, part: Part) -> str:
    """For which rank the devices wait most, if waiting for ranks is what a headline is about."""
    if part is not Part.OTHER_RANK or not step.ranks:
        return ""
    worst, waited_s = step.ranks[0], sum(each.seconds for each in step.parts if each.part is part)
    return f" All wait for rank {worst.rank}: {units.ms(worst.seconds)} of these {units.ms(waited_s)} ms."


def step_name(result: ReplayResult, number: int) -> str:
    """The name of a step in a sentence."""
    if len(result.steps) == 1:
        return "the step"
    return "the median step" if number == result.median_step else result.steps[number].name


def picked_words(result: ReplayResult, number: int) -> str:
    """The name of a step in a list of steps to choose from: its name, its length, and whether it is the median one or a slow one."""
    step = result.steps[number]
    kind = ", the median" if number == result.median_step else ", slow" if number in result.slow_steps else ""
    return f"{step.name}: {units.duration(step.measured_s)}{kind if len(result.steps) > 1 else ''}"


def replay_words(result: ReplayResult) -> list[str]:
    """The replay compared with the recording, one sentence per item."""
    median = result.steps[result.median_step]
    sentences = [f"Step time (GPU): {_lengths(median.measured_s, median.simulated_s)}: {units.percent(result.error)}."]
    if len(result.steps) > 1:
        mean = _lengths(result.gpu_period_measured_s, result.gpu_period_simulated_s)
        counted = _count(len(result.steps) - 1, "step")
        sentences = [
            f"Step time (GPU), median of {counted}: {_lengths(median.measured_s, median.simulated_s)}.",
            f"Mean: {mean}: {units.percent(result.error)}.",
        ]
    sentences.append(f"{_count(result.kernels, 'kernel')} on {_count(result.streams, 'stream')} over {_count(len(result.steps), 'step')}.")
    if len(result.steps) > 2:
        lengths = [step.measured_s for step in result.steps[1:]]
        low, high = units.ms(min(lengths)), units.ms(max(lengths))
        sentences.append(f"The recorded steps after the first take from {low} to {high} ms.")
    if result.exposed_communication_measured_s or result.exposed_communication_simulated_s:
        measured, simulated = (
            units.duration(result.exposed_communication_measured_s),
            units.duration(result.exposed_communication_simulated_s),
        )
        sentences.append(f"Communication not hidden takes {measured} of a step recorded, {simulated} replayed.")
    if result.unmatched_kernels:
        sentences.append(f"The launches of {_count(result.unmatched_kernels, 'kernel')} were not recorded.")
    return sentences + [sentence(note) for note in result.notes]


def slow_words(result: ReplayResult) -> list[str]:
    """One sentence on how many steps are slow, and how slow."""
    slow = [result.steps[number].measured_s for number in result.slow_steps]
    if not slow:
        return []
    lengths = units.ms(min(slow)) if len(slow) == 1 else f"{units.ms(min(slow))} to {units.ms(max(slow))}"
    median = units.duration(result.steps[result.median_step].measured_s)
    verb = "is" if len(slow) == 1 else "are"
    return [f"{len(slow)} of {_count(len(result.steps) - 1, 'step')} {verb} slow: {lengths} ms, the median {median}."]


def slow_cells(result: ReplayResult) -> list[dict[str, str]]:
    """One row per slow step, the slowest first, column name to text: how much longer it is than the median step, and why."""
    median = result.steps[result.median_step]
    usual_s = {part.part: part.seconds for part in median.parts}
    waited_s = {wait.label: wait.seconds for wait in median.waits}
    rows = []
    for number in result.slow_steps[:SHOWN]:
        step = result.steps[number]
        if not step.parts:
            continue
        longer = max(step.parts, key=lambda part: part.seconds - usual_s.get(part.part, 0.0))
        of = [f"{_PARTS[longer.part][0]} {(longer.seconds - usual_s.get(longer.part, 0.0)) * 1e3:+.3g} ms"]
        if longer.part in HOST_PARTS:
            waits = sorted(step.waits, key=lambda wait: waited_s.get(wait.label, 0.0) - wait.seconds)
            of += [f"{wait.label} {(wait.seconds - waited_s.get(wait.label, 0.0)) * 1e3:+.3g} ms" for wait in waits[:1]]
        lengths = {"recorded ms": units.ms(step.measured_s), "longer by ms": units.ms(step.measured_s - median.measured_s)}
        rows.append({"slow step": step.name} | lengths | {"most of it": "; ".join(of)})
    return rows


def diagnosis_cells(result: ReplayResult, number: int | None = None) -> list[dict[str, str]]:
    """One row per part of a step (the median one unless `number` says which), column name to text, and their sum.

    After what-if rules, with the time that is left of each.
    """
    step = result.steps[result.median_step if number is None else number]
    left = {each.name: each for each in result.what_if.steps}.get(step.name) if result.what_if else None
    after = {part.part: part.seconds for part in left.parts} if left else {}
    rows = [
        {PART: _PARTS[part.part][0], "ms": units.ms(part.seconds), "share": units.percent(part.share, False)}
        | ({"ms after the changes": units.ms(after[part.part])} if after else {})
        for part in step.parts
        if part.share >= ROW_SHARE or after.get(part.part, 0.0) > ROW_SHARE * sum(after.values())
    ]
    total = {PART: "one step", "ms": units.ms(step.measured_s), "share": units.percent(1.0, False)}
    return [*rows, total | ({"ms after the changes": units.ms(left.seconds)} if left and after else {})]


def wait_words(result: ReplayResult, number: int) -> list[str]:
    """What the host did while the GPU waited for it in a step, in one sentence; none if the GPU did not wait long."""
    step = result.steps[number]
    share = sum(part.share for part in step.parts if part.part in HOST_PARTS)
    if share < VERDICT_SHARE:
        return []
    longest = ", ".join(f"{wait.label} ({units.duration(wait.seconds)})" for wait in step.waits)
    return [f"Meanwhile the host is in {longest}."]


def ladder_cells(result: ReplayResult) -> list[dict[str, str]]:
    """One row per default change, the largest gain first, column name to text."""
    return [_answer_cells(answer) for answer in result.ladder]


def bounds_cells(result: ReplayResult) -> list[dict[str, str]]:
    """One row per bound, column name to text."""
    return [_answer_cells(answer) for answer in result.bounds]


def ladder_words(result: ReplayResult) -> list[str]:
    """The change with the largest gain, and what the ladder has skipped, one sentence per item."""
    sentences = []
    gains = [answer for answer in result.ladder if answer.gain_s and answer.gain_s > 0 and not answer.reason]
    best = max(gains, key=lambda answer: answer.gain_s or 0.0, default=None)
    if gains and best is not gains[0]:
        sentences.append(f"What helps against that: {_gain_words(gains[0], result.gpu_period_simulated_s)}.")
    if best is not None:
        sentences.append(f"The largest gain: {_gain_words(best, result.gpu_period_simulated_s)}.")
    if result.disagreement is not None:
        sentences.append(f"{step_headline(result, result.median_step)} No changes are ranked: their gains could not be trusted.")
    elif len(result.steps) == 1:
        sentences.append("Only one step is recorded, so no changes are ranked: record three steps or more, or ask with --what-if.")
    if result.ladder_left_out:
        sentences.append(f"There was no time for {', '.join(result.ladder_left_out)}; ask with --what-if.")
    return sentences


def _gain_words(answer: RuleAnswer, before_s: float) -> str:
    within = f" ({units.interval(answer.step_interval_s)})" if answer.step_interval_s else ""
    steps = f"mean step {units.duration(before_s)} to {units.duration(answer.step_s)}{within}"
    return f"{answer.label or answer.rule} ({answer.about}), {steps}, {units.speedup(answer.speedup)}"


def rule_words(result: ReplayResult) -> list[str]:
    """One sentence per default change that has a name, with the rule behind it."""
    return [f"{answer.label} is the rule {answer.rule}." for answer in result.ladder if answer.label]


def answers_cells(answer: WhatIf) -> list[dict[str, str]]:
    """One row per rule asked, alone, and one for all that were applied together; column name to text."""
    rows = [_answer_cells(each) for each in answer.answers]
    if len(answer.rules) > 1:
        together = RuleAnswer(
            rule=TOGETHER,
            about=f"{len(answer.rules)} changes, one after another",
            step_s=answer.gpu_period_after_s,
            gain_s=answer.gpu_period_before_s - answer.gpu_period_after_s,
            speedup=answer.speedup,
        )
        rows.append(_answer_cells(together))
    return rows


def what_if_words(answer: WhatIf) -> list[str]:
    """The effect of all rules together in one sentence, after the remark on all answers."""
    remarks = [answer.remark] if answer.remark else []
    if not answer.rules:
        return [*remarks, "No change has an effect."]
    before, after = units.duration(answer.gpu_period_before_s), units.duration(answer.gpu_period_after_s)
    gain = f" (a speed-up of {units.speedup(answer.speedup)})" if answer.speedup else ""
    return [*remarks, f"With {', '.join(answer.rules)} the mean step goes from {before} to {after}{gain}."]


def assumption_words(answer: WhatIf) -> list[str]:
    """One sentence per assumption."""
    return [sentence(assumption) for assumption in answer.assumptions]


def _answer_cells(answer: RuleAnswer) -> dict[str, str]:
    note = "; ".join(filter(None, (answer.about, answer.step_interval_s and f"{units.interval(answer.step_interval_s)} ms")))
    if answer.reason:
        note = answer.reason if answer.step_s is None else "; ".join(filter(None, (answer.about, f"no gain: {answer.reason}")))
    return {
        "change": answer.label or answer.rule,
        "mean step ms": units.ms(answer.step_s),
        "saves ms": _saved(answer),
        "speed-up": units.speedup(answer.speedup),
        JUDGED: "" if answer.step_s is None or answer.rule == TOGETHER else record_words(answer.record),
        "note": note,
    }


def _saved(answer: RuleAnswer) -> str:
    if answer.gain_s is None:
        return units.NONE
    return "0" if answer.reason else units.ms(answer.gain_s)


def busy_cells(result: ReplayResult) -> list[dict[str, str]]:
    """The rows of the busiest streams, column name to text."""
    busiest = sorted(result.busy, key=lambda row: -row.measured_s)[:SHOWN]
    return [
        {
            "stream": lane_label(row.device, row.stream),
            "busy ms recorded": units.ms(row.measured_s),
            "replayed": units.ms(row.simulated_s),
            "error": units.percent(row.simulated_s / row.measured_s - 1 if row.measured_s else None),
        }
        for row in busiest
    ]


def step_cells(result: ReplayResult) -> list[dict[str, str]]:
    """One row per step, column name to text."""
    return [
        {
            "step": step.name,
            "recorded ms": units.ms(step.measured_s),
            "replayed ms": units.ms(step.simulated_s),
            "error": units.percent(step.simulated_s / step.measured_s - 1 if step.measured_s else None),
        }
        for step in result.steps
    ]


def misplaced_cells(result: ReplayResult) -> list[dict[str, str]]:
    """The rows of the worst-placed kernels, column name to text."""
    return [
        {
            "kernel": row.task,
            "stream": lane_label(row.device, row.stream),
            "start ms recorded": units.ms(row.measured_start_s),
            "replayed": units.ms(row.simulated_start_s),
            "off by ms": f"{(row.simulated_start_s - row.measured_start_s) * 1e3:+.3g}",
            "why": row.reason,
        }
        for row in result.misplaced[:SHOWN]
    ]


def misplaced_words(result: ReplayResult) -> list[str]:
    """One sentence per worst-placed kernel, with the reason."""
    sentences = []
    for row in result.misplaced[:EXPLAINED]:
        off_s = row.simulated_start_s - row.measured_start_s
        when = f"{units.duration(abs(off_s))} too {'late' if off_s > 0 else 'early'}"
        sentences.append(f"{row.task} on {lane_label(row.device, row.stream)} is placed {when}: {row.reason}.")
    return sentences


def _lengths(measured_s: float, simulated_s: float) -> str:
    return f"{units.duration(measured_s)} recorded, {units.duration(simulated_s)} replayed"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def sentence(text: str) -> str:
    """A note as a sentence."""
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def use_words(roofline: Roofline) -> list[str]:
    """The use of the GPU's FLOP/s over the step, or what is missing to know it, one sentence per item."""
    if not roofline.shapes:
        return ["Shapes were not recorded, so that nothing is known of FLOPs and bandwidth: record with record_shapes=True."]
    if not roofline.known_gpu:
        gpu = f"there is no data sheet of {roofline.gpu}" if roofline.gpu else "the trace does not say which GPU it is of"
        return [f"Shares of the GPU's peak and bandwidth are not known: {gpu}."]
    if roofline.mfu is None:
        return []
    least = any((row.flops and row.known_share < 1) or (row.name == "attention" and not row.flops) for row in roofline.kernels)
    share = units.percent(roofline.mfu, signed=False)
    return [f"Matrix products and convolutions use {'at least ' if least else ''}{share} of the FLOP/s of the {roofline.gpu} (MFU)."]


def memory_words(peaks: Sequence[MemoryPeak]) -> list[str]:
    """The peak of each GPU's memory, one sentence per item."""
    sentences = []
    for peak in peaks:
        place = f" of rank {peak.rank}" if len({each.rank for each in peaks}) > 1 else f" of GPU {peak.device}" if len(peaks) > 1 else ""
        if peak.reserved_bytes is None:
            sentences.append(f"Peak memory{place}: {units.memory(peak.allocated_bytes)} above what was allocated when the recording began.")
        else:
            of = f", of {units.memory(peak.memory_bytes)}" if peak.memory_bytes else ""
            held = f"{units.memory(peak.allocated_bytes)} allocated, {units.memory(peak.reserved_bytes)} reserved{of}"
            sentences.append(f"Peak memory{place}: {held}.")
    return sentences


def use_cells(rows: Sequence[KernelUse], first: str = KERNELS) -> list[dict[str, str]]:
    """One row per class of kernels or modules, the longest first, column name to text. `first`: the head of the first column."""
    return [
        {
            first: row.name,
            "ms": units.ms(row.seconds),
            "of the kernels": units.percent(row.share, signed=False),
            "TFLOP": f"{row.flops / 1e12:.3g}" if row.flops else units.NONE,
            "of peak": _share(row, row.peak_share if row.flops else None),
            "of bandwidth": _share(row, row.bandwidth_share),
            "of the roofline": _share(row, row.roofline_share),
        }
        for row in rows[:SHOWN]
    ]


def _share(row: KernelUse, share: float | None) -> str:
    return units.percent(share, signed=False) if row.bytes else units.NONE
