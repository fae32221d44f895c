"""Compares the numbers of an executed plan with those of plain PyTorch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite
from typing import Literal, cast

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from executors.binding import PLAIN
from executors.reference import Hooked, Reference, StaleReference
from executors.run import WARM_UP, Backend
from executors.tensors import job_tensors
from simulator.model.attention import CUDNN
from simulator.model.built import Built
from simulator.model.checkpoint import choice
from simulator.model.checkpoint.checkpoint import levels_of
from simulator.model.job import Job
from simulator.model.ops.autocast import GPU, autocast
from simulator.model.ops.mixed import lowered
from simulator.model.user_code import training_step
from simulator.plan.pieces import Box, box_of, covered, seen_as
from simulator.plan.plan import Plan
from simulator.strategies.pipeline.staleness import Staleness, staleness
from traces.documents.comparison import ValidationResult

#: By batch-norm layer, the equal parts of its input, along images, height and width, that have statistics of their own.
BatchNormDegrees = tuple[tuple[str, tuple[int, ...]], ...]
#: How a segment trains: its microbatches (None: those of the job), the staleness of stale parameters, and the parts of its batch-norms.
Trained = tuple[int | None, tuple[tuple[str, Staleness], ...], BatchNormDegrees]
PLAIN_TRAINING: tuple[Trained, ...] = ((None, (), ()),)

STEPS = 5
#: The largest error that still counts as the same numbers, by precision. All but fp64 leave room for another order of summation.
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-3, "tf32": 1e-1, "default": 1e-1, "bf16": 1e-1, "mixed": 1e-1, "amp": 1e-1, "amp-fp16": 1e-1}
#: On a GPU, some kernels of cuDNN and PyTorch add in an order that changes from run to run. And a plan that sums in another order rounds
#: differently, which a ReLU or a max-pool close to a tie turns into another number altogether: after some steps of a deep
#: network, gradients may differ by half. A plan may differ from plain PyTorch by this many times the difference of two runs of plain
#: PyTorch (from the same parameters, or from parameters one rounding away), if that is more than the tolerance.
REPEATS_ALLOWED = 10.0


def steps_to_compare(backend: Backend) -> int:
    """The number of steps to compare: enough for a program of graphs to run two graphs after its prologue."""
    return STEPS if backend.unit == 1 else WARM_UP + 2 * backend.unit


@dataclass(frozen=True)
class Numerics:
    """max_grad_error = max|a − b| / max|g| over all gradients, max_param_error = max|a − b| / max|p| over all parameters.

    The parameters are those of every device that has a copy. `reference_grad_error` and `reference_param_error` are the same of a second
    run of plain PyTorch: on the same device from the same state, which on a CPU gives the same numbers, and 0; for a plan whose numbers
    differ by more than the tolerance, also from parameters that are one rounding away (`References.judged`).
    """

    max_grad_error: float
    max_param_error: float
    reference_grad_error: float = 0.0
    reference_param_error: float = 0.0

    def equal(self, precision: str) -> bool:
        """Whether both errors are within the tolerance of the precision, or within the difference of two runs of plain PyTorch."""
        return all(
            error <= max(TOLERANCE[precision], REPEATS_ALLOWED * own if isfinite(own) else 0.0)
            for error, own in (
                (self.max_grad_error, self.reference_grad_error),
                (self.max_param_error, self.reference_param_error),
            )
        )

    @staticmethod
    def of_row(row: ValidationResult) -> "Numerics":
        """The numerics that a validation's row states."""

        def stated(error: float | None) -> float:
            return inf if error is None else error

        own = row.reference_grad_error or 0.0, row.reference_param_error or 0.0
        return Numerics(stated(row.max_grad_error), stated(row.max_param_error), *own)


def reference(
    job: Job,
    built: Built,
    same_masks: bool,
    backend: Backend | None = None,
    parts: int | None = None,
    stale: Mapping[str, Staleness] | None = None,
    batch_norm: BatchNormDegrees = (),
    fusion: Literal["none", "forward", "backward"] = "none",
) -> Reference:
    """Plain PyTorch's training loop on the job's own module, which it moves to the device of `backend` (default: the CPU) and trains.

    It is not a copy, because copies lose what a user has attached to a module. `Built.restored` undoes the training.
    `parts` is the number of microbatches or shards into which it splits the batch (default: the job's microbatches). With `same_masks` it
    uses the dropout masks and the form of update of the backend's programs, so that numbers can be compared; this costs time.
    `stale`: train with weights of this staleness, by parameter (`executors.reference`). `batch_norm`: normalize by parts.
    `fusion`: hooks update in "forward" or in "backward".
    """
    forms, parts = backend.forms if backend is not None else PLAIN, job.accumulate if parts is None else parts
    if backend is not None and backend.torch_device.type != "cpu":
        built.replace_tensors(lambda tensor: tensor.to(backend.torch_device))
    trainer = (StaleReference if stale else Reference if fusion == "none" else Hooked)(
        built.module,
        built.inputs if not built.keywords else built.keywords,
        built.target,
        built.loss,
        job.optimizer,
        job.form,
        job.hyper,
        accumulate=parts,
        whole=_without_batch(job, built, parts),
        clip_norm=job.clip_norm,
        dropout_seed=job.seed if same_masks else None,
        draws=forms.draws,
        seed_generator=forms.seed if forms.cuda else None,
        capturable=same_masks and forms.capturable,
        rates=job.rates,
        autocast=autocast_of(job, built.module, backend),
        scaler=torch.amp.GradScaler("cpu" if backend is None else backend.torch_device.type) if job.scales_loss else None,
    )
    trainer.batch_norm_parts = dict(batch_norm)
    # the numbers are the same, and running statistics would change twice; a lowered module computes again with other parameters
    if job.checkpoint != choice.NONE and not same_masks and not job.lowered_dtype:
        trainer.checkpointed = levels_of(job.graph(job.batch // parts, parts))
    if isinstance(trainer, Hooked) and fusion != "none":
        return trainer.fuse(fusion)
    return trainer.stale(stale) if isinstance(trainer, StaleReference) else trainer


def _without_batch(job: Job, built: Built, parts: int) -> list[torch.Tensor]:
    """The inputs that are as large for a microbatch, of which a step has `parts`, as for the whole batch."""
    if parts == 1 or job.batch % parts:
        return []
    values = job.graph(job.batch // parts, parts).values
    return [tensor for name, tensor in built.named_inputs().items() if values[name].shape == tuple(tensor.shape)]


def autocast_of(job: Job, module: torch.nn.Module, backend: Backend | None = None) -> Callable[[], AbstractContextManager]:
    """A function that returns the context in which plain PyTorch runs the job's forward and loss on the backend's device."""
    own = _casts_of(job, module, backend)
    if job.attention == CUDNN and backend is not None and backend.torch_device.type != "cpu":
        return partial(_with_cudnn, own)
    return own


@contextmanager
def _with_cudnn(context: Callable[[], AbstractContextManager]) -> Iterator[None]:
    with context(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        yield


def _casts_of(job: Job, module: torch.nn.Module, backend: Backend | None) -> Callable[[], AbstractContextManager]:
    if job.lowered_dtype:
        return partial(lowered, module, job.lowered_dtype)
    if job.autocast_dtype is None:
        return nullcontext
    if backend is not None and backend.torch_device.type != "cpu":
        return partial(torch.autocast, backend.torch_device.type, getattr(torch, job.autocast_dtype))
    return partial(autocast, job.autocast_dtype, GPU if backend is not None and backend.forms.cuda else "cpu")


def compare(job: Job, built: Built, plan: Plan, backend: Backend, expected: "Expected", steps: int = STEPS) -> Numerics:
    """Run `plan` for `steps` steps, or each of several segments for as many, and compare its numbers with `expected`.

    The gradient's error is infinite if the plan has the gradient of only a part of some parameter.
    """
    names = {operand.value for operand in plan.gradients.values()}
    parts = len(plan.segments)
    plan = plan.with_repeats(*(steps for _ in plan.segments)) if parts > 1 else plan
    program = backend.load(plan, job_tensors(job, built, job.graph()), job.seed, keep=tuple(sorted(names)))
    program.run(steps * parts)
    program.sync()
    boxes: dict[str, list[Box]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for source in plan.gradient_sources.values():
        boxes.setdefault(source.value, []).append(box_of(source))
        shapes[source.value] = seen_as(source) or tuple(expected.gradients[source.value].shape)
    parameters = {name: expected.parameters[name] for name in boxes}
    worst = program.parameter_difference(parameters)
    gradients = {name: expected.gradients[name] for name in boxes}
    whole = all(covered(boxes[name], shape) for name, shape in shapes.items())
    grad_error = _ratio(program.gradient_difference(gradients), gradients) if whole else inf
    return Numerics(grad_error, _ratio(worst, parameters), expected.repeated_grad_error, expected.repeated_param_error)


@dataclass(frozen=True)
class Expected:
    """Plain PyTorch's gradients of the last step and final parameters.

    `repeated_grad_error` and `repeated_param_error`: how far a second run was from them; 0 if there was none, as on the CPU.
    """

    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]
    repeated_grad_error: float = 0.0
    repeated_param_error: float = 0.0

    @property
    def finite(self) -> bool:
        return all(bool(tensor.isfinite().all()) for tensor in (*self.gradients.values(), *self.parameters.values()))

    @staticmethod
    def of(
        job: Job, built: Built, steps: int = STEPS, backend: Backend | None = None, segments: Sequence[Trained] = PLAIN_TRAINING
    ) -> "Expected":
        """Run the reference for `steps` steps on one thread, which sums in the same order as the executor's single-core tasks.

        On a GPU it runs twice, to see how much its runs differ. The module is restored afterwards. Raises SchedcastError with
        the user's line if a step fails: real tensors may show errors that fake ones hide, such as a class out of range.

        `segments`: how each segment of the plan to compare trains (`References.key`), one after another for as many steps. Each microbatch
        has its own batch-norm statistics and masks.
        """
        expected = _trained(job, built, steps, backend, segments)
        if backend is None or not backend.forms.cuda:
            return expected
        again = _trained(job, built, steps, backend, segments)
        return replace(
            expected,
            repeated_grad_error=worst_ratio(again.gradients, expected.gradients),
            repeated_param_error=worst_ratio(again.parameters, expected.parameters),
        )


class References:
    """What plans are compared with: plain PyTorch's numbers, or those of training with the plan's stale weights.

    Only the newest are kept, since they take as much memory as the model: ask for plans in order of their `key`.
    """

    def __init__(self, job: Job, built: Built, steps: int, backend: Backend | None):
        self._arguments = job, built, steps, backend
        self._newest: tuple[tuple[Trained, ...], Expected] | None = None

    @staticmethod
    def key(plan: Plan) -> tuple[Trained, ...]:
        """How each segment of the plan trains: plans that have it in common have one reference.

        The parts of batch-norms are in the plan's semantics: `"batch_norm_parts": {"features.1": [2, 1, 1]}`.
        """
        degrees = cast(dict[str, list[int]], plan.semantics.get("batch_norm_parts", {}))
        batch_norm = tuple(sorted((layer, tuple(own)) for layer, own in degrees.items()))
        return tuple(
            (part.microbatches, tuple(sorted((name, each) for name, each in staleness(part).items() if any(each))), batch_norm)
            for part in plan.parts
        )

    def of(self, plan: Plan) -> Expected:
        """The numbers that `plan` should compute. Raises SchedcastError as `Expected.of` does."""
        key = self.key(plan)
        if self._newest is None or self._newest[0] != key:
            self._newest = None  # free them before the next ones are made
            self._newest = key, Expected.of(*self._arguments, key)
        return self._newest[1]

    def judged(self, plan: Plan, numerics: Numerics, backend: Backend) -> Numerics:
        """The numerics of `plan`; if they are beyond the tolerance, with how much two runs of plain PyTorch differ.

        Rounding grows from step to step, so it does not explain a difference in the first step. (Graphs of several steps are not cut.)
        """
        job, built, steps, device = self._arguments
        if numerics.equal(job.precision):
            return numerics
        trained = partial(_trained, job, built, backend=device, segments=self.key(plan))
        if backend.unit == 1 and not compare(job, built, plan, backend, trained(steps=1), 1).equal(job.precision):
            return numerics
        expected, near = self.of(plan), trained(steps=steps, nudged=True)
        return replace(
            numerics,
            reference_grad_error=max(numerics.reference_grad_error, worst_ratio(near.gradients, expected.gradients)),
            reference_param_error=max(numerics.reference_param_error, worst_ratio(near.parameters, expected.parameters)),
        )


def _trained(job: Job, built: Built, steps: int, backend: Backend | None, segments: Sequence[Trained], nudged: bool = False) -> Expected:
    """The results of one run of plain PyTorch, after which the module is restored. `nudged`: from parameters that are one rounding away."""
    with built.restored(), training_step(job.batch):
        parts, stale, batch_norm = segments[0]
        plain = reference(job, built, True, backend, parts, dict(stale), batch_norm)
        if nudged:
            _nudge(plain.parameters().values())
        torch.set_num_threads(1)
        for number, (parts, stale, batch_norm) in enumerate(segments):
            if number:
                plain.split(parts)
                plain.batch_norm_parts = dict(batch_norm)
                if isinstance(plain, StaleReference):
                    plain.stale(dict(stale))
            for _ in range(steps):
                plain.step()
        return Expected(plain.gradients(), {name: p.clone() for name, p in plain.parameters().items()})


@torch.no_grad()
def _nudge(tensors: Iterable[torch.Tensor]) -> None:
    """Change each element by the distance between 1 and the next number, relative to it, up or down by the toss of a coin."""
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors:
        signs = 2.0 * torch.randint(2, tensor.shape, generator=generator) - 1.0
        tensor.mul_(1.0 + torch.finfo(tensor.dtype).eps * signs.to(tensor))


def worst_ratio(actual: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> float:
    """max|a − b| / max|b| over all tensors together; infinite if either is not finite."""
    difference = max(float((actual[name] - expected[name]).abs().max()) for name in actual)
    return _ratio(difference, {name: expected[name] for name in actual})


def _ratio(difference: float, expected: dict[str, torch.Tensor]) -> float:
    largest = max(float(tensor.abs().max()) for tensor in expected.values())
    ratio = difference / largest if largest else difference
    return ratio if ratio == ratio else float("inf")
