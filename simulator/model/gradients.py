"""The ops of clipping by the global norm, as one task runs them."""

import json

from simulator.plan.bodies.opcall import ListedOp, OpCall
from simulator.plan.task import Operand
from simulator.plan.tensors import viewed


def clip_steps(gradients: tuple[Operand, ...], largest: float, suffix: str) -> tuple[ListedOp, ...]:
    """Return the ops of torch.nn.utils.clip_grad_norm_ (2-norm, foreach). `suffix` makes the names of their results unique."""
    steps, total = _norm_steps(gradients, suffix)
    return (*steps, *_scale_steps(gradients, total, largest, suffix))


def square_steps(gradients: tuple[Operand, ...], square: Operand, suffix: str) -> tuple[ListedOp, ...]:
    """Return the ops that make the square of the 2-norm of some gradients, of shape (1,), which can be summed over devices."""
    if not gradients:
        kwargs = f'{{"dtype":{{"dtype":"{square.dtype}"}},"device":{{"device":null}}}}'
        return (ListedOp(OpCall("aten.full.default", "[[1],0.0]", kwargs), (), (square,)),)
    steps, total = _norm_steps(gradients, suffix)
    return (*steps, _step("mul.Tensor", [{"$": 0}, {"$": 0}], viewed(total, (1,), (1,), "aten.unsqueeze.default", 0), square))


def scale_steps(gradients: tuple[Operand, ...], square: Operand, largest: float, suffix: str) -> tuple[ListedOp, ...]:
    """Return the ops that scale some gradients as `clip_steps` does, if `square` is that of the norm of all."""
    total = Operand(f"clip:root{suffix}", (1,), (1,), square.dtype)
    root = _step("sqrt.default", [{"$": 0}], square, total)
    return (root, *_scale_steps(gradients, viewed(total, (), (), "aten.select.int", 0, 0), largest, suffix))


def _step(target: str, args: list, read: Operand, write: Operand) -> ListedOp:
    return ListedOp(OpCall(f"aten.{target}", json.dumps(args, separators=(",", ":"))), (read,), (write,))


def _norm_steps(gradients: tuple[Operand, ...], suffix: str) -> tuple[tuple[ListedOp, ...], Operand]:
    """The ops of the 2-norm of all gradients together, and their result."""
    dtype, count = gradients[0].dtype, len(gradients)
    all_inputs = [{"$": i} for i in range(count)]
    norms = tuple(Operand(f"clip:norm{i}{suffix}", (), (), dtype) for i in range(count))
    stacked, total = Operand(f"clip:norms{suffix}", (count,), (1,), dtype), Operand(f"clip:total{suffix}", (), (), dtype)
    args = json.dumps([all_inputs, 2], separators=(",", ":"))
    steps = (
        ListedOp(OpCall("aten._foreach_norm.Scalar", args, outputs=tuple(range(count))), gradients, norms),
        ListedOp(OpCall("aten.stack.default", json.dumps([all_inputs], separators=(",", ":"))), norms, (stacked,)),
        _step("linalg_vector_norm.default", [{"$": 0}, 2.0], stacked, total),
    )
    return steps, total


def _scale_steps(gradients: tuple[Operand, ...], total: Operand, largest: float, suffix: str) -> tuple[ListedOp, ...]:
    """The ops that multiply gradients whose 2-norm is `total` so that it is at most `largest`."""
    shifted, inverse, ratio, factor = (
        Operand(f"clip:{name}{suffix}", (), (), total.dtype) for name in ("shifted", "inverse", "ratio", "factor")
    )
    steps = (
        _step("add.Tensor", [{"$": 0}, 1e-6], total, shifted),
        _step("reciprocal.default", [{"$": 0}], shifted, inverse),
        _step("mul.Tensor", [{"$": 0}, largest], inverse, ratio),
        _step("clamp.default", [{"$": 0}, None, 1.0], ratio, factor),
    )
    if not gradients:
        return steps
    scale = json.dumps([[{"$": i + 1} for i in range(len(gradients))], {"$": 0}], separators=(",", ":"))
    return (*steps, ListedOp(OpCall("aten._foreach_mul_.Tensor", scale, outputs=()), (factor,), (), gradients))


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
