"""How long a validation or a calibration will take, from the predicted times: told before it begins."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from calibrate.numerics import STEPS
from calibrate.testbed import Testbed
from executors.run import WARM_UP
from simulator.engine.costs.cost import MEASURED, Cost
from simulator.engine.costs.model import measurable
from simulator.engine.simulation import GRAPH
from simulator.predict.forecast import Forecast

#: Seconds to measure one key on a GPU (a guess), and to sample one on a CPU besides running it twice: clearing the caches and the anchor op
#: (measured on an AMD EPYC).
GPU_KEY_S, CPU_SAMPLE_S = 0.05, 1e-3


def validation_seconds(forecasts: Mapping[str, Forecast], testbed: Testbed, rounds: int, calibrate: bool) -> float:
    """Return the seconds of a validation of `forecasts` by label, which include the baseline, in `rounds` rounds on `testbed`.

    Every program takes steps for its numerics, its peak memory, its warm-up and the rounds. The baseline's program is run twice, and plain
    PyTorch, assumed to take as long, beside them. With `calibrate`, an interleaved testbed samples the keys of each program, warm and cold,
    before and after its steps of a round; others measure each missing key once.
    """
    base = forecasts["baseline"]
    unit = base.machine.host(base.plan.devices[0]).graph_iterations if base.timeline.mode == GRAPH else 1
    programs_s = sum(forecast.timeline.step_s for forecast in forecasts.values()) + base.timeline.step_s
    steps = STEPS + (WARM_UP + 1) + (WARM_UP + unit) + rounds * testbed.units_per_round * unit
    plain_steps = STEPS + WARM_UP + rounds * testbed.plain_steps_per_round
    total_s = steps * programs_s + plain_steps * base.timeline.step_s
    if not calibrate:
        return total_s
    keys = [_keys(forecast) for forecast in forecasts.values()]
    every = {key: cost for own in keys for key, cost in own.items()}
    if not testbed.interleaved:
        return total_s + GPU_KEY_S * sum(cost.source != "measured" for cost in every.values())
    turns = [*keys, _keys(base)]
    between = [before | after for before, after in pairwise([turns[-1], *turns])]
    return total_s + _sample_s(every) + rounds * sum(map(_sample_s, between))


def calibration_seconds(forecasts: Iterable[Forecast], rounds: int) -> float:
    """Return the seconds in which a CPU's calibration samples the keys of `forecasts` that are not measured yet, `rounds` times each."""
    missing = {key: cost for f in forecasts for key, cost in _keys(f).items() if cost.source != MEASURED}
    return rounds * _sample_s(missing)


def _keys(forecast: Forecast) -> dict[str, Cost]:
    """The costs of the forecast's keys that are measured."""
    return {cost.key: cost for task, cost in zip(forecast.plan.every_task, forecast.costs, strict=True) if measurable(task)}


def _sample_s(keys: Mapping[str, Cost]) -> float:
    """Seconds to sample each key once."""
    return sum(cost.warm_s + cost.cold_s + CPU_SAMPLE_S for cost in keys.values())
