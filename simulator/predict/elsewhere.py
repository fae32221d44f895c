"""Predict on another machine what is trained on this one."""

from collections.abc import Mapping
from dataclasses import fields, replace

from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.predict.forecast import Forecast, forecast
from simulator.strategies import registry as strategies
from traces.errors import SchedcastError


def forecast_elsewhere(
    text: str, shared: Mapping[str, str], trained: Plan | None, job: Job, machine: Machine, model: CostModel
) -> Forecast:
    """Return the forecast on `machine` of the strategy `text`, whose plan `trained` is what trains on this machine.

    The model is cut where the trained plan cuts it, whatever cuts would balance the other machine, since the cuts decide what is learnt.
    A pipeline that is simulated on one device has its devices there. Raises SchedcastError if the machine cannot run it.
    """
    strategy, options = strategies.parse(text, shared)
    known = {field.name: field.default for field in fields(options)}
    changes = {}
    if "placement" in known and trained is not None and trained.semantics.get("placement"):
        changes["placement"] = trained.semantics["placement"]
    if getattr(options, "on", None) == "simulated":
        changes["on"] = known["on"]
    try:
        predicted = forecast(strategy.plan(job, machine, model, replace(options, **changes)), machine, model)
    except SchedcastError as error:
        raise SchedcastError(f"--predict-on {machine.name}: {error}", error.code) from error
    if not predicted.fits:
        raise SchedcastError(f"--predict-on {machine.name}: {text} does not fit its memory; choose a smaller batch or another machine")
    return predicted
