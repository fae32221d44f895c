"""The step times of one job's strategies on one target: their forecasts, and the documents that every interface prints."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from simulator.engine.utilization import planned_mfu
from simulator.model.factory import LIVE
from simulator.model.job import Job
from simulator.model.tokens import tokens_of
from simulator.plan.text import render
from simulator.predict.discrepancy import shipped_speedup_discrepancy, speedup_accuracy
from simulator.predict.forecast import NONE, Forecast, answer
from simulator.predict.intervals import Interval, faster_probability, speedup_interval
from simulator.predict.largest_batch import Fitting, fitting
from simulator.predict.target import Target, plain_loops, references
from simulator.predict.usual import least_checkpoint
from simulator.predict.waterfall import waterfall
from traces.documents.comparison import BASELINE, PYTORCH, Prediction
from traces.documents.predictions import Place, Predictions
from traces.documents.verdict import is_judged
from traces.documents.whole_training import BILLION, WholeTraining
from traces.errors import Refusal, required
from traces.process import gc_paused


@dataclass(frozen=True)
class Answers:
    """A job on a target, and by the text of each strategy its forecast, or why there is none. `shared`: options of every strategy.

    `asked`: the strategies that were requested; those that they are compared with have forecasts too. `usual`: by the name of the option,
    the values that the job has because nobody stated them (`predict.usual`), except for those of `Job`. `budget`: the tokens of a whole
    training, and the price of a device for an hour.
    """

    job: Job
    target: Target
    forecasts: Mapping[str, Forecast | Refusal]
    shared: Mapping[str, str] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    usual: Mapping[str, str] = field(default_factory=dict)
    budget: tuple[float, float | None] = (BILLION, None)
    _fitting: dict[str, Fitting] = field(default_factory=dict, init=False, repr=False, compare=False)
    _predictions: dict[str, Prediction] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def known(self) -> dict[str, Forecast]:
        """The forecasts that exist."""
        return {text: own for text, own in self.forecasts.items() if isinstance(own, Forecast)}

    @property
    def headline(self) -> str:
        """The strategy of the figures if one is to be shown: the only requested one, else plain PyTorch.

        Where plain PyTorch cannot be predicted and the baseline can, the baseline, which is nearest to it.
        """
        if len(self.asked) == 1:
            return self.asked[0]
        return BASELINE if BASELINE in self.known and PYTORCH not in self.known else PYTORCH

    def rows(self, single: bool = True) -> tuple[str, ...]:
        """The strategies that are answered: the only requested one, several below the `references`, or the `plain_loops` if there is none.

        An only one that is refused stands below the `references` too. The `headline` is always one of them. `single`: whether no other job
        or machine was requested.
        """
        if single and len(self.asked) == 1 and self.asked[0] in self.known:
            return self.asked
        loops = references(self.target.machine) if self.asked else plain_loops(self.target.machine)
        return tuple(dict.fromkeys([*loops, self.headline, *self.asked]))

    @property
    def table(self) -> tuple[str, ...]:
        """The strategies that a table of a single job has: the `rows`; the only requested one stands below what it is compared with."""
        every = self.rows() if len(self.asked) != 1 else dict.fromkeys([*references(self.target.machine), BASELINE, *self.asked])
        return tuple(text for text in every if text not in self.too_large)

    @cached_property
    def too_large(self) -> dict[str, Forecast]:
        """What was not requested and does not fit, on several devices, if something was requested: no table needs it."""
        if len(self.target.machine.devices) < 2 or not self.asked:
            return {}
        return {text: own for text, own in self.known.items() if text not in self.asked and not own.fits}

    @property
    def place(self) -> Place:
        """What the answers are about."""
        return Place(model=self.job.model.removeprefix(LIVE), batch=self.job.batch, machine=self.target.machine.name)

    def told(self, single: bool = True, plans: bool = False) -> Iterator[tuple[Place, str, Prediction | Refusal, str]]:
        """What a document says of each of the `rows`, for `Predictions.of`. `plans`: with the plans as text.

        If the job does not fit in memory, other jobs are predicted to say what does.
        """
        for text in self.rows(single):
            own = self.forecasts[text]
            if isinstance(own, Refusal):
                yield self.place, text, self.refusal(text) or own, ""
            else:
                yield self.place, text, self.fitted(text), render(own.plan) if plans else ""

    def document(self) -> Predictions:
        """What `schedcast predict --json` prints of a single job and machine."""
        return Predictions.of(self.told())

    def forecast(self, text: str) -> Forecast:
        """The forecast of a strategy. Raises the error of the refusal if there is none."""
        return required(self.forecasts[text])

    def fitting(self, text: str) -> Fitting:
        """What fits in memory if a strategy does not. Other jobs are captured, planned and simulated to find it."""
        if text not in self._fitting:
            self._fitting[text] = fitting(self.job, text, self.forecasts[text], self.target, self.shared)
        return self._fitting[text]

    def refusal(self, text: str) -> Refusal | None:
        """Why a strategy has no forecast, with what fits if the job is too large; None if it has one."""
        own = self.forecasts[text]
        if not isinstance(own, Refusal):
            return None
        if not own.excess_bytes:
            return own
        return replace(own, words="; ".join([own.words, *self.fitting(text).words]))

    def prediction(self, text: str) -> Prediction:
        """The document of a strategy. Raises the error of the refusal if there is none."""
        if text not in self._predictions:
            precision = self.target.costs.shown_precision(self.job.precision)
            baseline, plain = self.known.get(BASELINE), self.known.get(PYTORCH)
            own = prediction(self.forecast(text), baseline, precision, plain, tokens_of(self.job) or 0)
            training = WholeTraining.at(own, own.tokens, own.devices_used, self.budget) if own.tokens and own.fits else None
            self._predictions[text] = own.model_copy(update={"usual": dict(self.usual), "training": training})
        return self._predictions[text]

    def fitted(self, text: str) -> Prediction:
        """The same with the largest batch and the other changes that fit, if the plan does not fit."""
        document = self.prediction(text)
        if document.fits:
            return document
        batch, changes, tried = self.fitting(text)
        return document.model_copy(update={"largest_batch": batch, "batch_sought": True, "would_fit": changes, "changes_sought": tried})


def answers(
    job: Job,
    texts: Iterable[str],
    target: Target,
    shared: Mapping[str, str] = NONE,
    runs: bool = False,
    known: Callable[[Job, str], Forecast | Refusal] | None = None,
    usual: Mapping[str, str | None] = NONE,
) -> Answers:
    """Forecast every strategy of `texts` (`NAME[:option=value,...]`).

    The `references` and the baseline come first, whether or not they are requested; without strategies, the `plain_loops` follow. `runs`:
    as in `answer`. `known`: returns the stored forecast of a job's strategy, if forecasts are cached. `usual`: as in `Answers`; its
    `checkpoint` is None for the least with which a strategy fits.
    """
    asked = tuple(dict.fromkeys(texts))
    made: dict[tuple[Job, str], Forecast | Refusal] = {}

    def predict(own: Job, text: str) -> Forecast | Refusal:
        if known is not None:
            return known(own, text)
        if (own, text) not in made:
            made[own, text] = answer(own, text, target, shared, runs)
        return made[own, text]

    with gc_paused():  # once for all strategies: each end of a pause walks the heap
        wanted = asked or plain_loops(target.machine)
        if "checkpoint" in usual and usual["checkpoint"] is None:
            job = least_checkpoint(job, wanted, predict)
        every = dict.fromkeys([*references(target.machine), BASELINE, *wanted])
        stated = {name: job.checkpoint if value is None else value for name, value in usual.items()}
        return Answers(job, target, {text: predict(job, text) for text in every}, shared, asked, stated)


def paired_interval(baseline: Forecast, other: Forecast) -> Interval:
    """Return the 90 % interval of the speed-up of `other` over `baseline`, by errors that both share.

    `baseline` may be a different plan than the baseline's, such as plain PyTorch; then its individual errors count too.
    """
    return speedup_interval(baseline.sensitivity, other.sensitivity, *_paired_errors(baseline, other))


def paired_probability(baseline: Forecast, other: Forecast) -> float:
    """Return the probability that `other` is faster than `baseline`, by the errors of `paired_interval`."""
    return faster_probability(baseline.sensitivity, other.sensitivity, *_paired_errors(baseline, other))


def _paired_errors(baseline: Forecast, other: Forecast) -> tuple[float, float]:
    """The discrepancy and the accuracy of a speed-up."""
    own = [f for f in (baseline, other) if f.plan.strategy != "baseline"]
    discrepancy = math.hypot(*(shipped_speedup_discrepancy(f.plan.strategy, f.kind, f.timeline.mode) for f in own))
    return discrepancy, other.from_specifications * speedup_accuracy(other.plan.strategy)


def prediction(
    predicted: Forecast, baseline: Forecast | None, precision: str, plain: Forecast | None = None, tokens: int = 0
) -> Prediction:
    """Return the document of a forecast, with its speed-ups over the baseline and over plain PyTorch, if they are given.

    `tokens`: those of a step; 0 if the model reads none.
    """
    timeline, given = predicted.timeline, _given(predicted)
    used = sum(name in given for members in predicted.plan.members.values() for name in members)
    base = baseline.timeline.step_s if baseline is not None else None
    other, loop = (None if each is predicted else each for each in (baseline, plain))
    measured_share = least_measured([each for each in (predicted, baseline, plain) if each is not None])
    compared = [each for each in (predicted, other, loop) if each is not None]
    at_limit = tuple(dict.fromkeys(each.plan.strategy for each in compared if each.at_limit or not each.fits))

    def probability(rival: Forecast | None) -> float | None:
        if rival is None or not is_judged(measured_share) or {rival.plan.strategy, predicted.plan.strategy} & {*at_limit}:
            return None
        return paired_probability(rival, predicted)

    return Prediction(
        strategy=predicted.plan.strategy,
        options=dict(predicted.plan.options),
        mode=timeline.mode,
        precision=precision,
        step_s=timeline.step_s,
        interval_s=predicted.interval_s,
        baseline_step_s=base,
        speedup=base / timeline.step_s if base else None,
        devices=timeline.devices,
        fits=predicted.fits,
        settled=timeline.settled,
        exposed_transfer_s=timeline.exposed_transfer_s,
        bubble_share=timeline.bubble_share,
        tasks=len(timeline.spans),
        simulate_wall_s=predicted.simulate_wall_s,
        shares=predicted.shares,
        critical_path=timeline.critical_path,
        at_peak=predicted.at_peak,
        waterfall=waterfall(other.parts, predicted.parts) if other is not None else (),
        memories=predicted.memories,
        at_limit=at_limit,
        speedup_interval=paired_interval(other, predicted) if other is not None else None,
        pytorch_step_s=plain.timeline.step_s if plain is not None else None,
        against_pytorch=plain.timeline.step_s / timeline.step_s if plain is not None else None,
        against_pytorch_interval=paired_interval(loop, predicted) if loop is not None else None,
        faster_probability=probability(other),
        faster_than_pytorch_probability=probability(loop),
        measured_share=measured_share,
        checkpoint=str(predicted.plan.semantics.get("checkpoint", "")),
        mfu=planned_mfu(predicted.plan, predicted.machine, timeline.step_s, predicted.float32),
        shown=str(predicted.plan.semantics.get("shown", "")),
        assumed=_assumed(predicted.plan.semantics),
        loss=str(predicted.plan.semantics.get("loss", "")),
        unused_devices=len(given) - used,
        tokens=tokens,
        devices_used=used,
        too_large=tuple(dict.fromkeys(each.plan.strategy for each in compared if not each.fits)),
    )


def _assumed(semantics: Mapping[str, object]) -> tuple[str, ...]:
    """What a plan assumes, in words."""
    assumed, taken = semantics.get("assumed"), semantics.get("taken")
    return (*([f"{assumed}; no plan of it can run"] if assumed else []), *([str(taken)] if taken else []))


def _given(predicted: Forecast) -> set[str]:
    """The devices that the job was given."""
    return {device.name for device in predicted.machine.for_devices(predicted.plan.devices).devices}


def least_measured(compared: Sequence[Forecast]) -> float | None:
    """The smallest share of task seconds with measured costs.

    None if no cost comes from a profile, measured or fitted, and on a GPU if it is too small for a verdict by itself: what was not
    measured rests on specifications there, whose accuracy is known.
    """
    if not any(each.shares.measured or each.shares.fitted for each in compared):
        return None
    least = min(each.shares.measured for each in compared)
    return None if compared[0].kind == "gpu" and not is_judged(least) else least
