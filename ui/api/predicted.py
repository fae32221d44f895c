"""`predict`: a live module, or a model by its name, on a machine; and the questions that the answer can answer."""

import inspect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from simulator.machine.presets import THIS_CPU, THIS_GPU
from simulator.machine.scaled import ABOUT, scale_of
from simulator.model.built import float_type, tensors_of
from simulator.model.factory import LIVE
from simulator.model.job import Job
from simulator.model.live import live_factory, undisturbed
from simulator.model.tokens import tokens_of
from simulator.predict.answers import Answers
from simulator.predict.normal import normal
from simulator.predict.target import Target
from traces import units
from traces.arguments import check_type
from traces.documents.comparison import PYTORCH, Prediction
from traces.documents.predictions import Normal
from traces.documents.timeline import Timeline
from traces.errors import Code, Refusal, SchedcastError
from ui.api.arguments import asked, batch_of, in_python, job_values, loss_of, machine_of, renamed, step_of, strategies_of
from ui.api.shown import Shown
from ui.api.timelines import ShownTimeline
from ui.commands.predicting import print_normal
from ui.present.blocks import Table
from ui.present.labels import no_verdict_words, strategy_name
from ui.present.predictions import (
    fit_words,
    memory_words,
    prediction_label,
    prediction_table,
    prediction_words,
    too_large_words,
    usual_words,
)
from ui.present.terminal import show
from ui.request import JobRequest, optimizer_and_form
from ui.service.cautions import measured_here

#: The number of layers that an answer shows.
SLOWEST = 5
#: Schedcast's names of PyTorch's optimizers, by class.
OPTIMIZERS = {"SGD": "sgd", "Adagrad": "adagrad", "RMSprop": "rmsprop", "Adadelta": "adadelta", "Adam": "adam", "AdamW": "adamw"}

#: The names of the labels' argument in modules that compute their own loss.
LABELS = ("labels", "label", "targets", "target", "y")
#: The names of the arguments that say where and within what memory a job runs.
PLACE = ("devices", "memory_limit", "network")


@dataclass(frozen=True)
class Cost:
    """The time and cost of a training: hours with their 90 % interval, and money if an hour of one device has a price."""

    hours: float
    interval: tuple[float, float] | None
    money: float | None = None
    steps: int = 0

    def __repr__(self) -> str:
        """14.2 h (13.0 to 15.5), $35."""
        between = "" if self.interval is None else f" ({units.digits(self.interval[0])} to {units.digits(self.interval[1])})"
        return f"{units.digits(self.hours)} h{between}" + ("" if self.money is None else f", ${units.digits(self.money)}")


@dataclass(frozen=True, repr=False)
class Speed(Shown):
    """Whether a measured step is as long as predicted, next to published steps. `verdict`: normal, slower, faster, or None."""

    document: Normal

    @property
    def verdict(self) -> str | None:
        """Where the measured step lies: in the predicted interval, above or below it; None if none was measured."""
        return self.document.verdict

    def json(self) -> dict[str, Any]:
        """See `Shown`."""
        return self.document.document()

    def _print(self, console: Console) -> None:
        print_normal(self.document, console)


@dataclass(frozen=True, repr=False)
class Predicted(Shown):
    """The predicted step of a job: of plain PyTorch, or of a strategy, with the other requested ones.

    `request`: the request; `chosen`: the strategy of the figures. `answers`: the forecasts of the requested strategies, and of those that
    they are compared with.
    """

    request: JobRequest
    chosen: str
    answers: Answers = field(compare=False)
    owner: Any = field(default=None, compare=False)  # the factory of a live module, which lives as long as an answer about it

    @property
    def job(self) -> Job:
        """The training job, with its graphs."""
        return self.answers.job

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.prediction.step_s

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """The 90 % interval of the step."""
        return self.prediction.interval_s

    @property
    def peak_bytes(self) -> int:
        """The peak bytes of one device."""
        return max(device.peak_bytes for device in self.prediction.devices)

    @property
    def fits(self) -> bool:
        """Whether the job fits in memory."""
        return self.prediction.fits

    @cached_property
    def prediction(self) -> Prediction:
        """The document of the chosen strategy. Raises SchedcastError if it has no prediction."""
        with around(self.job):
            return self.answers.fitted(self.chosen)

    @cached_property
    def refusals(self) -> Mapping[str, Refusal]:
        """By the text of the strategy: why it could not be predicted, with what fits if the job is too large."""
        return {text: own for text, own in self._told.items() if isinstance(own, Refusal)}

    @cached_property
    def predictions(self) -> Mapping[str, Prediction]:
        """By the text of the strategy: the documents of the strategies that are answered and could be predicted."""
        return {text: own for text, own in self._told.items() if isinstance(own, Prediction)}

    @cached_property
    def _told(self) -> Mapping[str, Prediction | Refusal]:
        with around(self.job):
            return {text: own for _, text, own, _ in self.answers.told()}

    @property
    def target(self) -> Target:
        """The machine that was predicted for, with its costs."""
        return self.answers.target

    @property
    def slowest_layers(self) -> list[tuple[str, float]]:
        """(layer, seconds of its forward, backward and updates in a step), the slowest first."""
        timeline = self.answers.forecast(self.chosen).timeline
        start, end = timeline.window_s
        seconds: dict[str, float] = defaultdict(float)
        for span in timeline.window():
            seconds[span.layer or span.phase] += min(span.end_s, end) - max(span.start_s, start)
        return sorted(seconds.items(), key=lambda item: -item[1])

    @asked
    def compare(self, *strategies: str) -> "Predicted":
        """Predict these strategies (NAME or NAME:option=value,...) too, and print them as one table."""
        asked = (*(self.request.strategies or (self.chosen,)), *strategies)
        return answer(replace(self.request, strategies=asked), self.chosen, self.owner, self.job)

    def what_if(self, /, **changes: Any) -> "Predicted":
        """Predict again with something changed.

        Figures of the machine are multiplied: `memory=2`, `flops=`, `launch=`, `link=`, `sms=`. Fields of the job are replaced:
        `batch=128`, `precision="amp"`, `optimizer="adam:fused"`, `layout=`, `accumulate=`, `loss_mean="batch"`, `clip_norm=`,
        `checkpoint="full"`, `attention="cudnn"`, `image_size=` or `seq=`. So are `on="a100"`, `devices=4`, `memory_limit=` (GB) and
        `network="50Gb/s"`.
        Raises SchedcastError for any other name.
        """
        _, changes = renamed({}, changes)
        request = self.request
        scale = {name: changes.pop(name) for name in list(changes) if name in ABOUT}
        if scale:
            known = {name: getattr(scale_of(request.scale), name) for name in ABOUT} | scale
            request = replace(request, scale=",".join(f"{name}={factor}" for name, factor in known.items()))
        place = {name: changes.pop(name) for name in PLACE if name in changes}
        machine = str(machine_of(changes.pop("on", request.machine)))
        changes |= _optimizer(changes.pop("optimizer", None))
        changes = _job_fields(changes, "what_if", [*ABOUT, "on", *PLACE])
        return answer(replace(request, machine=machine, **place, **changes), self.chosen, self.owner)

    @asked
    def normal(self, measured_s: float | None = None) -> Speed:
        """Whether a step that you measured, in seconds, is as long as predicted; and the published steps nearest to the job.

        Raises SchedcastError if it is not above 0.
        """
        if measured_s is not None and not measured_s > 0:
            raise SchedcastError(f"normal(measured_s={measured_s}); expected seconds above 0")
        return Speed(normal(self.job, self.answers.forecast(self.chosen), measured_s))

    def largest_batch(self) -> int | None:
        """The largest batch that fits in memory; None if none does. Other batches are captured, which takes seconds each."""
        step = self
        while step.fits:
            larger = step.what_if(batch=2 * step.job.batch)
            if self.chosen not in larger.answers.known:
                break
            step = larger
        return step.prediction.largest_batch if not step.fits else step.job.batch

    @asked
    def hours(self, samples: int | None = None, epochs: float = 1, price: float | None = None, tokens: int | None = None) -> Cost:
        """The time and cost of a training: `samples` of an epoch (or `tokens`, if a model's inputs are rows of them) times `epochs`.

        `price`: of one device for an hour. Raises SchedcastError unless one of `samples` and `tokens` is given, for figures that are not
        above 0 (a price may be 0), and for a job that does not fit in memory.
        """
        if (samples is None) == (tokens is None):
            raise SchedcastError("hours takes samples or tokens; expected one of the two, as in hours(samples=1_281_167, epochs=90)")
        for name, value, least in (("samples", samples, 1), ("tokens", tokens, 1), ("epochs", epochs, 0), ("price", price, 0)):
            if value is not None and not (least <= value < float("inf") and (value or name == "price")):
                raise SchedcastError(f"hours({name}={value}); expected a number {'of at least 0' if name == 'price' else 'above 0'}")
        if not self.fits:
            raise SchedcastError(f"hours: a job that does not fit takes none: {' '.join(fit_words(self.prediction))}", Code.MEMORY)
        if tokens is None:
            steps = round((samples or 0) * epochs / self.job.batch)
        else:
            steps = round(tokens / self._tokens_of_a_sample() * epochs / self.job.batch)
        hours = steps * self.step_s / 3600
        bounds = None if self.interval_s is None else (steps * self.interval_s[0] / 3600, steps * self.interval_s[1] / 3600)
        return Cost(hours, bounds, None if price is None else price * hours * self.prediction.devices_used, steps)

    def _tokens_of_a_sample(self) -> int:
        tokens = tokens_of(self.job)
        if tokens is None:
            raise SchedcastError("hours(tokens=...) needs a model whose inputs are rows of tokens; give samples instead")
        return tokens // self.job.batch

    @asked
    def timeline(self, strategy: str | None = None) -> ShownTimeline:
        """The timeline of a step of the chosen strategy, or of another requested one; a notebook draws it."""
        text = self.chosen if strategy is None else strategy
        own = self.answers if text in self.answers.forecasts else self.compare(text).answers
        timeline: Timeline = own.forecast(text).timeline
        return ShownTimeline(replace(timeline, kind=f"{strategy_name(text)}, predicted"))

    def json(self) -> dict[str, Any]:
        """See `Shown`. What was predicted and what was refused are one document, as `schedcast predict --json` prints them."""
        with around(self.job):
            return self.answers.document().document()

    def frame(self) -> Any:
        """The table as a pandas DataFrame, a row per strategy: the numbers of the documents, in seconds and bytes."""
        import pandas as pd

        names = ("step_s", "interval_s", "fits", "speedup", "against_pytorch", "tokens", "mfu", "exposed_transfer_s", "bubble_share")
        return pd.DataFrame(
            {"strategy": text, "peak_bytes": max(use.peak_bytes for use in own.devices)} | {name: getattr(own, name) for name in names}
            for text, own in self.predictions.items()
        )

    def _print(self, console: Console) -> None:
        def line(text: str, style: str = "") -> None:
            console.print(in_python(text), style=style, highlight=False, markup=False)

        here = measured_here(self.target.costs)
        own = self.prediction
        of = "" if self.chosen == PYTORCH else f", {prediction_label(own)}"
        where = f"{self.job.model.removeprefix(LIVE)}, batch {self.job.batch}, on {self.target.machine.name}{of}"
        line(f"{where}: {units.duration(own.step_s, own.interval_s)}, {memory_words(own)}", "bold" if own.fits else "bold red")
        for words in usual_words([own]):
            line(words)
        for words in (*no_verdict_words([own.measured_share], here), *fit_words(own)):
            line(words, "yellow")
        known = [self.answers.prediction(text) for text in self.answers.table if text in self.answers.known]
        show(console, prediction_table(known, here))
        for words in too_large_words(self.answers.too_large):
            line(f"- {words}")
        line("")
        slowest = [
            {"slowest layers": name, "ms": units.ms(s), "share": units.percent(s / own.step_s, signed=False)}
            for name, s in self.slowest_layers
        ]
        show(console, Table(slowest[:SLOWEST], ("slowest layers",)))
        for words in prediction_words(own, here):
            line(f"- {words}")
        self.normal()._print(console)
        for text, refused in self.refusals.items():
            line(f"- {text}: {refused.words}")


def predict(model: Any, given: Mapping[str, Any], fields_of_job: Mapping[str, Any]) -> Predicted:
    """See `schedcast.predict`, which has the defaults. `given`: its arguments; `fields_of_job`: the fields of a job."""
    owner, batch, target, on = None, given["batch"], given["target"], given["on"]
    if isinstance(target, str | Path) and on is None:
        target, on = None, target  # predict(model, batch, "h100")
    on = machine_of(on)
    settings = {**_optimizer(given["optimizer"]), **_job_fields(fields_of_job, "predict", ["on", *PLACE, "mode"])}
    if isinstance(model, torch.nn.Module):
        batch, target, step = batch_of(batch), None if target is None else batch_of(target), step_of(given["step"])
        if target is None and step is None:
            batch, target = _divided(model, batch)
        with undisturbed():
            owner, batch = live_factory(model, batch, target, loss_of(given["loss"]), given["samples"], step)
        settings = {"precision": _precision(model), **settings}
        if on is None and any(p.is_cuda for p in model.parameters()):
            on = THIS_GPU
    elif not isinstance(model, str | Path):
        kind = model.__name__ if isinstance(model, type) else type(model).__name__
        raise SchedcastError(f"predict takes a torch.nn.Module or a model's name, not {kind}; make the module first", Code.MODEL)
    check_type("batch=", batch, int | None)
    named = str(model) if owner is None else owner.name
    where = str(THIS_CPU if on is None else on)
    place = {name: given[name] for name in (*PLACE, "mode", "price")} | {"tokens": str(given["tokens"])}
    chosen = strategies_of(given["strategy"])
    request = {"model": named, "batch": batch, "machine": where, "strategies": chosen, **place, **settings}
    return answer(JobRequest(**request), chosen[0] if chosen else None, owner=owner)


def answer(request: JobRequest, chosen: str | None = None, owner: Any = None, job: Job | None = None) -> Predicted:
    """Answer a request. `chosen`: the strategy of the figures, by default the `headline` of the answers.

    `owner`: the factory of a live module. `job`: the request's, if made.
    """
    job = job or request.job()
    with around(job):
        own = request.answers(job, request.target(job))
    chosen = chosen or own.headline
    own.forecast(chosen)
    return Predicted(request, chosen=chosen, answers=own, owner=owner)


def _job_fields(given: Mapping[str, Any], door: str, others: Sequence[str]) -> dict[str, Any]:
    """What is given, by the names of a job's fields: `seq` is `image_size`. Raises SchedcastError for names that are none of them.

    `door`: the function that was called; `others`: its other arguments, which the refusal names.
    """
    named = {"image_size" if name == "seq" else name: value for name, value in job_values(given).items()}
    names = [each.name for each in fields(Job) if each.name in JobRequest.__dataclass_fields__ and each.name != "model"]
    if unknown := sorted(set(named) - set(names)):
        raise SchedcastError(f"{door} knows no {unknown[0]!r}; expected one of {', '.join([*others, *names, 'seq'])}", Code.NAME)
    return named


def around(job: Job) -> Any:
    """A context that leaves the user's process unchanged while a live module is captured."""
    return undisturbed() if job.model.startswith(LIVE) else nullcontext()


def _optimizer(given: Any) -> dict[str, Any]:
    """The fields of a job for an optimizer: NAME[:for|foreach|fused], or one of PyTorch's with its form and learning rate."""
    if given is None or isinstance(given, str):
        return optimizer_and_form(given.lower()) if given else {}
    made = given if isinstance(given, type) else type(given)
    kind = next((OPTIMIZERS[base.__name__] for base in made.__mro__ if base.__name__ in OPTIMIZERS), None)
    if kind is None:
        known = ", ".join(OPTIMIZERS)
        raise SchedcastError(f"optimizer {made.__name__} is not modeled; expected one of {known}, or a name such as 'adam:fused'")
    if made is given:
        return optimizer_and_form(kind)
    group = given.param_groups[0]
    if kind == "sgd" and group.get("momentum"):
        kind = "nesterov" if group.get("nesterov") else "momentum"
    form = "fused" if group.get("fused") else "for" if group.get("foreach") is False else "foreach"
    rate = group["lr"]
    return {"optimizer": kind, "form": form, "lr": float(rate)}


def _precision(module: torch.nn.Module) -> str:
    """The precision in which a module trains: that of autocast if it is on, else of its parameters."""
    for kind in ("cuda", "cpu"):
        if torch.is_autocast_enabled(kind):
            return "amp-fp16" if torch.get_autocast_dtype(kind) == torch.float16 else "amp"
    names: dict[torch.dtype | None, str] = {torch.bfloat16: "bf16", torch.float64: "fp64"}
    return names.get(float_type(module), "default")


def _divided(module: torch.nn.Module, batch: Any) -> tuple[Any, Any]:
    """The inputs and the target of a pair that a loader gives, unless the module needs both, or calls the second its labels."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not list(tensors_of(batch[1], "")):
        return batch, None
    parameters: Iterable[inspect.Parameter]
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except ValueError:  # compiled code; `check_module` says what to do
        parameters = ()
    taken = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    takes_both = len(taken) > 1 and (taken[1].default is inspect.Parameter.empty or taken[1].name in LABELS)
    return (batch, None) if takes_both else (batch[0], batch[1])
