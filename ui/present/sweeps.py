"""The outcomes of a sweep in words and table cells: where a strategy starts or stops paying, what is fastest, what each needs."""

from collections.abc import Iterable, Sequence

from simulator.engine.memory.contents import AT_LIMIT_WORDS
from simulator.predict.sweep import UNUSABLE, Axis, Outcome, Stretch, fastest, stretches
from traces import units
from traces.documents.comparison import BASELINE, PYTORCH
from traces.documents.verdict import chosen
from ui.present.labels import PEAK, PLAIN, strategy_name
from ui.present.tables import verdict_cell


def value_text(value: float) -> str:
    """The value of a parameter: 128, 0.5, 1,024."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def place(axis: str, value: float) -> str:
    """A parameter with its value: batch 128."""
    return f"{axis} {value_text(value)}"


def title(job: str, axes: Sequence[Axis]) -> str:
    """A job in words (model, batch B, ...), with the ranges of its parameters in place of what they vary."""
    parts = [part for part in job.split(", ") if not any(part.startswith(f"{axis.name} ") for axis in axes)]
    over = " and ".join(f"{axis.name} {_span(axis.values[0], axis.values[-1])}" for axis in axes)
    return ", ".join(parts) + (f", over {over}" if over else "")


def crossover_words(outcomes: Sequence[Outcome], axis: Axis, rival: str) -> list[str]:
    """One sentence per strategy on a sweep of one parameter: where it is faster than `rival`, and where that changes."""
    strategies = dict.fromkeys(each.strategy for each in outcomes if each.strategy not in (rival, PYTORCH))
    sentences = [(name, stretches(outcomes, name, rival)) for name in strategies]
    return [_sentence(name, own, axis.name, strategy_name(rival)) for name, own in sentences if own]


def _sentence(name: str, own: Sequence[Stretch], axis: str, rival: str) -> str:
    usable = [stretch for stretch in own if stretch.state != UNUSABLE]
    if not usable:
        return f"{name} cannot be compared with {rival} at any {axis}."
    limit = ""
    if own[-1].state == UNUSABLE:
        limit = f"; above {place(axis, usable[-1].last)} one of the two does not fit or is refused"
    paying = [stretch for stretch in usable if stretch.state == "faster"]
    if not paying:
        return f"{_not_paying(name, usable, axis, rival)}{limit}."
    if len(usable) == len(paying):
        return f"{name} pays {_everywhere(usable, axis)}: {_gains(paying)} against {rival}{limit}."
    if len(paying) > 1:
        runs = ", and ".join(_range(stretch, axis) for stretch in paying)
        return f"{name} pays {runs}: {_gains(paying)} against {rival}{limit}."
    (only,) = paying
    after = next((stretch for stretch in usable if stretch.first > only.last), None)
    before = next((stretch for stretch in reversed(usable) if stretch.last < only.first), None)
    begins = f"begins to pay at {place(axis, only.first)} ({units.speedup(only.gain_first)})" if before is not None else ""
    ends = ""
    if after is not None:
        at_last, beyond = units.speedup(only.gain_last), f"{units.speedup(after.gain_first)} at {value_text(after.first)}{_unclear(after)}"
        ends = f"stops paying above {place(axis, only.last)} ({at_last} there, {beyond})"
    return f"{name} {' and '.join(filter(None, (begins, ends)))}, against {rival}{limit}."


def _not_paying(name: str, usable: Sequence[Stretch], axis: str, rival: str) -> str:
    """A sentence, without its end, on a strategy that is surely faster nowhere."""
    states, where = {stretch.state for stretch in usable}, _everywhere(usable, axis)
    if states == {"slower"}:
        return f"{name} is slower than {rival} {where}"
    if states <= {"slower", "same"}:
        return f"{name} is no faster than {rival} {where}"
    if states <= {"cannot tell", "no verdict"}:
        return f"These predictions cannot tell whether {name} is faster than {rival} {where}: {_gains(usable)}"
    return f"{name} is not surely faster than {rival} {where}: {_gains(usable)}"


def _unclear(stretch: Stretch) -> str:
    return f", {stretch.state}" if stretch.state in ("cannot tell", "no verdict") else ""


def _everywhere(own: Sequence[Stretch], axis: str) -> str:
    return (
        f"at {place(axis, own[0].first)}" if own[0].first == own[-1].last else f"at every {axis} from {_span(own[0].first, own[-1].last)}"
    )


def _range(stretch: Stretch, axis: str) -> str:
    return f"at {axis} {_span(stretch.first, stretch.last)}"


def _span(first: float, last: float) -> str:
    return value_text(first) if first == last else f"{value_text(first)} to {value_text(last)}"


def _gains(paying: Iterable[Stretch]) -> str:
    gains = [gain for stretch in paying for gain in (stretch.gain_first, stretch.gain_last)]
    low, high = units.speedup(min(gains)), units.speedup(max(gains))
    return low if low == high else f"{low} to {high}"


def fastest_words(outcomes: Sequence[Outcome], axes: Sequence[Axis]) -> str:
    """Which strategy is the fastest at how many points, with the best of all; empty if nothing can be run."""
    places = dict.fromkeys(each.at for each in outcomes)
    winners = [best for at in places if (best := fastest(each for each in outcomes if each.at == at)) is not None]
    if not winners:
        return ""
    rivals = [each for each in outcomes if each.usable and each.strategy != PYTORCH]
    best = max((each for each in rivals if each.gain is not None), key=lambda each: each.gain.factor, default=None)
    if not axes:
        (winner,) = winners
        return f"{strategy_name(winner.strategy)} is predicted to be the fastest: {units.duration(winner.step_s)}{_chosen(winner, rivals)}."
    counts = {name: sum(each.strategy == name for each in winners) for name in dict.fromkeys(each.strategy for each in winners)}
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{strategy_name(name)} at {count}" for name, count in ranked)
    largest = ""
    if best is not None and best.gain.factor > 1:
        where = ", ".join(place(axis.name, value) for axis, value in zip(axes, best.at, strict=True))
        largest = f" The largest gain: {strategy_name(best.strategy)} at {where}{_chosen(best, rivals)}."
    return f"The fastest of {len(winners)} points: {shares}.{largest}"


def _chosen(best: Outcome, rivals: Sequence[Outcome]) -> str:
    """The gain of the best of several outcomes, whose interval allows for the choice; "" for plain PyTorch."""
    if best.gain is None or best.strategy == PYTORCH:
        return ""
    over = PLAIN if PYTORCH in best.gains else BASELINE
    wider = f" (an interval for the best of {len(rivals)})" if len(rivals) > 1 and best.gain.interval is not None else ""
    return f"; against {over} {chosen(best.gain, len(rivals)).judged}{wider}"


def outcome_cells(outcomes: Sequence[Outcome], axes: Sequence[Axis]) -> list[dict[str, str]]:
    """One row per outcome, column name to text."""
    return [
        {axis.name: value_text(value) for axis, value in zip(axes, each.at, strict=True)}
        | {
            "strategy": strategy_name(each.strategy),
            "step ms": units.ms(each.step_s),
            "90 % interval": units.interval(each.interval_s),
            "against PyTorch": against_pytorch(each),
            "verdict": verdict_cell(each.gain, PYTORCH if PYTORCH in each.gains else BASELINE),
            PEAK: units.NONE if each.peak_bytes is None else units.memory(each.peak_bytes),
            "note": each.refusal.words if each.refusal else "does not fit" if not each.fits else AT_LIMIT_WORDS if each.at_limit else "",
        }
        for each in outcomes
    ]


def against_pytorch(each: Outcome) -> str:
    """The speed-up of an outcome over plain PyTorch; "-" if that is not predicted."""
    own = each.gains.get(PYTORCH)
    return own.text if own is not None else units.speedup(1.0 if each.strategy == PYTORCH and each.step_s is not None else None)


def side_by_side_cells(jobs: Sequence[tuple[str, Sequence[Outcome]]]) -> list[dict[str, str]]:
    """One row per strategy and one column per job: step time, gain over plain PyTorch and peak allocated memory."""
    names = dict.fromkeys(each.strategy for _, outcomes in jobs for each in outcomes)
    columns = {words: {each.strategy: each for each in outcomes} for words, outcomes in jobs}
    return [{"strategy": strategy_name(name)} | {words: _short(own.get(name)) for words, own in columns.items()} for name in names]


def _short(each: Outcome | None) -> str:
    if each is None:
        return ""
    if each.step_s is None:
        return "refused"
    if not each.fits:
        return "does not fit"
    memory = "" if each.peak_bytes is None else f", {units.memory(each.peak_bytes)} allocated"
    over = "" if PYTORCH in each.gains or each.strategy == PYTORCH else f" over the {BASELINE}"
    return f"{units.duration(each.step_s)}, {units.speedup(each.speedup)}{over}{memory}"
