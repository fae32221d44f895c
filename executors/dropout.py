"""Dropout masks drawn from (seed, step, index), so that every order of execution, and plain PyTorch, drops the same elements.

`index` numbers the masks that the forward passes of one step draw, from 0, over all its micro-batches. On CUDA the fused kernels draw the
masks, after the device's generator has been seeded with the draw's key.
"""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from hashlib import blake2b
from types import TracebackType
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode  # the one private name: PyTorch has no public path to it

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


class DeterministicDropout(TorchDispatchMode):
    """A context in which plain PyTorch draws the masks of step `step`. Entering it again continues with the next index.

    It intercepts the draw itself, below autograd, and so covers every module and function with dropout: nn.Dropout, F.dropout2d,
    nn.MultiheadAttention, a recurrent layer on the CPU. On the CPU masks are replaced. On CUDA, and everywhere with `seed_generator`, the
    generator is seeded before each draw and the op runs unchanged. Within the context, attention with dropout runs in its math form.
    """

    def __init__(self, seed: int, step: int, seed_generator: Callable[[int], None] | None = None):
        super().__init__()
        self.seed, self.step, self.calls, self._seed_generator = seed, step, 0, seed_generator

    def __enter__(self) -> "DeterministicDropout":
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
        """Replace or seed the two ops that draw masks, and run every other op as it is."""
        draws = func is _BERNOULLI or (func is _NATIVE_DROPOUT and args[2] is not False)
        if not draws:
            return func(*args, **(kwargs or {}))
        target, index = args[0], self.calls
        self.calls += 1
        seed_generator = self._seed_generator or (
            torch.cuda.default_generators[target.device.index].manual_seed if target.is_cuda else None
        )
        if seed_generator is not None:
            seed_generator(key(self.seed, self.step, index))
            return func(*args, **(kwargs or {}))
        if func is _BERNOULLI:  # F.dropout on the CPU; its argument is the probability to keep an element
            keep = args[1] if len(args) > 1 else 0.5  # default arguments are not passed here
            return target.copy_(mask(target.shape, 1.0 - keep, self.seed, self.step, index, target.device))
        keep = mask(target.shape, args[1], self.seed, self.step, index, target.device)
        return drop(target, keep, args[1]), keep
