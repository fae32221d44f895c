"""A replay in sentences and tables, the same for the terminal and the app."""

from types import MappingProxyType

from simulator.replay.diagnosis import Part
from traces import units
from traces.replay_result import ReplayResult, RuleAnswer, WhatIf
from ui.text.labels import lane_label

#: Rows of a table of streams or kernels at most.
SHOWN = 12
#: Worst-placed kernels that are explained in the terminal.
EXPLAINED = 3
#: A part of the step below this share is neither the headline nor, below the second, a row of the table.
HEADLINE_SHARE, ROW_SHARE = 0.05, 0.0005

#: By part of a step: its row in the table, and its headline.
_PARTS = MappingProxyType({
    Part.COMPUTE: ("compute", "The GPU computes {} of the step: what helps is faster kernels."),
    Part.COMMUNICATION: ("communication not hidden", "Communication that no kernel hides takes {} of the step."),
    Part.OTHER_RANK: ("idle, waits for another rank", "The GPU waits for other ranks {} of the step."),
    Part.COPIES: ("copies not hidden", "Copies that no kernel hides take {} of the step."),
    Part.HOST: ("idle, waits for the host (Python, launches)", "The GPU waits for Python {} of the step."),
    Part.SYNCHRONIZATION: (
        "idle after a synchronization or blocking copy",
        "Synchronizations cost {} of the step: the host waits for the GPU, then the GPU for the host.",
    ),
    Part.DEPENDENCY: ("idle, waits for another stream", "The GPU stands idle {} of the step between work of different streams."),
    Part.BETWEEN_KERNELS: ("idle between kernels", "Pauses between kernels take {} of the step."),
    Part.UNEXPLAINED: ("idle, not explained", "The GPU stands idle {} of the step for no recorded reason."),
})  # fmt: skip


def headline(result: ReplayResult) -> str:
    """What to look at first: the largest part of the step that is not computing, unless all of them are small."""
    shares = {Part(part.part): part.share for part in result.diagnosis}
    largest = max((part for part in shares if part is not Part.COMPUTE), key=shares.__getitem__)
    part = largest if shares[largest] >= HEADLINE_SHARE else Part.COMPUTE
    return _PARTS[part][1].format(units.percent(shares[part], signed=False))


def replay_words(result: ReplayResult) -> list[str]:
    """The replay compared with the recording, one sentence per item."""
    measured, simulated = units.duration(result.gpu_period_measured_s), units.duration(result.gpu_period_simulated_s)
    steps = f" over {_count(len(result.steps), 'step')}" if result.steps else ""
    sentences = [
        f"Step time (GPU): {measured} recorded, {simulated} replayed: {units.percent(result.error)}.",
        f"{_count(result.kernels, 'kernel')} on {_count(result.streams, 'stream')}{steps}.",
    ]
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
    return sentences + [_sentence(note) for note in result.notes]


def diagnosis_cells(result: ReplayResult) -> list[dict[str, str]]:
    """One row per part of the step, column name to text, and their sum. After what-if rules, with the time that is left of each."""
    after = {part.part: part.seconds for part in result.what_if.diagnosis} if result.what_if else {}
    rows = [
        {"where the step's time goes": _PARTS[Part(part.part)][0], "ms": units.ms(part.seconds), "share": units.percent(part.share, False)}
        | ({"ms after the changes": units.ms(after[part.part])} if after else {})
        for part in result.diagnosis
        if part.share >= ROW_SHARE or after.get(part.part, 0.0) > ROW_SHARE * sum(after.values())
    ]
    total = {"where the step's time goes": "one step", "ms": units.ms(result.gpu_period_measured_s), "share": units.percent(1.0, False)}
    return [*rows, total | ({"ms after the changes": units.ms(result.what_if.gpu_period_after_s)} if after else {})]


def ladder_cells(result: ReplayResult) -> list[dict[str, str]]:
    """One row per default change, the largest gain first, column name to text."""
    return [_answer_cells(answer) for answer in result.ladder]


def bounds_cells(result: ReplayResult) -> list[dict[str, str]]:
    """One row per bound, column name to text."""
    return [_answer_cells(answer) for answer in result.bounds]


def ladder_words(result: ReplayResult) -> list[str]:
    """The change with the largest gain, and what the ladder has left out, one sentence per item."""
    sentences = []
    best = next((answer for answer in result.ladder if answer.gain_s and answer.gain_s > 0 and not answer.reason), None)
    if best is not None:
        steps = f"{units.duration(result.gpu_period_simulated_s)} to {units.duration(best.step_s)}"
        sentences.append(f"The largest gain: {best.label or best.rule} ({best.about}), {steps}, {units.speedup(best.speedup)}.")
    if result.ladder_left_out:
        sentences.append(f"There was no time for {', '.join(result.ladder_left_out)}; ask with --what-if.")
    return sentences


def rule_words(result: ReplayResult) -> list[str]:
    """One sentence per default change that has a name, with the rule behind it."""
    return [f"{answer.label} is the rule {answer.rule}." for answer in result.ladder if answer.label]


def answers_cells(answer: WhatIf) -> list[dict[str, str]]:
    """One row per rule asked, alone, and one for all that were applied together; column name to text."""
    rows = [_answer_cells(each) for each in answer.answers]
    if len(answer.rules) > 1:
        together = RuleAnswer(
            rule="together",
            about=f"{len(answer.rules)} changes, one after another",
            step_s=answer.gpu_period_after_s,
            gain_s=answer.gpu_period_before_s - answer.gpu_period_after_s,
            speedup=answer.speedup,
        )
        rows.append(_answer_cells(together))
    return rows


def what_if_words(answer: WhatIf) -> list[str]:
    """The effect of all rules together in one sentence."""
    if not answer.rules:
        return ["No change has an effect."]
    before, after = units.duration(answer.gpu_period_before_s), units.duration(answer.gpu_period_after_s)
    gain = f" (a speed-up of {units.speedup(answer.speedup)})" if answer.speedup else ""
    return [f"With {', '.join(answer.rules)} the step time goes from {before} to {after}{gain}."]


def assumption_words(answer: WhatIf) -> list[str]:
    """One sentence per assumption."""
    return [_sentence(assumption) for assumption in answer.assumptions]


def _answer_cells(answer: RuleAnswer) -> dict[str, str]:
    note = answer.about
    if answer.reason:
        note = answer.reason if answer.step_s is None else "; ".join(filter(None, (answer.about, f"no gain: {answer.reason}")))
    return {
        "change": answer.label or answer.rule,
        "step ms": units.ms(answer.step_s),
        "saves ms": _saved(answer),
        "speed-up": units.speedup(answer.speedup),
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


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
