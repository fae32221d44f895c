"""A job's real tensors, by the value names that its plans use: made, copied back from a program, and compared with expected ones."""

from collections.abc import Iterable, Mapping

import torch

from executors.binding import Binding, Instance, apply_views
from executors.kernels.update import initial_state
from executors.program import WARM_UP
from simulator.model.built import Built
from simulator.model.graph import TrainingGraph
from simulator.model.job import Job
from simulator.model.ops.aten_json import tensor_of
from simulator.plan.plan import Plan
from simulator.plan.task import BUFFER, PARAMETER, Operand
from simulator.plan.tensors import held
from traces.errors import Code, SchedcastError


class BoundPlan:
    """What programs have in common: their tensors, losses and unfinished iterations. See `executors.program.Executable`."""

    unit = 1
    warm_up = WARM_UP - 1  # the first period has no separate step length
    tracing_overhead: float | None = None

    def __init__(self, binding: Binding, first_iteration: int):
        self.plan, self.binding = binding.plan, binding
        self._instances: dict[int, Instance] = {}
        self._period = 0  # the next period, counted from the last drain
        self._first_iteration = first_iteration  # the iteration of period 0
        self.losses: dict[int, tuple[torch.Tensor, ...]] = {}
        self.kept: dict[str, torch.Tensor] = {}

    @property
    def iterations(self) -> int:
        """Iterations begun so far: the number of the next one."""
        return self._first_iteration + self._period

    def copy_current(self, targets: Mapping[str, torch.Tensor]) -> None:
        copy_current(self.plan, self.binding.carried, targets)

    def parameter_difference(self, expected: Mapping[str, torch.Tensor]) -> float:
        return parameter_difference(self.binding, expected)

    def gradient_difference(self, expected: Mapping[str, torch.Tensor]) -> float:
        return gradient_difference(self.binding, self.kept, expected)


def parameter_difference(binding: Binding, expected: Mapping[str, torch.Tensor]) -> float:
    """The largest |a − b| between any device's copy of a parameter, or piece of one, and its expected value.

    `expected` has the parameters by the job's names. Returns 0 if the binding has none of them, and a value that is not finite if a
    difference is not finite.
    """
    return _largest(
        (binding.carried[name], apply_views(expected[value.source.value].detach(), value.source).to(binding.device(value.device)))
        for name, value in binding.plan.values.items()
        if value.kind == PARAMETER and value.source is not None and value.source.value in expected and name in binding.carried
    )


def gradient_difference(binding: Binding, kept: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """The largest |a − b| between a gradient of the binding's plan and the one that is expected.

    The plan's gradient is carried or among the values `kept`. `expected` has them by the job's names of the parameters. Returns as
    `parameter_difference` does.
    """
    sources, held, values = binding.plan.gradient_sources, {**binding.carried, **kept}, binding.plan.values

    def correct(name: str, operand: Operand) -> torch.Tensor:
        return apply_views(expected[sources[name].value], sources[name]).to(binding.device(values[operand.value].device))

    return _largest(
        (apply_views(held[operand.value], operand), correct(name, operand))
        for name, operand in binding.plan.gradients.items()
        if sources[name].value in expected
    )


def _largest(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The largest |actual − correct| of two tensors on one device; NaN if one is."""
    worst = 0.0
    for actual, correct in pairs:
        difference = float((actual - correct).abs().max()) if actual.numel() else 0.0
        if not difference <= worst:  # also true if the difference is NaN
            worst = difference
        if worst != worst:
            break
    return worst


def copy_current(plan: Plan, carried: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor]) -> None:
    """Copy parameters, buffers and optimizer state, as they are now, into the whole tensors `targets`, by the job's names.

    `carried`: those of the plan, by value name. Every element comes from the first value that has it. Elements that no value has are
    unchanged.
    """
    with torch.no_grad():
        for value in reversed(held(plan, targets)):  # so that the first one is the last to be copied
            if value.source is not None and value.name in carried:
                apply_views(targets[value.source.value].detach(), value.source).copy_(carried[value.name])


def module_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def job_tensors(job: Job, built: Built, graph: TrainingGraph) -> dict[str, torch.Tensor]:
    """Parameters, buffers, constants, inputs, gradient scaler and fresh optimizer state of `built`, by value name. Nothing is copied.

    Raises SchedcastError if `built` is not the model that was captured, because its factory makes a different one each time, and if the
    graph has assumptions.
    """
    if graph.assumptions:
        raise SchedcastError(f"the model can be predicted, not run: {graph.assumptions[0]}; use predict")
    tensors = {**module_tensors(built.module), **built.named_inputs(), **built.scaler}
    _check_same_model(tensors, graph)
    for name, content in graph.constants.items():
        tensors[name] = tensor_of(content, graph.values[name].shape, graph.values[name].dtype)
    for parameter in graph.parameters:
        for state, tensor in initial_state(job.optimizer, tensors[parameter]).items():
            tensors[f"{parameter}::{state}"] = tensor
    return tensors


def _check_same_model(tensors: dict[str, torch.Tensor], graph: TrainingGraph) -> None:
    for name, value in graph.values.items():
        if value.kind not in (PARAMETER, BUFFER) or name in graph.constants:
            continue
        tensor = tensors.get(name)
        if tensor is None or tuple(tensor.shape) != value.shape or tensor.dtype != getattr(torch, value.dtype):
            shown = "missing" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
            raise SchedcastError(
                f"the factory makes another model each time: {name} is {shown}, and was {value.shape} of torch.{value.dtype} when captured;"
                " expected the same shapes every time; remove what is random in it",
                Code.MODEL,
            )
