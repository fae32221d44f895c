"""Contexts in which plain PyTorch computes what plans compute: the random numbers of keyed draws, and batch-norm of parts of its input."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace, TracebackType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm  # the one private name: the base class of all batch-norm layers
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode  # the one private name: PyTorch has no public path to it

from executors.kernels.lowering.attention import Call
from executors.kernels.lowering.attention import choice as choice_of
from executors.kernels.lowering.dropout import draw_seed, drop, mask, run_seeded
from simulator.model.checkpoint import choice
from simulator.model.checkpoint.rewrite import keeping
from simulator.plan.bodies.opcall import is_random
from traces.errors import Code, SchedcastError

#: The dimensions along which an input is divided: images, height and width. Channels have separate statistics anyway.
_DIMENSIONS = (0, 2, 3)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread for an op."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def batch_norm_by_parts(module: nn.Module, degrees: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """A context in which some batch-norm layers of a module normalize each part of their input separately.

    `degrees`: by path of a layer, the number of equal parts along images, height and width. Running statistics are those of the first part.
    Raises SchedcastError if a path is not that of a batch-norm layer.
    """
    modules = dict(module.named_modules())
    for path in degrees:
        if not isinstance(modules.get(path), _BatchNorm):
            raise SchedcastError(
                f"{path} is no batch-norm layer of the model, so plain PyTorch cannot normalize parts there; make it an nn.BatchNorm,"
                " or synchronize the statistics",
                Code.MODEL,
            )
    for path, own in degrees.items():
        modules[path].forward = partial(_by_parts, modules[path], modules[path].forward, tuple(own))
    try:
        yield
    finally:
        for path in degrees:
            del modules[path].forward


def _by_parts(layer: _BatchNorm, whole: Callable[[Tensor], Tensor], degrees: Sequence[int], x: Tensor) -> Tensor:
    if not layer.training:
        return whole(x)

    def alone(part: Tensor) -> Tensor:
        return functional.batch_norm(part, None, None, weight=layer.weight, bias=layer.bias, training=True, momentum=0.0, eps=layer.eps)

    normalize = chain([whole], repeat(alone))  # the first part updates the running statistics

    def joined(part: Tensor, divided: Sequence[tuple[int, int]]) -> Tensor:
        if not divided:
            return next(normalize)(part)
        (dim, degree), *inner = divided
        return torch.cat([joined(chunk, inner) for chunk in part.chunk(degree, dim)], dim)

    return joined(x, [(dim, degree) for dim, degree in zip(_DIMENSIONS, degrees, strict=False) if degree > 1])


@contextmanager
def checkpointing(module: nn.Module, levels: Mapping[str, str]) -> Iterator[None]:
    """A context in which modules are checkpointed as in users' code, by `torch.utils.checkpoint`.

    `levels`: by path of a module, "full", or "selective" for PyTorch's selective checkpointing with the policy of
    `simulator.model.checkpoint`.
    """
    layers = [module.get_submodule(path) for path in levels]
    before = [vars(layer).get("forward") for layer in layers]
    for layer, level in zip(layers, levels.values(), strict=True):
        how: dict[str, Any] = {"context_fn": _selective_contexts} if level == choice.SELECTIVE else {}
        layer.forward = partial(checkpoint.checkpoint, layer.forward, use_reentrant=False, **how)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            if own is None:
                del layer.forward
            else:
                layer.forward = own


def _selective_contexts() -> Any:
    keeps = {False: keeping(), True: keeping()}

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> checkpoint.CheckpointPolicy:
        kept = keeps[context.is_recompute](str(op))
        return checkpoint.CheckpointPolicy.MUST_SAVE if kept else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    return checkpoint.create_selective_checkpoint_contexts(policy)


_BERNOULLI = torch.ops.aten.bernoulli_.float
_NATIVE_DROPOUT = torch.ops.aten.native_dropout.default
_ATTENTION = functional.scaled_dot_product_attention
#: CUDA's fused kernels of attention, and the position of the share of weights that they drop.
_DROPOUT_OF_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default: 3,
    torch.ops.aten._scaled_dot_product_efficient_attention.default: 5,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default: 5,
}
_REENTRANT, _NOT_REENTRANT = checkpoint.CheckpointFunction, checkpoint._checkpoint_without_reentrant_generator


class MathAttentionForDropout(TorchFunctionMode):
    """A context in which attention with dropout runs in its math form if plans run that, since every kernel draws different masks.

    The function is also replaced by name, since a function mode is inactive inside the functions that it intercepts
    (F.multi_head_attention_forward).
    """

    def __enter__(self) -> "MathAttentionForDropout":
        self._patch = patch.object(functional, "scaled_dot_product_attention", _attention)
        self._patch.start()
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._patch.stop()
        super().__exit__(kind, value, traceback)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Replace attention, and call every other function as it is."""
        return (_attention if func is _ATTENTION else func)(*args, **(kwargs or {}))


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False) -> Tensor:
    fused = query.is_cuda and query.dim() == 4 and not (attn_mask is not None and attn_mask.requires_grad)
    math = not fused or choice_of(Call(query, key, value, mask=attn_mask, causal=is_causal, scale=scale, dropout=dropout_p)) == "math"
    with sdpa_kernel(SDPBackend.MATH) if dropout_p > 0.0 and math else nullcontext():
        return _ATTENTION(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call draws random numbers."""
    if func in _DROPOUT_OF_ATTENTION:
        at = _DROPOUT_OF_ATTENTION[func]
        return (args[at] if len(args) > at else kwargs.get("dropout_p", 0.0)) > 0.0
    return is_random(str(func)) and not (func is _NATIVE_DROPOUT and args[2] is False)


class DeterministicDraws(TorchDispatchMode):
    """A context in which plain PyTorch draws the random numbers of step `step`. Entering it again continues with the next index.

    It intercepts the draw itself, below autograd, and so covers every module and function with dropout (nn.Dropout, F.dropout2d,
    nn.MultiheadAttention, a recurrent layer on the CPU) and models that draw numbers themselves (torch.randn_like). On the CPU masks are
    replaced, and the generator is seeded before each other draw. On CUDA, and everywhere with `seed_generator`, it is seeded before every
    draw, also before a fused kernel of attention with dropout. A function that the model checkpoints within the context
    draws the numbers of its first run when backward runs it again.
    """

    def __init__(self, seed: int, step: int, seed_generator: Callable[[int], None] | None = None):
        super().__init__()
        self.seed, self.step, self.calls, self._seed_generator = seed, step, 0, seed_generator

    def __enter__(self) -> "DeterministicDraws":
        with ExitStack() as stack:
            stack.enter_context(MathAttentionForDropout())
            stack.enter_context(patch.object(checkpoint, "CheckpointFunction", SimpleNamespace(apply=self._reentrant)))
            stack.enter_context(patch.object(checkpoint, "_checkpoint_without_reentrant_generator", self._not_reentrant))
            super().__enter__()
            self._patches = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        super().__exit__(kind, value, traceback)
        self._patches.close()

    def _reentrant(self, function: Callable, preserve_rng_state: bool, *args: Any) -> Any:
        return _REENTRANT.apply(self._drawing_again(function, runs=1) if preserve_rng_state else function, preserve_rng_state, *args)

    def _not_reentrant(self, function: Callable, preserve_rng_state: bool = True, *rest: Any, **named: Any) -> Any:
        return _NOT_REENTRANT(self._drawing_again(function) if preserve_rng_state else function, preserve_rng_state, *rest, **named)

    def _drawing_again(self, function: Callable, runs: int = 0) -> Callable:
        """The function, which draws the numbers that follow from here again after `runs` runs."""
        first, left = self.calls, iter(range(runs))

        def run(*args: Any, **kwargs: Any) -> Any:
            if next(left, None) is not None:
                return function(*args, **kwargs)
            calls, self.calls = self.calls, first
            try:
                with self:
                    return function(*args, **kwargs)
            finally:
                self.calls = calls

        return run

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Replace or seed the ops that draw random numbers, and run every other op as it is."""
        kwargs = kwargs or {}
        if not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        index = self.calls
        self.calls += 1
        target = next((item for item in args if isinstance(item, Tensor)), None)
        device = torch.device(kwargs.get("device") or "cpu") if target is None else target.device
        draw_key = draw_seed(self.seed, self.step, index)
        seed_generator = self._seed_generator or (_cuda_generator(device).manual_seed if device.type == "cuda" else None)
        if seed_generator is not None:
            seed_generator(draw_key)
            return func(*args, **kwargs)
        if func not in (_BERNOULLI, _NATIVE_DROPOUT):
            return run_seeded(draw_key, lambda: func(*args, **kwargs))
        if func is _BERNOULLI:  # F.dropout on the CPU; its argument is the probability to keep an element
            keep = args[1] if len(args) > 1 else 0.5  # default arguments are not passed here
            return target.copy_(mask(target.shape, 1.0 - keep, self.seed, self.step, index, target.device))
        keep = mask(target.shape, args[1], self.seed, self.step, index, target.device)
        return drop(target, keep, args[1]), keep


def _cuda_generator(device: torch.device) -> torch.Generator:
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
