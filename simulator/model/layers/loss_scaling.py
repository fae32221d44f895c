"""The ops of torch.amp.GradScaler between backward and the update, as one task runs them.

The loss is multiplied by a scale, so that small gradients do not vanish in fp16. Gradients are divided by it before the update. If one of
them is not finite, the update is skipped and the scale halved; after GROWTH_INTERVAL steps without such a gradient it is doubled.
"""

import json

from simulator.plan.bodies.opcall import OpCall
from simulator.plan.bodies.oplist import Step
from simulator.plan.task import Operand

#: The carried tensors of a gradient scaler, a float32 and an int32 scalar: the scale, and the steps since it changed.
SCALE, GROWTH = "grad_scaler::scale", "grad_scaler::growth_tracker"
#: torch.amp.GradScaler's defaults.
INITIAL_SCALE, GROWTH_FACTOR, BACKOFF_FACTOR, GROWTH_INTERVAL = 65536.0, 2.0, 0.5, 2000


def unscale_steps(gradients: tuple[Operand, ...], scale: Operand, growth: Operand, overflow: Operand) -> tuple[Step, ...]:
    """Return the ops that divide `gradients` by `scale`, set `overflow` to 1 if one is not finite, else to 0, and adapt the scale."""
    inverse = Operand(f"{overflow.value}:inverse", (), (), "float32")
    count = len(gradients)
    check = json.dumps([[{"$": i + 1} for i in range(count)], {"$": count + 1}, {"$": 0}], separators=(",", ":"))
    adapt = f'[{{"$":1}},{{"$":2}},{{"$":0}},{GROWTH_FACTOR},{BACKOFF_FACTOR},{GROWTH_INTERVAL}]'
    return (
        Step(OpCall("aten.full.default", "[[],0.0]", '{"dtype":{"dtype":"float32"},"device":{"device":null}}'), (), (overflow,)),
        Step(OpCall("aten.reciprocal.default", '[{"$":0}]'), (scale,), (inverse,)),
        Step(OpCall("aten._amp_foreach_non_finite_check_and_unscale_.default", check, outputs=()), (inverse,), (), (*gradients, overflow)),
        Step(OpCall("aten._amp_update_scale_.default", adapt, outputs=()), (overflow,), (), (scale, growth)),
    )
