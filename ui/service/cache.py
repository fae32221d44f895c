"""The jobs, machines and costs of the app's requests, and a cache of their forecasts.

Everything is cached by what it depends on, including the modification times of files that it was read from.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from simulator.engine.costs.scaled import scaled_costs
from simulator.machine.scaled import scale_of
from simulator.model.job import Job
from simulator.model.usual_batch import source_file
from simulator.model.workloads import registry as workloads
from simulator.plan.editor.editor import ScheduleEditor
from simulator.plan.editor.order import Order
from simulator.predict.answers import Answers
from simulator.predict.forecast import Forecast, answer, forecast, plan_of
from simulator.predict.target import Target
from simulator.predict.usual import least_checkpoint
from traces.documents.profile_files import list_profiles
from traces.errors import Refusal, UnknownNameError, required
from ui.request import JobRequest, check_steered, start_models


def job_of(request: JobRequest) -> Job:
    """The job of a request. Raises SchedcastError for a model that the app does not offer, and as `check_steered` does."""
    if request.model not in (offered := [*start_models(), *workloads.names()]):  # the app runs no other code of its users
        raise UnknownNameError("model", request.model, offered)
    check_steered(request, start_models())
    return _same(request.job(), _stamp_of(request.model))


@lru_cache(maxsize=24)
def _same(job: Job, stamp: int) -> Job:
    """An equal job from an earlier request, with the graphs that it has captured. `stamp`: of the file of a user's model."""
    return job


def _stamp_of(model: str) -> int:
    """When the file of a user's model was last changed; 0 for a built-in one."""
    file = source_file(model)
    return file.stat().st_mtime_ns if file is not None and file.exists() else 0


def stamp_now() -> tuple[tuple[str, int], ...]:
    """The stored profiles and when they were last changed, which calibration does."""
    return tuple((str(path), path.stat().st_mtime_ns) for path in list_profiles())


@lru_cache(maxsize=24)
def target_of(placed: JobRequest, stamp: tuple) -> Target:
    """The target of requests with this placement, which depends only on the arguments. `stamp` is that of `stamp_now`.

    A scaled machine has the cached costs of the unscaled machine, scaled.
    """
    if placed.scale:
        plain = target_of(replace(placed, scale=""), stamp)
        return Target.of(scaled_costs(plain.costs, scale_of(placed.scale)), plain.mode)
    return placed.target(placed.job())


class Asked(NamedTuple):
    """A strategy of a request, and what else its forecast depends on. The stamps are those of `_stamp_of` and `stamp_now`."""

    job: Job
    model_stamp: int
    text: str
    settings: tuple
    placed: JobRequest
    stamp: tuple

    @property
    def target(self) -> Target:
        """The machine and its costs."""
        return target_of(self.placed, self.stamp)


def asked_of(request: JobRequest, text: str = "baseline") -> Asked:
    """What the forecast of a strategy of a request depends on now. Raises SchedcastError as `job_of` and `JobRequest.placement` do.

    Its job has the least checkpointing with which the request's strategies fit, if that is usual and the request states none.
    """
    job, shared = job_of(request), tuple(request.shared.items())
    request.placement()
    asked = Asked(job, _stamp_of(request.model), text=text, settings=shared, placed=request.placed, stamp=stamp_now())
    settled = request.settled
    if settled.checkpoint is not None:
        return asked
    return asked._replace(job=least_checkpoint(job, settled.strategies, lambda own, each: predicted(asked._replace(job=own, text=each))))


@lru_cache(maxsize=48)
def predicted(asked: Asked) -> Forecast | Refusal:
    """The forecast of a strategy's own order, or why there is none, as it was predicted before if nothing has changed."""
    return answer(asked.job, asked.text, asked.target, dict(asked.settings))


def answers_of(request: JobRequest, *only: str) -> Answers:
    """The answers to a request, of cached forecasts. `only`: as in `JobRequest.answers`, which this calls."""
    asked = asked_of(request)
    return request.answers(asked.job, asked.target, known=lambda job, text: predicted(asked._replace(job=job, text=text)), only=only)


@lru_cache(maxsize=8)
def editor_of(asked: Asked) -> ScheduleEditor:
    """The editor of a strategy's plan, with all its microbatches. Raises SchedcastError if there is no such plan."""
    own = required(predicted(asked))
    whole = own.plan.repeat is None
    plan = own.plan if whole else plan_of(asked.job, asked.text, asked.target, dict(asked.settings))
    return ScheduleEditor(plan, own.machine)


@lru_cache(maxsize=24)
def reordered(asked: Asked, order: Order) -> Forecast:
    """The forecast of a strategy's plan in another order."""
    return forecast(order.applied(editor_of(asked).plan), asked.target)
