"""Random numbers drawn from (seed, step, index), so that every order of execution, and plain PyTorch, draws the same ones.

`index` numbers the draws of one step, from 0, over all its micro-batches. On the CPU, dropout masks are made by `mask`. All other draws,
and on CUDA all of them, are made by the op itself, after the device's generator has been seeded with the draw's key.
"""

import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from hashlib import blake2b
from types import TracebackType
from typing import TypeVar
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode  # the one private name: PyTorch has no public path to it

from simulator.plan.bodies.random_draws import is_random

_T = TypeVar("_T")

_BERNOULLI = torch.ops.aten.bernoulli_.float
_NATIVE_DROPOUT = torch.ops.aten.native_dropout.default


def key(seed: int, step: int, index: int) -> int:
    """The seed of a generator for one draw."""
    return int.from_bytes(blake2b(f"{seed} {step} {index}".encode(), digest_size=8).digest(), "big")


def mask(shape: tuple[int, ...], p: float, seed: int, step: int, index: int, device: torch.device | str = "cpu") -> Tensor:
    """The elements to keep: a bool tensor, False with probability `p`.

    The mask is the same on all devices of one kind, whatever the precision.
    """
    generator = torch.Generator(device)
    generator.manual_seed(key(seed, step, index))
    return torch.rand(shape, generator=generator, dtype=torch.float32, device=device) >= p


def drop(x: Tensor, keep: Tensor, p: float) -> Tensor:
    """Zero the elements that `keep` does not mark and scale the others, as aten.native_dropout does."""
    return x.mul(keep).mul_(0.0 if p == 1.0 else 1.0 / (1.0 - p))


_ATTENTION = functional.scaled_dot_product_attention


class MathAttentionForDropout(TorchFunctionMode):
    """A context in which attention with dropout runs in its math form, because fused kernels draw their own masks.

    The function is also replaced by name, since a function mode is inactive inside the functions that it intercepts
    (F.multi_head_attention_forward).
    """

    def __enter__(self) -> "MathAttentionForDropout":
        """Start replacing."""
        self._patch = patch.object(functional, "scaled_dot_product_attention", _attention)
        self._patch.start()
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        """Stop."""
        self._patch.stop()
        super().__exit__(kind, value, traceback)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Replace attention, and call every other function as it is."""
        return (_attention if func is _ATTENTION else func)(*args, **(kwargs or {}))


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, *args, **kwargs) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH) if dropout_p > 0.0 else nullcontext():
        return _ATTENTION(query, key, value, attn_mask, dropout_p, *args, **kwargs)


_CPU_GENERATOR = threading.Lock()


def run_seeded(draw_key: int, run: Callable[[], _T]) -> _T:
    """Run an op after the CPU's default generator has been seeded for it. One thread at a time: they share the generator."""
    with _CPU_GENERATOR:
        torch.default_generator.manual_seed(draw_key)
        return run()


class DeterministicDraws(TorchDispatchMode):
    """A context in which plain PyTorch draws the random numbers of step `step`. Entering it again continues with the next index.

    It intercepts the draw itself, below autograd, and so covers every module and function with dropout (nn.Dropout, F.dropout2d,
    nn.MultiheadAttention, a recurrent layer on the CPU) and models that draw numbers themselves (torch.randn_like). On the CPU masks are
    replaced, and the generator is seeded before each other draw. On CUDA, and everywhere with `seed_generator`, it is seeded before every
    draw. Within the context, attention with dropout runs in its math form.
    """

    def __init__(self, seed: int, step: int, seed_generator: Callable[[int], None] | None = None):
        super().__init__()
        self.seed, self.step, self.calls, self._seed_generator = seed, step, 0, seed_generator

    def __enter__(self) -> "DeterministicDraws":
        """Start replacing draws."""
        with ExitStack() as stack:
            stack.enter_context(MathAttentionForDropout())
            super().__enter__()
            self._attention = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        """Stop."""
        super().__exit__(kind, value, traceback)
        self._attention.close()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Replace or seed the ops that draw random numbers, and run every other op as it is."""
        kwargs = kwargs or {}
        if not is_random(str(func)) or (func is _NATIVE_DROPOUT and args[2] is False):
            return func(*args, **kwargs)
        index = self.calls
        self.calls += 1
        target = next((item for item in args if isinstance(item, Tensor)), None)
        device = torch.device(kwargs.get("device") or "cpu") if target is None else target.device
        draw_key = key(self.seed, self.step, index)
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
