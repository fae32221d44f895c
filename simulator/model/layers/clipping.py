"""The ops of clipping by the global norm, as one task runs them."""

import json

from simulator.plan.bodies.opcall import OpCall
from simulator.plan.bodies.oplist import Step
from simulator.plan.task import Operand


def clip_steps(gradients: tuple[Operand, ...], largest: float, suffix: str) -> tuple[Step, ...]:
    """Return the ops of torch.nn.utils.clip_grad_norm_ (2-norm, foreach). `suffix` makes the names of their results unique."""
    dtype = gradients[0].dtype
    all_inputs = [{"$": i} for i in range(len(gradients))]

    def scalar(name: str) -> Operand:
        return Operand(f"clip:{name}{suffix}", (), (), dtype)

    def step(target: str, args: list, reads: tuple[Operand, ...], write: Operand) -> Step:
        return Step(OpCall(f"aten.{target}", json.dumps(args, separators=(",", ":"))), reads, (write,))

    norms = tuple(scalar(f"norm{i}") for i in range(len(gradients)))
    stacked = Operand(f"clip:norms{suffix}", (len(gradients),), (1,), dtype)
    total, shifted, inverse, ratio, factor = map(scalar, ("total", "shifted", "inverse", "ratio", "factor"))
    args = json.dumps([all_inputs, 2], separators=(",", ":"))
    scale = json.dumps([[{"$": i + 1} for i in range(len(gradients))], {"$": 0}], separators=(",", ":"))
    return (
        Step(OpCall("aten._foreach_norm.Scalar", args, outputs=tuple(range(len(norms)))), gradients, norms),
        step("stack.default", [all_inputs], norms, stacked),
        step("linalg_vector_norm.default", [{"$": 0}, 2.0], (stacked,), total),
        step("add.Tensor", [{"$": 0}, 1e-6], (total,), shifted),
        step("reciprocal.default", [{"$": 0}], (shifted,), inverse),
        step("mul.Tensor", [{"$": 0}, largest], (inverse,), ratio),
        step("clamp.default", [{"$": 0}, None, 1.0], (ratio,), factor),
        Step(OpCall("aten._foreach_mul_.Tensor", scale, outputs=()), (factor,), (), gradients),
    )
