"""Dropout masks drawn from (seed, step, index), so that any order of execution, and plain PyTorch, drop the same elements.

`index` counts the random masks drawn by the forward passes of one step, from 0, over all its micro-batches. On CUDA the fused kernels
draw the masks, after the device's generator was seeded with the draw's key.
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
    """What a generator is seeded with for one draw."""
    return int.from_bytes(blake2b(f"{seed} {step} {index}".encode(), digest_size=8).digest(), "big")


def mask(shape: tuple[int, ...], p: float, seed: int, step: int, index: int, device: torch.device | str = "cpu") -> Tensor:
    """A bool tensor, False with probability `p`: the elements to keep. The same on one kind of device, whatever the precision."""
    generator = torch.Generator(device)
    generator.manual_seed(key(seed, step, index))
    return torch.rand(shape, generator=generator, dtype=torch.float32, device=device) >= p


def drop(x: Tensor, keep: Tensor, p: float) -> Tensor:
    """Zero what `keep` does not hold and scale the rest, as aten.native_dropout does."""
    return x.mul(keep).mul_(0.0 if p == 1.0 else 1.0 / (1.0 - p))


_ATTENTION = functional.scaled_dot_product_attention


class MathWhereAttentionDrops(TorchFunctionMode):
    """While it is entered, attention that drops its weights runs in its math form: fused kernels draw their own masks.

    The function is replaced by name too, since a function mode is off inside functions it was handed (F.multi_head_attention_forward).
    """

    def __enter__(self) -> "MathWhereAttentionDrops":
        """Start replacing."""
        self._patch = patch.object(functional, "scaled_dot_product_attention", _attention)
        self._patch.start()
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        """Stop."""
        self._patch.stop()
        super().__exit__(kind, value, traceback)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Replace attention, pass on everything else."""
        return (_attention if func is _ATTENTION else func)(*args, **(kwargs or {}))


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, *args, **kwargs) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH) if dropout_p > 0.0 else nullcontext():
        return _ATTENTION(query, key, value, attn_mask, dropout_p, *args, **kwargs)


class DeterministicDropout(TorchDispatchMode):
    """While it is entered, plain PyTorch draws the masks of step `step`; entering it again goes on with the next index.

    It reaches the draw itself, below autograd, and so covers every module and function that drops: nn.Dropout, F.dropout2d,
    nn.MultiheadAttention, a recurrent layer on the CPU. On the CPU masks are replaced. On CUDA, and everywhere with `seed_generator`, the
    generator is seeded before each draw and the op runs as it is. Attention that drops its weights runs in its math form meanwhile.
    """

    def __init__(self, seed: int, step: int, seed_generator: Callable[[int], None] | None = None):
        super().__init__()
        self.seed, self.step, self.calls, self._seed_generator = seed, step, 0, seed_generator

    def __enter__(self) -> "DeterministicDropout":
        """Start replacing draws."""
        with ExitStack() as stack:
            stack.enter_context(MathWhereAttentionDrops())
            super().__enter__()
            self._attention = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        """Stop."""
        super().__exit__(kind, value, traceback)
        self._attention.close()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Take charge of the two ops that draw masks; run every other op as it is."""
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
        if func is _BERNOULLI:  # F.dropout on the CPU; its argument is the probability to keep
            keep = args[1] if len(args) > 1 else 0.5  # a default argument is not passed on
            return target.copy_(mask(target.shape, 1.0 - keep, self.seed, self.step, index, target.device))
        keep = mask(target.shape, args[1], self.seed, self.step, index, target.device)
        return drop(target, keep, args[1]), keep
