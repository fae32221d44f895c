"""What the app asks for as jobs, machines and costs, and the forecasts that are kept of it.

Everything is kept under what it depends on, with the times when the files behind it were last changed.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from calibrate.placement import Placement
from calibrate.profiles import target_for
from simulator.engine.costs.scaled import scaled_costs
from simulator.machine.scaled import AS_IT_IS
from simulator.model.job import Job
from simulator.model.usual_batch import source_file
from simulator.model.workloads import registry as workloads
from simulator.plan.editor.editor import ScheduleEditor
from simulator.plan.editor.order import Order
from simulator.predict.answers import Answers
from simulator.predict.forecast import Forecast, forecast
from simulator.predict.planned import answer, plan_of
from simulator.predict.target import Target
from traces.documents.comparison import BASELINE, PYTORCH
from traces.documents.profile_files import list_profiles
from traces.errors import Refusal, SchedcastError, UnknownNameError, required
from ui.request import JobRequest, check_steered, start_models, stored_profiles

#: Largest image size (of a recurrent model: sequence length) and batch that the app predicts. The command line takes any.
LARGEST_SIZE, LARGEST_BATCH = 32_768, 1_000_000


def job_of(request: JobRequest) -> Job:
    """The job of a request. Raises SchedcastError for a model that the app does not offer, and for numbers beyond what it predicts."""
    if request.model not in (offered := [*start_models(), *workloads.names()]):  # the app runs no other code of its users
        raise UnknownNameError("model", request.model, offered)
    for what, number, most in (("image size", request.image_size or 1, LARGEST_SIZE), ("batch", request.batch, LARGEST_BATCH)):
        if not 1 <= number <= most:
            raise SchedcastError(f"the {what} is {number}; the app predicts 1 to {most:,}; schedcast predict takes larger ones")
    check_steered(request, start_models())
    return _same(request.job(), _stamp_of(request.model))


@lru_cache(maxsize=24)
def _same(job: Job, stamp: int) -> Job:
    """The job that was asked for before and is equal, with the graphs that it has captured. `stamp`: of the file of a user's model."""
    return job


def _stamp_of(model: str) -> int:
    """When the file of a user's model was last changed; 0 for a built-in one."""
    file = source_file(model)
    return file.stat().st_mtime_ns if file is not None and file.exists() else 0


def stamp_now() -> tuple[tuple[str, int], ...]:
    """The stored profiles and when they were last changed, which calibration does."""
    return tuple((str(path), path.stat().st_mtime_ns) for path in list_profiles())


@lru_cache(maxsize=24)
def target_of(model: str, precision: str, name: str, placement: Placement, stamp: tuple) -> Target:
    """The machine and its costs, which depend on nothing but the arguments. `stamp` is that of `stamp_now`.

    A scaled machine has the costs of the machine as it is, which are kept, scaled.
    """
    if placement.scale != AS_IT_IS:
        plain = target_of(model, precision, name, replace(placement, scale=AS_IT_IS), stamp)
        return Target.of(scaled_costs(plain.costs, placement.scale), placement.mode)
    profile = stored_profiles().get(name)
    return target_for(Job(model, 1, precision=precision), profile, None if profile else name, placement)


class Asked(NamedTuple):
    """What the forecast of a strategy depends on. The stamps are those of `_stamp_of` and `stamp_now`."""

    job: Job
    model_stamp: int
    text: str
    settings: tuple
    machine: str
    placement: Placement
    stamp: tuple

    @property
    def target(self) -> Target:
        """The machine and its costs."""
        return target_of(self.job.model, self.job.precision, self.machine, self.placement, self.stamp)


def asked_of(request: JobRequest, text: str = "baseline") -> Asked:
    """What the forecast of a strategy of a request depends on now. Raises SchedcastError as `job_of` and `JobRequest.placement` do."""
    job, shared = job_of(request), tuple(request.shared.items())
    return Asked(
        job,
        model_stamp=_stamp_of(request.model),
        text=text,
        settings=shared,
        machine=request.machine,
        placement=request.placement(),
        stamp=stamp_now(),
    )


@lru_cache(maxsize=48)
def predicted(asked: Asked) -> Forecast | Refusal:
    """The forecast of a strategy's own order, or why there is none, as it was predicted before if nothing has changed."""
    return answer(asked.job, asked.text, asked.target, dict(asked.settings))


def answers_of(asked: Asked, texts: Iterable[str]) -> Answers:
    """The answers for these strategies, and for those that they are compared with: the baseline and plain PyTorch."""
    every = dict.fromkeys([BASELINE, PYTORCH, *texts])
    return Answers(asked.job, asked.target, {text: predicted(asked._replace(text=text)) for text in every}, dict(asked.settings))


@lru_cache(maxsize=8)
def editor_of(asked: Asked) -> ScheduleEditor:
    """The editor of a strategy's plan, with all its microbatches. Raises SchedcastError if there is no such plan."""
    own = required(predicted(asked))
    whole = own.plan.left_out is None
    plan = own.plan if whole else plan_of(asked.job, asked.text, asked.target, dict(asked.settings))
    return ScheduleEditor(plan, own.machine)


@lru_cache(maxsize=24)
def reordered(asked: Asked, order: Order) -> Forecast:
    """The forecast of a strategy's plan in another order."""
    return forecast(order.applied(editor_of(asked).plan), asked.target)
