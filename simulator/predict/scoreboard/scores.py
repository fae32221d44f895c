"""Scores of predicted steps, by source, GPU, family and precision, next to the errors that other predictors publish of themselves."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median

from simulator.engine.costs.cost import Z_90
from traces.documents.scoreboard import Correction, Group, PeerScore, Score, Scoreboard, ScoredStep, Unpredicted
from traces.errors import Code, SchedcastError
from traces.files import read_table
from traces.units import read_number

#: Models from which a GPU's factor in a precision is estimated, at least.
LEAST_MODELS = 4
#: Columns by which a table of peers' own errors is known, in percent.
PEER_COLUMNS = ("peer", "gpu", "case", "time_error_pct")


def scoreboard(steps: Sequence[ScoredStep], unpredicted: Iterable[str], peers: Iterable[PeerScore] = ()) -> Scoreboard:
    """The document of some steps. `unpredicted`: for each row without a prediction, why."""
    waiting = [step for step in steps if step.waits_for_host]
    finest = _by(steps, lambda step: (step.source, step.machine, step.family))
    return Scoreboard(
        total=_score(steps),
        waiting_for_host=_score(waiting),
        others=_score([step for step in steps if not step.waits_for_host]),
        by_source=_scores(steps, lambda step: step.source),
        by_gpu=_scores(steps, lambda step: step.machine),
        by_family=_scores(steps, lambda step: step.family),
        by_precision=_scores(steps, lambda step: step.precision),
        groups=tuple(Group(source=s, gpu=g, family=f, score=Score.of(own)) for (s, g, f), own in finest.items()),
        unpredicted=tuple(Unpredicted(why=why, rows=rows) for why, rows in Counter(unpredicted).most_common()),
        peers=tuple(peers),
        corrections=tuple(corrections([step for step in steps if not step.waits_for_host])),
        steps=tuple(steps),
    )


def _score(steps: Sequence[ScoredStep]) -> Score | None:
    return Score.of(steps) if steps else None


def _by(steps: Iterable[ScoredStep], name: Callable) -> dict:
    groups = defaultdict(list)
    for step in steps:
        groups[name(step)].append(step)
    return dict(sorted(groups.items()))


def _scores(steps: Iterable[ScoredStep], name: Callable[[ScoredStep], str]) -> dict[str, Score]:
    return {group: Score.of(own) for group, own in _by(steps, name).items()}


def corrections(steps: Iterable[ScoredStep]) -> Iterator[Correction]:
    """The factors of all GPUs and precisions that have steps of LEAST_MODELS models, each model judged by what the others give."""
    for (gpu, precision), own in _by(steps, lambda step: (step.machine, step.precision)).items():
        logs = _by(own, lambda step: step.model)
        ratios = {model: [log(step.measured_s / step.predicted_s) for step in some] for model, some in logs.items()}
        if len(ratios) < LEAST_MODELS:
            continue
        left_out = [
            ratio - median([other for name, some in ratios.items() if name != model for other in some])
            for model, those in ratios.items()
            for ratio in those
        ]
        every = [ratio for some in ratios.values() for ratio in some]
        factor, reach = exp(median(every)), exp(Z_90 * sqrt(fmean(error * error for error in left_out)))
        yield Correction(
            gpu=gpu, precision=precision, rows=len(every), factor=round(factor, 3),
            interval=(round(factor / reach, 3), round(factor * reach, 3)),
            error_without=round(median([abs(exp(-ratio) - 1) for ratio in every]), 3),
            error_with=round(median([abs(exp(-error) - 1) for error in left_out]), 3),
        )  # fmt: skip


def peer_scores(folder: Path) -> list[PeerScore]:
    """The scores of the peers whose errors stand in a table of the folder. Raises SchedcastError if a figure is no number."""
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for path in sorted(folder.rglob("*.csv")):
        table = read_table(path, "table of steps")
        for line, record in table.rows if {*PEER_COLUMNS} <= {*table.columns} else ():
            percent = read_number(record["time_error_pct"]) if isinstance(record, dict) else None
            if not isinstance(record, dict) or percent is None:
                said = repr(record.get("time_error_pct")) if isinstance(record, dict) else "the row"
                raise SchedcastError(f"{path}, line {line}: {said[:60]} is no error in percent; correct it", Code.FILE)
            errors[record["peer"], record["gpu"], record.get("note", "")].append(percent / 100)
    return [
        PeerScore(
            peer=peer, gpu=gpu, note=note, rows=len(own), median_error=round(median(map(abs, own)), 3),
            worst_error=max((round(error, 3) for error in own), key=lambda error: abs(error)), bias=round(median(own), 3),
        )
        for (peer, gpu, note), own in errors.items()
    ]  # fmt: skip
