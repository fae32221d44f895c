"""A replay in sentences and tables, the same for the terminal and the app."""

from traces import units
from traces.replay_result import ReplayResult, WhatIf
from ui.text.labels import lane_label

#: Rows of a table of streams or kernels at most.
SHOWN = 12
#: Worst-placed kernels that are explained in the terminal.
EXPLAINED = 3


def replay_words(result: ReplayResult) -> list[str]:
    """The replay compared with the recording, one sentence per item."""
    measured, simulated = units.duration(result.gpu_period_measured_s), units.duration(result.gpu_period_simulated_s)
    steps = f" over {_count(len(result.steps), 'step')}" if result.steps else ""
    sentences = [
        f"{_count(result.kernels, 'kernel')} on {_count(result.streams, 'stream')}{steps}.",
        f"The GPU's period is {measured} recorded, {simulated} replayed: {units.percent(result.error)}.",
    ]
    if len(result.steps) > 2:
        lengths = [step.measured_s for step in result.steps[1:]]
        low, high = units.ms(min(lengths)), units.ms(max(lengths))
        sentences.append(f"The recorded steps after the first take from {low} to {high} ms.")
    if result.exposed_communication_measured_s or result.exposed_communication_simulated_s:
        exposed = (
            units.duration(result.exposed_communication_measured_s),
            units.duration(result.exposed_communication_simulated_s),
        )
        sentences.append(f"Exposed communication, which no kernel hides, takes {exposed[0]} recorded, {exposed[1]} replayed.")
    if result.unmatched_kernels:
        sentences.append(f"The launches of {_count(result.unmatched_kernels, 'kernel')} were not recorded.")
    return sentences + [_sentence(note) for note in result.notes]


def what_if_words(answer: WhatIf) -> list[str]:
    """The effect of the rules, then one sentence per assumption."""
    before, after = units.duration(answer.gpu_period_before_s), units.duration(answer.gpu_period_after_s)
    gain = f" (a speed-up of {units.speedup(answer.speedup)})" if answer.speedup else ""
    return [f"With {', '.join(answer.rules)} the period goes from {before} to {after}{gain}.", *map(_sentence, answer.assumptions)]


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
