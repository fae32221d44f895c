"""How long a validation will take, from the predicted step times: told before it begins."""

from collections.abc import Mapping

from calibrate.numerics import STEPS
from calibrate.testbed import Testbed
from executors.run import WARM_UP
from simulator.costs.model import measurable
from simulator.engine.simulation import GRAPH
from simulator.predict.forecast import Forecast

#: Seconds to measure one key on a GPU (a guess), and to sample one on a CPU besides running it twice: clearing the caches and the anchor op
#: (measured on an AMD EPYC).
GPU_KEY_S, CPU_SAMPLE_S = 0.05, 1e-3


def validation_seconds(forecasts: Mapping[str, Forecast], testbed: Testbed, rounds: int, calibrate: bool) -> float:
    """Return the seconds of a validation of `forecasts` by label, which include the baseline, in `rounds` rounds on `testbed`.

    Every program takes steps for its numerics, its peak memory, its warm-up and the rounds. The baseline's program is run twice, and plain
    PyTorch, assumed to take as long, beside them. With `calibrate`, an interleaved testbed samples every key, warm and cold, before
    each program's steps of a round; others measure each missing key once.
    """
    base = forecasts["baseline"]
    unit = base.machine.host(base.plan.devices[0]).graph_iterations if base.timeline.mode == GRAPH else 1
    programs_s = sum(forecast.timeline.step_s for forecast in forecasts.values()) + base.timeline.step_s
    steps = STEPS + (WARM_UP + 1) + (WARM_UP + unit) + rounds * testbed.units_per_round * unit
    plain_steps = STEPS + WARM_UP + rounds * testbed.plain_steps_per_round
    total_s = steps * programs_s + plain_steps * base.timeline.step_s
    if not calibrate:
        return total_s
    keys = {
        cost.key: cost
        for forecast in forecasts.values()
        for task, cost in zip(forecast.plan.every_task, forecast.costs, strict=True)
        if measurable(task)
    }
    if not testbed.interleaved:
        return total_s + GPU_KEY_S * sum(cost.source != "measured" for cost in keys.values())
    samples = 1 + rounds * (len(forecasts) + 1)
    return total_s + samples * sum(cost.warm_s + cost.cold_s + CPU_SAMPLE_S for cost in keys.values())
