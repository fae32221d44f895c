"""Does the executed plan compute what plain PyTorch computes?"""

import copy
from dataclasses import dataclass

import torch

from executors.forms import PLAIN
from executors.reference import Reference
from executors.run import WARM_UP, Backend, Executable
from executors.tensors import job_tensors
from simulator.job import Job
from simulator.models.built import Built
from simulator.models.factory import brief
from simulator.plan.plan import Plan
from traces.errors import StepcastError

STEPS = 5
#: Largest error that still counts as the same numbers, by precision. The others leave room for another order of summation.
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-3, "tf32": 1e-1, "bf16": 1e-1}


def steps_to_compare(backend: Backend) -> int:
    """So many that programs of graphs run two graphs after their prologue."""
    return STEPS if backend.unit == 1 else WARM_UP + 2 * backend.unit


@dataclass(frozen=True)
class Numerics:
    """max_grad_error = max|a − b| / max|g| over all gradients, max_param_error = max|a − b| / max|p| over all parameters,
    of every device that has them.
    """

    max_grad_error: float
    max_param_error: float

    def equal(self, precision: str) -> bool:
        """Whether both errors lie within the tolerance of the precision."""
        return max(self.max_grad_error, self.max_param_error) <= TOLERANCE[precision]


def reference(job: Job, built: Built, same_masks: bool, backend: Backend | None = None, parts: int | None = None) -> Reference:
    """Plain PyTorch's training loop on a copy of the job's module, where `backend` computes (default: the CPU).

    `parts`: into how many micro-batches it cuts the batch (default: the job's).
    `same_masks`: to compare numbers with, at a cost in time: with the dropout masks, and the form of update, of the backend's programs.
    """
    forms = backend.forms if backend is not None else PLAIN
    try:
        module = copy.deepcopy(built.module)
    except Exception as error:
        raise StepcastError(
            f"the model cannot be copied ({brief(error)}), and a copy is trained in plain PyTorch; keep such things out of it"
        ) from error
    copied = Built(module, built.inputs, built.keywords, built.target, built.loss)
    if backend is not None and backend.torch_device.type != "cpu":
        copied.replace_tensors(lambda tensor: tensor.to(backend.torch_device))
    return Reference(
        module,
        copied.inputs if not copied.keywords else copied.keywords,
        copied.target,
        copied.loss,
        job.optimizer,
        job.form,
        job.hyper,
        accumulate=job.accumulate if parts is None else parts,
        clip_norm=job.clip_norm,
        dropout_seed=job.seed if same_masks else None,
        draws=forms.draws,
        seed_generator=forms.seed if forms.cuda else None,
        capturable=same_masks and forms.capturable,
    )


def compare(job: Job, built: Built, plan: Plan, backend: Backend, expected: "Expected", steps: int = STEPS) -> Numerics:
    """Run `plan` for `steps` steps and hold it against `expected`."""
    names = {operand.value for operand in plan.gradients.values()}
    program = backend.load(plan, job_tensors(job, built, job.graph()), job.seed, keep=tuple(sorted(names)))
    program.run(steps)
    program.sync()
    parameters = {name: expected.parameters[name] for name in plan.gradients}
    worst = program.parameter_difference(parameters)
    return Numerics(_worst(_gradients(plan, program), expected.gradients), _ratio(worst, parameters))


@dataclass(frozen=True)
class Expected:
    """Gradients of the last step and final parameters of plain PyTorch."""

    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]

    @staticmethod
    def of(job: Job, built: Built, steps: int = STEPS, backend: Backend | None = None, parts: int | None = None) -> "Expected":
        """Run the reference for `steps` steps, on one thread: in the order of summation that the executor's single-core tasks have.

        `parts`: as many as a plan has losses, since batch-norm has statistics per part.
        """
        plain = reference(job, built, same_masks=True, backend=backend, parts=parts)
        torch.set_num_threads(1)
        for _ in range(steps):
            plain.step()
        return Expected(plain.gradients(), {name: p.detach() for name, p in plain.parameters().items()})


def _gradients(plan: Plan, program: Executable) -> dict[str, torch.Tensor]:
    from executors.binding import apply_views

    return {parameter: apply_views(program.kept[operand.value], operand) for parameter, operand in plan.gradients.items()}


def _worst(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """max|a − b| / max|b| over all tensors together; infinite where either is not finite."""
    difference = max(float((found[name] - expected[name]).abs().max()) for name in found)
    return _ratio(difference, {name: expected[name] for name in found})


def _ratio(difference: float, expected: dict[str, torch.Tensor]) -> float:
    largest = max(float(tensor.abs().max()) for tensor in expected.values())
    ratio = difference / largest if largest else difference
    return ratio if ratio == ratio else float("inf")
