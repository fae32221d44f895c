"""The ops of clipping by the global norm, as one task runs them."""

import json

from simulator.plan.bodies.opcall import ListedOp, OpCall
from simulator.plan.task import Operand


def clip_steps(gradients: tuple[Operand, ...], largest: float, suffix: str) -> tuple[ListedOp, ...]:
    """Return the ops of torch.nn.utils.clip_grad_norm_ (2-norm, foreach). `suffix` makes the names of their results unique."""
    dtype = gradients[0].dtype
    all_inputs = [{"$": i} for i in range(len(gradients))]

    def scalar(name: str) -> Operand:
        return Operand(f"clip:{name}{suffix}", (), (), dtype)

    def step(target: str, args: list, reads: tuple[Operand, ...], write: Operand) -> ListedOp:
        return ListedOp(OpCall(f"aten.{target}", json.dumps(args, separators=(",", ":"))), reads, (write,))

    norms = tuple(scalar(f"norm{i}") for i in range(len(gradients)))
    stacked = Operand(f"clip:norms{suffix}", (len(gradients),), (1,), dtype)
    total, shifted, inverse, ratio, factor = map(scalar, ("total", "shifted", "inverse", "ratio", "factor"))
    args = json.dumps([all_inputs, 2], separators=(",", ":"))
    scale = json.dumps([[{"$": i + 1} for i in range(len(gradients))], {"$": 0}], separators=(",", ":"))
    return (
        ListedOp(OpCall("aten._foreach_norm.Scalar", args, outputs=tuple(range(len(norms)))), gradients, norms),
        step("stack.default", [all_inputs], norms, stacked),
        step("linalg_vector_norm.default", [{"$": 0}, 2.0], (stacked,), total),
        step("add.Tensor", [{"$": 0}, 1e-6], (total,), shifted),
        step("reciprocal.default", [{"$": 0}], (shifted,), inverse),
        step("mul.Tensor", [{"$": 0}, largest], (inverse,), ratio),
        step("clamp.default", [{"$": 0}, None, 1.0], (ratio,), factor),
        ListedOp(OpCall("aten._foreach_mul_.Tensor", scale, outputs=()), (factor,), (), gradients),
    )


# The ops of torch.amp.GradScaler between backward and the update, as one task runs them.
# The loss is multiplied by a scale, so that small gradients do not vanish in fp16. Gradients are divided by it before the update. If one of
# them is not finite, the update is skipped and the scale halved; after GROWTH_INTERVAL steps without such a gradient it is doubled.


#: The carried tensors of a gradient scaler, a float32 and an int32 scalar: the scale, and the steps since it changed.
SCALE, GROWTH = "grad_scaler::scale", "grad_scaler::growth_tracker"
#: torch.amp.GradScaler's defaults.
INITIAL_SCALE, GROWTH_FACTOR, BACKOFF_FACTOR, GROWTH_INTERVAL = 65536.0, 2.0, 0.5, 2000


def unscale_steps(gradients: tuple[Operand, ...], scale: Operand, growth: Operand, overflow: Operand) -> tuple[ListedOp, ...]:
    """Return the ops that divide `gradients` by `scale`, set `overflow` to 1 if one is not finite, else to 0, and adapt the scale."""
    inverse = Operand(f"{overflow.value}:inverse", (), (), "float32")
    count = len(gradients)
    check = json.dumps([[{"$": i + 1} for i in range(count)], {"$": count + 1}, {"$": 0}], separators=(",", ":"))
    adapt = f'[{{"$":1}},{{"$":2}},{{"$":0}},{GROWTH_FACTOR},{BACKOFF_FACTOR},{GROWTH_INTERVAL}]'
    return (
        ListedOp(OpCall("aten.full.default", "[[],0.0]", '{"dtype":{"dtype":"float32"},"device":{"device":null}}'), (), (overflow,)),
        ListedOp(OpCall("aten.reciprocal.default", '[{"$":0}]'), (scale,), (inverse,)),
        ListedOp(
            OpCall("aten._amp_foreach_non_finite_check_and_unscale_.default", check, outputs=()), (inverse,), (), (*gradients, overflow)
        ),
        ListedOp(OpCall("aten._amp_update_scale_.default", adapt, outputs=()), (overflow,), (), (scale, growth)),
    )
