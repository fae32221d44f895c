"""Compares the numbers of an executed plan with those of plain PyTorch."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from executors import in_turn
from executors.binding import PLAIN
from executors.program import WARM_UP, Backend
from executors.reference import Hooked, Reference, StaleReference
from executors.tensors import job_tensors
from simulator.model.attention import CUDNN
from simulator.model.built import Built
from simulator.model.checkpoint import choice
from simulator.model.checkpoint.checkpoint import levels_of
from simulator.model.graph import Op
from simulator.model.job import Job
from simulator.model.ops.autocast import GPU, autocast
from simulator.model.ops.mixed import lowered
from simulator.model.user_code import training_step
from simulator.model.whole_mean import BATCH
from simulator.plan.plan import Plan
from simulator.plan.task import BUFFER, CARRIED_KINDS, Operand
from simulator.plan.tensors import Box, box_of, covered, held, seen_as
from simulator.strategies.pipeline.staleness import Staleness, staleness
from traces.documents.comparison import ValidationResult

if TYPE_CHECKING:
    from executors.parallel import Parallel

#: By batch-norm layer, the equal parts of its input, along images, height and width, that have separate statistics.
BatchNormDegrees = tuple[tuple[str, tuple[int, ...]], ...]


class Trained(NamedTuple):
    """How a plan trains: its microbatches (None: those of the job), the staleness of stale parameters, the parts of its batch-norms, and
    the microbatches after which buffers stay changed (empty: all), namely those of the device whose buffers count.
    """

    microbatches: int | None = None
    stale: tuple[tuple[str, Staleness], ...] = ()
    batch_norm: BatchNormDegrees = ()
    lasting: tuple[int, ...] = ()


STEPS = 5
#: The largest error that still counts as the same numbers, by precision. All but fp64 leave room for another order of summation.
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-3, "tf32": 1e-1, "default": 1e-1, "bf16": 1e-1, "mixed": 1e-1, "amp": 1e-1, "amp-fp16": 1e-1}
#: On a GPU, some kernels of cuDNN and PyTorch add in an order that changes from run to run. And a plan that sums in another order rounds
#: differently, which a ReLU or a max-pool close to a tie turns into another number altogether: after some steps of a deep
#: network, gradients may differ by half. A plan may differ from plain PyTorch by this many times the difference of two runs of plain
#: PyTorch (from the same parameters, or from parameters one rounding away), if that is more than the tolerance. Neither explains a
#: difference in the first step, nor one of 1, which is that of gradients of zero.
REPEATS_ALLOWED = 10.0
#: Runs from parameters one rounding away, until one explains the difference: not each of them turns the tie that the plan turned.
NUDGES = 8
NOTHING_RIGHT = 1.0


def steps_to_compare(backend: Backend) -> int:
    """The number of steps to compare: enough for a program of graphs to run two graphs after its prologue."""
    return STEPS if backend.unit == 1 else WARM_UP + 2 * backend.unit


@dataclass(frozen=True)
class Numerics:
    """max_grad_error = max|a − b| / max|g| over all gradients, max_param_error = max|a − b| / max|p| over all parameters.

    The latter is the largest of that and of the same over all optimizer states of a name, and over all buffers of a name. The parameters
    are those of every device that has a copy; either error is infinite if the plan lacks a part of what it should have.

    `reference_grad_error` and `reference_param_error` are the same of a second run of plain PyTorch: on the same device from the same
    state, which on a CPU gives the same numbers, and 0; for a plan whose numbers differ by more than the tolerance, also of runs from
    parameters that are one rounding away (`References.judged`). `first_error` is the larger of the plan's errors after its first step;
    None if that was not compared.
    """

    max_grad_error: float
    max_param_error: float
    reference_grad_error: float = 0.0
    reference_param_error: float = 0.0
    first_error: float | None = None

    def equal(self, precision: str) -> bool:
        """Whether both errors are within the tolerance of the precision.

        Where the first step was compared, its errors must be; the others may then be within the difference of two runs of plain PyTorch.
        """
        tolerance, first = TOLERANCE[precision], self.first_error
        if first is not None and not first <= tolerance:
            return False

        def close(error: float, own: float) -> bool:
            allowed = REPEATS_ALLOWED * own if first is not None and isfinite(own) else 0.0
            return error <= tolerance or (error <= allowed and error < NOTHING_RIGHT)

        return close(self.max_grad_error, self.reference_grad_error) and close(self.max_param_error, self.reference_param_error)

    @staticmethod
    def of_row(row: ValidationResult) -> "Numerics":
        """The numerics that a validation's row states."""

        def stated(error: float | None) -> float:
            return inf if error is None else error

        own = row.reference_grad_error or 0.0, row.reference_param_error or 0.0
        return Numerics(stated(row.max_grad_error), stated(row.max_param_error), *own, row.first_step_error)


def reference(
    job: Job,
    built: Built,
    same_masks: bool,
    backend: Backend | None = None,
    parts: int | None = None,
    stale: Mapping[str, Staleness] | None = None,
    batch_norm: BatchNormDegrees = (),
    fusion: Literal["none", "forward", "backward"] = "none",
    parallel: "Parallel | None" = None,
    capturable: bool = False,
) -> Reference:
    """Plain PyTorch's training loop on the job's own module, which it moves to the device of `backend` (default: the CPU) and trains.

    It is not a copy, because copies lose attributes that a user has attached to a module. `Built.restored` undoes the training.
    `parts` is the number of microbatches or shards into which it splits the batch (default: the job's microbatches). With `same_masks` it
    uses the dropout masks and the form of update of the backend's programs, so that numbers can be compared; this costs time.
    `stale`: train with weights of this staleness, by parameter (`executors.reference`), or of one that is set later. `batch_norm`:
    normalize by parts. `fusion`: hooks update in "forward" or in "backward". `parallel`: as one of several processes, with its part of the
    batch. `capturable`: update in the form that a CUDA graph can replay.
    """
    forms, parts = backend.forms if backend is not None else PLAIN, job.accumulate if parts is None else parts
    whole_mean = job.loss_mean == BATCH and parallel is None  # whose processes each have the mean of their part
    if whole_mean and same_masks and parts > 1 and not any(_couples(op) for op in job.graph(job.batch // parts, parts).ops):
        parts = 1
    if backend is not None and backend.torch_device.type != "cpu":
        built.replace_tensors(lambda tensor: tensor.to(backend.torch_device))
    shares = 1 if parallel is None else parallel.group.size()
    whole = _without_batch(job, built, parts * shares)
    inputs, target, module = built.inputs if not built.keywords else built.keywords, built.target, built.module
    if parallel is not None:
        inputs, target, module = parallel.part(inputs, whole), parallel.part(target, whole), parallel.wrapped(module, parts)
    kind = Hooked if fusion != "none" else Reference if stale is None else StaleReference
    trainer = kind(
        module,
        inputs,
        target,
        loss=built.loss,
        optimizer=job.optimizer,
        form=job.form,
        hyper=job.hyper,
        accumulate=parts,
        whole=whole,
        clip_norm=job.clip_norm,
        dropout_seed=job.seed if same_masks else None,
        draws=forms.draws,
        seed_generator=forms.seed if forms.cuda else None,
        capturable=capturable or (same_masks and forms.capturable),
        rates=job.rates,
        autocast=autocast_of(job, built.module, backend),
        scaler=torch.amp.GradScaler("cpu" if backend is None else backend.torch_device.type) if job.scales_loss else None,
        whole_mean=whole_mean,
    )
    trainer.batch_norm_parts = dict(batch_norm)
    # the numbers are the same, and running statistics would change twice; a lowered module computes again with other parameters
    if job.checkpoint != choice.NONE and not same_masks and not job.lowered_dtype:
        levels = levels_of(job.graph(job.batch // (parts * shares), parts * shares))
        trainer.checkpointed = levels if parallel is None else {f"{parallel.prefix}{name}": level for name, level in levels.items()}
    if isinstance(trainer, Hooked) and fusion != "none":
        return trainer.fuse(fusion)
    return trainer.stale(stale) if stale is not None and isinstance(trainer, StaleReference) else trainer


def _couples(op: Op) -> bool:
    """Whether an op's result for a sample depends on how many others there are."""
    return op.body.random or "batch_norm" in op.name


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


@contextmanager
def deterministic() -> Iterator[None]:
    """A context in which cuDNN uses no kernel whose order of summation changes from run to run."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def compare(job: Job, built: Built, plan: Plan, backend: Backend, expected: "Expected", steps: int = STEPS) -> Numerics:
    """Run `plan` for `steps` steps, or each plan of a run for as many, and compare its numbers with `expected`.

    Everything that plain PyTorch stores is compared, whether the plan has it or not. An error is infinite if the plan has only a part of
    some gradient, parameter, buffer or optimizer state.
    """
    names = {operand.value for operand in plan.gradients.values()}
    count, graph = len(plan.sequence), job.graph()
    plan = plan.lasting(*[steps] * count) if count > 1 else plan
    tensors = job_tensors(job, built, graph)
    with deterministic():
        program = in_turn.load(backend, plan, tensors, job.seed, keep=tuple(sorted(names)))
        program.run(steps * count)
        program.sync()
    fixed = {*built.named_inputs(), *graph.constants}
    before, current = (
        {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items() if name not in fixed} for _ in range(2)
    )
    program.copy_current(current)
    grad_error = _ratio(program.gradient_difference(expected.gradients), expected.gradients)
    param_error = max(
        _ratio(program.parameter_difference(expected.parameters), expected.parameters),
        replace(expected, kept=before | expected.kept).kept_error(current),
    )
    sources = [value.source for value in plan.values.values() if value.kind in CARRIED_KINDS and value.source is not None]
    kept = {name: tensors[name] for name in (*graph.parameters, *(source.value for source in sources))}
    return Numerics(
        grad_error if _have_all(plan.gradient_sources.values(), expected.gradients) else inf,
        param_error if _have_all(sources, kept) else inf,
        expected.repeated_grad_error,
        expected.repeated_param_error,
    )


def _have_all(sources: Iterable[Operand], tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether every element of the job's tensors is in one of the pieces."""
    boxes: dict[str, list[Box]] = {name: [] for name in tensors}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for source in sources:
        if source.value in boxes:
            boxes[source.value].append(box_of(source))
            shapes[source.value] = seen_as(source) or shapes[source.value]
    return all(covered(boxes[name], shape) for name, shape in shapes.items())


@dataclass(frozen=True)
class Expected:
    """Plain PyTorch's gradients of the last step and final parameters, and everything else that it stores: buffers, optimizer state and
    scaler. `kept` has them by the names of `job_tensors`; missing tensors are unchanged since before the first step.
    `repeated_grad_error` and `repeated_param_error`: how far a second run was from them; 0 if there was none, as on the CPU.
    """

    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]
    kept: dict[str, torch.Tensor] = field(default_factory=dict)
    repeated_grad_error: float = 0.0
    repeated_param_error: float = 0.0

    @property
    def finite(self) -> bool:
        return all(bool(tensor.isfinite().all()) for tensor in (*self.gradients.values(), *self.parameters.values()))

    def kept_error(self, actual: Mapping[str, torch.Tensor]) -> float:
        """The largest of max|a − b| / max|b| over all parameters, over the optimizer states of a name, and over the buffers of a name.

        Elements that are the same differ by 0 also where they are not finite, as in a mask of attention. A table that the module only
        reads, and creates again in another size, is not compared.
        """
        differences: dict[str, float] = {}
        largest: dict[str, float] = {}
        for name, expected in self.kept.items():
            if name not in actual or actual[name].shape != expected.shape:
                continue
            kind = "parameters" if name in self.parameters else name.rpartition("::" if "::" in name else ".")[2]
            a, b = (tensor.detach().to("cpu", torch.float64, copy=True) for tensor in (actual[name], expected))
            same = (a == b) | (a.isnan() & b.isnan())
            difference = float((a - b).abs().masked_fill(same, 0.0).max()) if a.numel() else 0.0
            differences[kind] = max(difference, differences.get(kind, 0.0)) if difference == difference else inf
            finite = b.abs().nan_to_num(0.0, 0.0)
            largest[kind] = max(float(finite.max()) if b.numel() else 0.0, largest.get(kind, 0.0))
        return max((differences[kind] / (largest[kind] or 1.0) for kind in differences), default=0.0)

    @staticmethod
    def now(plain: Reference) -> "Expected":
        """What plain PyTorch has now; a step changes none of it."""
        parameters = {name: parameter.clone() for name, parameter in plain.parameters().items()}
        return Expected(plain.gradients(), parameters, parameters | plain.kept())

    @staticmethod
    def of(
        job: Job, built: Built, steps: int = STEPS, backend: Backend | None = None, trained: Sequence[Trained] = (Trained(),)
    ) -> "Expected":
        """Run the reference for `steps` steps on one thread, which sums in the same order as the executor's single-core tasks.

        On a GPU it runs twice, to see how much its runs differ. The module is restored afterwards. Raises SchedcastError with
        the user's line if a step fails: real tensors may show errors that fake ones hide, such as a class out of range.

        `trained`: how each plan of the run to compare trains (`References.key`), one after another for as many steps. Each microbatch has
        its own batch-norm statistics and masks.
        """
        expected = _trained(job, built, steps, backend, trained)
        if backend is None or not backend.forms.cuda:
            return expected
        again = _trained(job, built, steps, backend, trained)
        return replace(
            expected,
            repeated_grad_error=worst_ratio(again.gradients, expected.gradients),
            repeated_param_error=expected.kept_error(again.kept),
        )


class References:
    """What plans are compared with: plain PyTorch's numbers, or those of training with the plan's stale weights.

    Only the newest are retained, since they take as much memory as the model: ask for plans in order of their `key`.
    """

    def __init__(self, job: Job, built: Built, steps: int, backend: Backend | None):
        self._arguments = job, built, steps, backend
        self._newest: tuple[tuple[Trained, ...], Expected] | None = None
        self._first: tuple[tuple[Trained, ...], Expected] | None = None  # after one step

    @staticmethod
    def key(plan: Plan) -> tuple[Trained, ...]:
        """How each plan of the run trains: runs that have it in common have one reference.

        The parts of batch-norms are in the plan's semantics: `"batch_norm_parts": {"features.1": [2, 1, 1]}`.
        """
        degrees = cast(dict[str, list[int]], plan.semantics.get("batch_norm_parts", {}))
        batch_norm = tuple(sorted((layer, tuple(own)) for layer, own in degrees.items()))
        return tuple(
            Trained(
                part.microbatches,
                tuple(sorted((name, each) for name, each in staleness(part).items() if any(each))),
                batch_norm,
                _lasting(part),
            )
            for part in plan.sequence
        )

    def of(self, plan: Plan) -> Expected:
        """The numbers that `plan` should compute. Raises SchedcastError as `Expected.of` does."""
        key = self.key(plan)
        if self._newest is None or self._newest[0] != key:
            self._newest = self._first = None  # free them before the next ones are made
            self._newest = key, Expected.of(*self._arguments, key)
        return self._newest[1]

    def judged(self, plan: Plan, numerics: Numerics, backend: Backend) -> Numerics:
        """The numerics of `plan` with the error of its first step; if only later ones are beyond the tolerance, with how much two runs of
        plain PyTorch differ.

        Rounding grows from step to step, so it does not explain a difference in the first step, which programs of graphs run eagerly.
        """
        job, built, steps, device = self._arguments
        trained = partial(_trained, job, built, backend=device, turns=self.key(plan))
        if self._first is None or self._first[0] != self.key(plan):
            self._first = self.key(plan), trained(steps=1)
        first = compare(job, built, plan, backend, self._first[1], 1)
        if not self._first[1].finite:  # gradients overflow, and a scaler skips the step: its tensors say whether the plan does, too
            first = replace(first, max_grad_error=0.0)
        numerics = replace(numerics, first_error=max(first.max_grad_error, first.max_param_error))
        if numerics.equal(job.precision) or not first.equal(job.precision):
            return numerics
        expected = self.of(plan)
        for toss in range(NUDGES):
            near = trained(steps=steps, nudged=toss)
            numerics = replace(
                numerics,
                reference_grad_error=max(numerics.reference_grad_error, worst_ratio(near.gradients, expected.gradients)),
                reference_param_error=max(numerics.reference_param_error, expected.kept_error(near.kept)),
            )
            if numerics.equal(job.precision):
                break
        return numerics


def _lasting(plan: Plan) -> tuple[int, ...]:
    """The microbatches that change the buffers that count, those of the first device that has them; empty if all do, or nothing changes."""
    sources = {value.source.value for value in plan.values.values() if value.kind == BUFFER and value.source is not None}
    counting = {value.name for value in held(plan, sources)}
    numbers = {task.microbatch for task in plan.tasks if any(operand.value in counting for operand in task.mutates)}
    return () if len(numbers) == plan.microbatches else tuple(sorted(numbers))


def _trained(job: Job, built: Built, steps: int, backend: Backend | None, turns: Sequence[Trained], nudged: int | None = None) -> Expected:
    """The results of one run of plain PyTorch, after which the module is restored. `nudged`: from parameters that are one rounding away,
    up or down as coins of this seed say.
    """
    with built.restored(), training_step(job.batch), deterministic():
        trained = [Trained(*each) for each in turns]
        first, stale = trained[0], any(own.stale for own in trained)
        plain = reference(
            job,
            built,
            True,
            backend=backend,
            parts=first.microbatches,
            stale=dict(first.stale) if stale else None,
            batch_norm=first.batch_norm,
        )
        if nudged is not None:
            _nudge(plain.parameters().values(), nudged)
        torch.set_num_threads(1)
        for number, own in enumerate(trained):
            plain.lasting = own.lasting
            if number:
                plain.split(job.accumulate if own.microbatches is None else own.microbatches)
                plain.batch_norm_parts = dict(own.batch_norm)
                if isinstance(plain, StaleReference):
                    plain.stale(dict(own.stale))
            for _ in range(steps):
                plain.step()
        return Expected.now(plain)


@torch.no_grad()
def _nudge(tensors: Iterable[torch.Tensor], seed: int) -> None:
    """Change each element by the distance between 1 and the next number, relative to it, up or down by the toss of a coin."""
    generator = torch.Generator().manual_seed(seed)
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
