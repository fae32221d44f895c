"""The error of whole predictions that the spread of single costs does not explain, estimated from validations.

The time of a step differs from the sum of its ops alone: other ops fill caches, clocks change, tasks contend. The validations that come
with the package show how much that is, for each kind of device and mode. Let e be the logarithms of predicted over measured
(`scored_error`) and a the A/A spreads. An A/A spread is the difference of two measured steps with independent noise, so half of its square
is the noise of one step. Then

    s² = max(0, mean(e²) − mean(a²) / 2)

Rows of one model share much of their error, and the errors of only several models say little about the next one. So b, the root mean square
of the models' mean errors, is enlarged by the ratio of the 95 % quantile of Student's t with n models to that of a normal distribution (1.8
for two, 1.05 for twenty): the variance is s² + b² · ((t / z)² − 1). With fewer than FEW_MODELS no 90 % interval is narrower than the worst
error.

`intervals` uses that as an error that all costs of a prediction share. It cancels in a speed-up, because it makes the baseline and the
strategy slower by one factor. What does not cancel is the strategy's individual error: the same estimate from the logarithms of predicted
over measured speed-ups of its family. It is small for plans with the baseline's lanes (4 % for fusion) and large where lanes run
concurrently (12 % for TurboDL). It includes the noise of the measurements, because the small number of rows of one family says too little
about that noise.

Step times also form groups that say nothing about each other; other strategies count for a group only if nothing else is known. The devices
of a pipeline wait for each other, so a delay of one delays all. The same is true of processes that exchange messages, where the
operating system decides which of them runs. Plain PyTorch obtains fresh memory from the system in every step, but its ops do not when they
are timed individually; how much depends on what the process had allocated before.

An accuracy is the known error of predictions from a preset: `published.json` has steps and speed-ups that others published, each with its
source; `python -m tools published` predicts them again. No cost was fitted on them. Its "left_out" has the errors of many more steps that
do not wait for the host (tools/fit_steps.py): those of each GPU, predicted with costs that were fitted without it. An accuracy is of the
logarithms of predicted over published, so bias counts as error. The accuracy of steps is the deviation whose 90 % interval contains nine of
ten, since some errors are several times as large as the rest; the accuracy of speed-ups, of which there are fewer, is a root mean square.
"""

import json
import math
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, quantiles

from pydantic import BaseModel, ConfigDict, Field

from simulator.engine.costs.cost import Z_90
from simulator.machine.presets import PYTORCH as PYTORCH_HOST
from simulator.machine.presets import card_of
from simulator.strategies.registry import family, names
from traces.documents.comparison import LOOPS, PYTORCH, PYTORCH_GRAPH, Validation
from traces.documents.shipped import shipped_validations

#: With fewer results than these, no discrepancy is estimated.
LEAST = 6
#: With fewer models than these, no interval is narrower than the worst error.
FEW_MODELS = 5
#: The family of the strategies that cut a model into stages.
PIPELINES = "pipelines"
#: The group of steps that several processes take together.
PROCESSES = "several processes"
#: The group of all other steps of our executor.
PLAIN = "one process, no stages"
#: The group of plain PyTorch's steps.
OWN_LOOP = "the user's own loop"


def discrepancy(
    validations: Iterable[Validation], strategy: str, kind: str, mode: str, but: str | None = None, processes: bool = False
) -> float:
    """Return the standard deviation of the logarithm of a strategy's predicted over measured steps.

    It is estimated from the validations on devices of `kind` (cpu or gpu) in `mode`. `but` is a model whose validations are excluded, to
    test the estimate on it. `processes`: several processes take the step together. Returns 0 for fewer than LEAST results.
    """
    return _first_known([_chosen(validations, kind, mode, but)], group_of(strategy, processes))


def speedup_discrepancy(validations: Iterable[Validation], strategy: str, kind: str, mode: str, but: str | None = None) -> float:
    """Return the standard deviation of the logarithm of predicted over measured speed-ups of the strategy's family.

    If the family has fewer than LEAST results, those of all strategies count. Other arguments and the result for too few results as in
    `discrepancy`.
    """
    return _of_family(_chosen(validations, kind, mode, but), strategy) or 0.0


def group_of(strategy: str, processes: bool) -> str:
    """The group of steps whose errors are like this strategy's: PLAIN, OWN_LOOP, PIPELINES or PROCESSES.

    `processes`: several processes take part. The baseline and plain PyTorch run in one process in any case.
    """
    if strategy in LOOPS:
        return OWN_LOOP
    if processes and strategy != "baseline":
        return PROCESSES
    return PIPELINES if family(strategy) == PIPELINES else PLAIN


def shipped_discrepancy(strategy: str, kind: str, mode: str, processes: bool = False) -> float:
    """Return the `discrepancy` of the validations that come with the package.

    If too few of them are of this kind of device in this mode, those of this kind in any mode count; if these are too few, all count.
    """
    group = group_of(strategy, processes)
    if group == OWN_LOOP and kind != "cpu":  # fresh memory of a CPU says nothing of a GPU
        group = PLAIN
    return _first_known(_pools(strategy, kind, mode), group)


def shipped_speedup_discrepancy(strategy: str, kind: str, mode: str) -> float:
    """Return the `speedup_discrepancy` of the validations that come with the package, chosen as in `shipped_discrepancy`."""
    return next((s for pool in _pools(strategy, kind, mode) if (s := _of_family(pool, strategy)) is not None), 0.0)


def _pools(strategy: str, kind: str, mode: str) -> list[Sequence[Validation]]:
    """The shipped validations: the nearest ones to this kind of device and mode first.

    Validations on one GPU do not say how accurate communication is: for a strategy of several devices, the GPU validations count only if
    they have such strategies.
    """
    validations, alone = shipped_validations(), {*names(1), *LOOPS, PYTORCH_GRAPH}
    if strategy not in alone:
        validations = tuple(v for v in validations if v.device.get("kind") != "gpu" or any(row.strategy not in alone for row in v.rows))
    same_kind = [v for v in validations if v.device.get("kind") == kind]
    return [[v for v in same_kind if v.mode == mode], same_kind, validations]


def _chosen(validations: Iterable[Validation], kind: str, mode: str, but: str | None) -> list[Validation]:
    return [v for v in validations if v.device.get("kind") == kind and v.mode == mode and v.model != but and not v.busy]


def _first_known(pools: Sequence[Sequence[Validation]], group: str) -> float:
    """The error of a group's steps in the first pool that has enough of them, otherwise of plain ones; else 0."""
    return next((s for name in (group, PLAIN) for pool in pools if (s := _beyond_noise(pool, name)) is not None), 0.0)


def _beyond_noise(validations: Sequence[Validation], group: str) -> float | None:
    """The standard deviation of a group's steps after subtracting the noise; None for too few steps."""
    rows = [
        (v, row.error, row.scored_error)
        for v in validations
        for row in v.rows
        if row.ok and row.error is not None and row.scored_error is not None
        if group_of(row.strategy, bool(v.device.get("processes"))) == group
    ]
    if len(rows) < LEAST:
        return None
    noise = fmean((v.aa_spread or 0.0) ** 2 for v, _, _ in rows) / 2
    worst = max(abs(math.log1p(error)) for _, *errors in rows for error in errors)
    return _of_another_model([(v.model, math.log1p(scored)) for v, _, scored in rows], noise, worst)


def _of_family(validations: Sequence[Validation], strategy: str) -> float | None:
    """The standard deviation of speed-ups of the strategy's family, or of all; None for too few results."""
    errors = [
        (family(row.strategy), (v.model, math.log(row.predicted_speedup / row.measured_speedup)))
        for v in validations
        for row in v.rows
        if row.ok and row.strategy != "baseline" and row.predicted_speedup and row.measured_speedup
    ]
    own = [error for name, error in errors if name == family(strategy)]
    others = [error for name, error in errors if name not in (PYTORCH, PIPELINES)]
    for chosen in (own, others):
        if len(chosen) >= LEAST:
            return _of_another_model(chosen, 0.0, max(abs(error) for _, error in chosen))
    return None


def _of_another_model(errors: Sequence[tuple[str, float]], noise: float, worst: float) -> float:
    """The standard deviation of the error of one more model.

    `errors`: with their models. `noise`: the variance of the noise in them. `worst`: the largest measured error.
    """
    square = fmean(error**2 for _, error in errors) - noise
    if square <= 0:
        return 0.0
    by_model: dict[str, list[float]] = {}
    for model, error in errors:
        by_model.setdefault(model, []).append(error)
    between = min(square, fmean(fmean(own) ** 2 for own in by_model.values()))
    wider = (_student_95(len(by_model)) / Z_90) ** 2
    return max(math.sqrt(square + between * (wider - 1)), worst / Z_90 if len(by_model) < FEW_MODELS else 0.0)


@cache
def _student_95(degrees: int) -> float:
    """The 95 % quantile of Student's t distribution, from the sums of its distribution function (Abramowitz and Stegun 26.7.3, 26.7.4).

    SciPy has it too, but takes a quarter of a second to load, in every prediction.
    """

    def central(t: float) -> float:
        """The probability of a value between -t and t."""
        angle = math.atan(t / math.sqrt(degrees))
        odd = degrees % 2
        term, total = (math.cos(angle) if odd else 1.0), 0.0
        for number in range(1 + odd, degrees, 2):
            total += term
            term *= math.cos(angle) ** 2 * number / (number + 1)
        return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total

    low, high = 0.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if central(middle) < 0.9 else (low, middle)
    return high


DATA = Path(__file__).with_name("published.json")


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    source: str
    machine: str
    model: str
    batch: int
    strategy: str
    devices: int | None = None
    published: float = Field(gt=0)
    predicted: float = Field(gt=0)

    @property
    def error(self) -> float:
        """The logarithm of predicted over published."""
        return math.log(self.predicted / self.published)


class PublishedStep(_Entry):
    """A step time in seconds."""

    precision: str = "fp32"
    optimizer: str = "momentum"
    form: str = "foreach"


class PublishedSpeedup(_Entry):
    """A speed-up over the strategy `over`. On several devices: throughput over that of one device, which trains its part of the batch.

    `job`: other fields of the job, as in `PublishedStep`. `host`: what issues the tasks, as in `load_machine`.
    """

    over: str = "baseline"
    host: str = PYTORCH_HOST
    job: dict[str, str] = {}


class LeftOut(BaseModel):
    """The logarithms of predicted over published steps of a GPU that costs were fitted without."""

    model_config = ConfigDict(extra="forbid")

    gpu: str
    errors: tuple[float, ...] = Field(min_length=1)


class Published(BaseModel):
    """The whole of `published.json`. `sources`: what the names of sources mean."""

    model_config = ConfigDict(extra="forbid")

    sources: dict[str, str]
    steps: tuple[PublishedStep, ...]
    left_out: tuple[LeftOut, ...]
    speedups: tuple[PublishedSpeedup, ...]


@cache
def published() -> Published:
    """The committed figures."""
    return Published.model_validate(json.loads(DATA.read_text()))


def step_accuracy(machine: str = "") -> float:
    """One standard deviation of the logarithm of a step that is predicted from the preset `machine`.

    It is that of all `steps` and `left_out` together or, if it is larger, that of the machine's own card: the error is larger on a card
    that is unlike the cards that costs are fitted on.
    """
    left_out = published().left_out
    errors = [step.error for step in published().steps] + [error for item in left_out for error in item.errors]
    own = [deviation(item.errors) for item in left_out if item.gpu == card_of(machine) and len(item.errors) >= LEAST]
    return max([deviation(errors), *own])


def deviation(errors: Sequence[float]) -> float:
    """The standard deviation whose 90 % interval contains nine of ten errors, so that rare large errors do not widen all intervals."""
    return quantiles(map(abs, errors), n=10, method="inclusive")[-1] / Z_90


def speedup_accuracy(strategy: str) -> float:
    """The same of a speed-up: that of the published ones of the strategy's family, or of all of them if it has none."""
    speedups = published().speedups
    own = [speedup.error for speedup in speedups if family(speedup.strategy) == family(strategy)]
    return _rms(own or [speedup.error for speedup in speedups])


def _rms(errors: Sequence[float]) -> float:
    return math.sqrt(fmean(error * error for error in errors))
