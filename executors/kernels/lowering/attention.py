"""Attention on CUDA with the kernel that PyTorch chooses, as in F.scaled_dot_product_attention.

The plan's value `logsumexp` is opaque: it contains what the chosen kernel's backward pass takes as its logsumexp, in any shape and strides.
The kernels of flash and memory-efficient attention read it by address, as contiguous rows of T. Those of the CPU's kernel, with which the
plan was captured, are not contiguous.

Context parallelism merges attention to two sets of keys (`simulator.model.division.context`), and backward takes the merged `logsumexp`.
Then the value is what its name says, and a backward kernel gets a copy in the layout that it expects.
"""

import json
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from executors.binding import Binding, Instance
from executors.kernels.lowering.dropout import draw_seed, drop, seed_of
from executors.kernels.ops import SavedResults, second_result
from simulator.plan.bodies.opcall import ATTENTION, drawn_part
from simulator.plan.task import Task
from traces.errors import Code, SchedcastError

FORWARD = ATTENTION
BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
#: The op that makes a merged logsumexp of two.
MERGE = "aten.logaddexp.default"

_aten = torch.ops.aten


class Call(NamedTuple):
    """The arguments of one call. `mask` is added to the scores. Keys and values may have fewer heads than queries.

    `dropout`: the share of weights that the kernel drops. `kernel`: the one that the plan asks for; empty for PyTorch's choice.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float | None
    dropout: float = 0.0
    kernel: str = ""

    @property
    def groups(self) -> int:
        """Query heads per key head."""
        return self.query.size(1) // self.key.size(1)


#: (out, logsumexp, further results that the backward pass takes)
Result = tuple[Tensor, Tensor, tuple]


class Kernel(NamedTuple):
    """One implementation. `backward(grad, call, out, logsumexp, saved)` returns the gradients of query, key and value.

    `row`: a row of its logsumexp, [N, heads, T], is padded to a multiple of this many elements; 0: it has a different logsumexp, or none.
    """

    forward: Callable[[Call], Result]
    backward: Callable[[Tensor, Call, Tensor, Tensor, tuple], tuple[Tensor, ...]]
    row: int = 1


def _flash(call: Call) -> Result:
    out, logsumexp, *saved, _ = _aten._scaled_dot_product_flash_attention.default(
        *call[:3], call.dropout, call.causal, False, scale=call.scale
    )  # fmt: skip
    return out, logsumexp, tuple(saved)


def _flash_backward(grad: Tensor, call: Call, out: Tensor, logsumexp: Tensor, saved: tuple) -> tuple[Tensor, ...]:
    *sequences, state, unused = saved
    differentiate = _aten._scaled_dot_product_flash_attention_backward.default
    return differentiate(grad, *call[:3], out, logsumexp, *sequences, call.dropout, call.causal, state, unused, scale=call.scale)


def _bias(call: Call) -> Tensor | None:
    """The mask in the layout that the efficient kernels need: one row per query, and rows that begin at multiples of 16 elements."""
    if call.mask is None:
        return None
    keys = call.key.size(2)
    mask = call.mask.to(call.query.dtype).expand(*call.mask.shape[:-1], keys)
    if mask.stride(-1) != 1 or any(stride % 16 for stride in mask.stride()[:-1]):
        mask = torch.nn.functional.pad(mask, (0, 16 - keys % 16))[..., :keys]
    return mask.expand(*call.query.shape[:3], keys)


def _efficient(call: Call) -> Result:
    attend = _aten._scaled_dot_product_efficient_attention.default
    out, logsumexp, *saved = attend(*call[:3], _bias(call), True, call.dropout, call.causal, scale=call.scale)
    return out, logsumexp, tuple(saved)


def _efficient_backward(grad: Tensor, call: Call, out: Tensor, logsumexp: Tensor, saved: tuple) -> tuple[Tensor, ...]:
    output_mask = [True, True, True, False]  # no gradient of the mask
    differentiate = _aten._scaled_dot_product_efficient_attention_backward.default
    return differentiate(grad, *call[:3], _bias(call), out, logsumexp, *saved, call.dropout, output_mask, call.causal, scale=call.scale)[:3]


def _cudnn(call: Call) -> Result:
    attend = _aten._scaled_dot_product_cudnn_attention.default
    out, logsumexp, *saved, _ = attend(*call[:4], True, call.dropout, call.causal, False, scale=call.scale)
    return out, logsumexp, tuple(saved)


def _cudnn_backward(grad: Tensor, call: Call, out: Tensor, logsumexp: Tensor, saved: tuple) -> tuple[Tensor, ...]:
    *sequences, seed, offset = saved
    differentiate = _aten._scaled_dot_product_cudnn_attention_backward.default
    return differentiate(
        grad, *call[:3], out, logsumexp, seed, offset, call.mask, *sequences, call.dropout, call.causal, scale=call.scale
    )  # fmt: skip


def _math(call: Call) -> Result:
    """The math form. It returns the attention weights in place of the logsumexp, with dropout before it drops some."""
    if call.dropout:
        scale, root, query, key, value = _factors(_exact(call))
        scores = (query * math.copysign(root, scale)) @ (key.transpose(-2, -1) * root)
        if call.causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(allowed.logical_not(), -math.inf)
        elif call.mask is not None:
            scores = scores + call.mask.to(scores.dtype)
        weights = _aten._safe_softmax.default(scores, -1)
        dropped, keep = _aten.native_dropout.default(weights, call.dropout, True)
        return (dropped @ value).to(call.query.dtype), weights, (keep,)
    options = {"scale": call.scale, "enable_gqa": call.groups > 1}
    return *_aten._scaled_dot_product_attention_math.default(*call[:4], 0.0, call.causal, **options), ()


def _math_backward(grad: Tensor, call: Call, out: Tensor, weights: Tensor, saved: tuple) -> tuple[Tensor, ...]:
    """The gradient of the math form, in autograd's order of operations."""
    dtype = call.query.dtype
    if call.dropout:
        call, grad = _exact(call), grad.to(weights.dtype)
    scale, root, query, key, value = _factors(call)
    query, key = query * math.copysign(root, scale), key.transpose(-2, -1) * root
    grad_weights = grad @ value.transpose(-2, -1)
    used = weights
    if call.dropout:
        grad_weights = _aten.native_dropout_backward.default(grad_weights, saved[0], 1.0 / (1.0 - call.dropout))
        used = drop(weights, saved[0], call.dropout)
    scores = _aten._softmax_backward_data.default(grad_weights, weights, -1, weights.dtype)
    grad_query = (scores @ key.transpose(-2, -1)) * math.copysign(root, scale)
    grad_key = ((query.transpose(-2, -1) @ scores) * root).transpose(-2, -1)
    grad_value = used.transpose(-2, -1) @ grad
    if call.groups > 1:
        grad_key, grad_value = (x.unflatten(1, (-1, call.groups)).sum(2) for x in (grad_key, grad_value))
    return grad_query.to(dtype), grad_key.to(dtype), grad_value.to(dtype)


def _exact(call: Call) -> Call:
    """The call on float32 for 16 bits, as PyTorch's math form computes."""
    if call.query.dtype not in (torch.bfloat16, torch.float16):
        return call
    return call._replace(query=call.query.float(), key=call.key.float(), value=call.value.float())


def _factors(call: Call) -> tuple[float, float, Tensor, Tensor, Tensor]:
    """The scale, the root of its absolute value, and queries, keys and values with as many heads."""
    scale = 1 / math.sqrt(call.query.size(-1)) if call.scale is None else call.scale
    key, value = (x.repeat_interleave(call.groups, 1) if call.groups > 1 else x for x in (call.key, call.value))
    return scale, math.sqrt(abs(scale)), call.query, key, value


def _cpu(call: Call) -> Result:
    attend = _aten._scaled_dot_product_flash_attention_for_cpu.default
    return *attend(*call[:3], 0.0, call.causal, attn_mask=call.mask, scale=call.scale), ()


def _cpu_backward(grad: Tensor, call: Call, out: Tensor, logsumexp: Tensor, saved: tuple) -> tuple[Tensor, ...]:
    differentiate = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return differentiate(grad, *call[:3], out, logsumexp, 0.0, call.causal, attn_mask=call.mask, scale=call.scale)


KERNELS = {
    "math": Kernel(_math, _math_backward, 0),
    "flash": Kernel(_flash, _flash_backward),
    "efficient": Kernel(_efficient, _efficient_backward, 32),
    "cudnn": Kernel(_cudnn, _cudnn_backward, 0),
    "cpu": Kernel(_cpu, _cpu_backward),
}
#: The fused kernels of CUDA by PyTorch's name.
FUSED = {SDPBackend.FLASH_ATTENTION: "flash", SDPBackend.EFFICIENT_ATTENTION: "efficient", SDPBackend.CUDNN_ATTENTION: "cudnn"}


def choice(call: Call) -> str:
    """The name of the kernel that PyTorch chooses for training.

    It is the math form if F.scaled_dot_product_attention would pad the heads for the flash kernel; or the kernel that the plan asks for.
    """
    if call.kernel and call.query.is_cuda:
        return call.kernel
    query, key, value = (x.detach().requires_grad_() for x in call[:3])
    gqa = {"enable_gqa": call.groups > 1}
    backend = SDPBackend(_aten._fused_sdp_choice.default(query, key, value, call.mask, call.dropout, call.causal, scale=call.scale, **gqa))
    name = FUSED.get(backend, "math")
    if name == "flash" and not query.is_cuda:
        return "cpu"
    return "math" if name == "flash" and query.size(-1) % 8 else name


def _merging_choice(call: Call) -> str:
    """The name of the kernel for a call whose result is merged with another's. Raises SchedcastError if PyTorch has only the math form."""
    if call.kernel:
        raise SchedcastError(
            "context parallelism (cp) merges results of attention, and cuDNN's have another form; use --attention pytorch", Code.MODEL
        )
    name = "flash" if (chosen := choice(call)) == "cudnn" else chosen
    if not KERNELS[name].row:
        raise SchedcastError(
            f"context parallelism (cp) merges results of fused attention, and PyTorch has none for {call.query.dtype} with"
            f" {call.query.size(-1)} elements per head; use --precision amp",
            Code.MODEL,
        )
    return name


def _rows(logsumexp: Tensor, row: int) -> Tensor:
    """A merged logsumexp as a kernel expects it: contiguous, in rows of a multiple of `row`."""
    return torch.nn.functional.pad(logsumexp, (0, -logsumexp.size(2) % row), value=math.inf).contiguous()


def _call(tensors: tuple[Tensor, Tensor, Tensor], named: dict, dropout: float = 0.0, causal: bool = False) -> Call:
    return Call(*tensors, named.get("attn_mask"), causal, named.get("scale"), dropout, named.get("kernel", ""))


def _forward(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    if not binding.forms.cuda:
        if task.body.random:
            raise SchedcastError(f"{task.name} drops weights as a GPU's kernel does; make the plan again for this CPU", Code.PLAN)
        return None
    if drawn_part(task.body.kwargs) is not None:
        raise SchedcastError(
            f"{task.name} drops weights within a kernel, whose mask has no parts, so that divided heads are predicted only; set the"
            " dropout of attention to 0",
            Code.MODEL,
        )
    seed = seed_of(task, binding) if task.body.random and binding.forms.draws == "keyed" else None
    fill = binding.arguments(task)
    writes = dict(zip(task.body.outputs, task.writes, strict=True))
    store = binding.results(task)
    saved_results = SavedResults(binding, writes[1].value, FORWARD, BACKWARD)
    merged = any(op.body.target == MERGE and any(o.value == writes[1].value for o in op.inputs) for op in binding.ops)
    kernel_name: str | None = None

    def run(instance: Instance) -> None:
        nonlocal kernel_name
        (query, key, value, *rest), named = fill(instance)
        call = _call((query, key, value), named, *rest)
        if kernel_name is None:
            kernel_name = _merging_choice(call) if merged else choice(call)
        if seed is not None:
            seed(draw_seed(binding.seed, instance.iteration, task.body.draw))
        out, logsumexp, saved = KERNELS[kernel_name].forward(call)
        if merged:
            logsumexp = logsumexp[..., : call.query.size(2)]
        store(instance, (out, logsumexp))
        saved_results.save(instance, (kernel_name, *saved))

    return run


def _backward(task: Task, binding: Binding) -> Callable[[Instance], None] | None:
    """If the plan lacks the forward op, it is run here for its results; see `SavedResults.recomputed`."""
    logsumexp = second_result(task)
    if not binding.forms.cuda or logsumexp is None:
        return None
    fill = binding.arguments(task)
    store = binding.results(task)
    saved_results = SavedResults(binding, logsumexp, FORWARD, BACKWARD)
    merged = any(op.body.target == MERGE and any(o.value == logsumexp for o in op.writes) for op in binding.ops)
    if saved_results.received and json.loads(task.body.args)[6:7] not in ([], [0], [0.0]):
        raise SchedcastError(f"{task.name} needs the mask that attention on another device has drawn; set its dropout to 0", Code.MODEL)
    without_data: tuple | None = None  # the kernel of a merged result, and what its forward saves beyond results: nothing of the data

    def run_forward(call: Call) -> tuple:
        name = choice(call)
        return (name, *KERNELS[name].forward(call))

    def run(instance: Instance) -> None:
        nonlocal without_data
        (grad, query, key, value, out, logsumexp, *rest), named = fill(instance)
        call = _call((query, key, value), named, *rest)
        if merged:
            if without_data is None:
                name = _merging_choice(call)
                without_data = name, KERNELS[name].forward(call)[2]
            name, saved = without_data
            logsumexp = _rows(logsumexp, KERNELS[name].row)
        elif saved_results.has_forward:
            name, *saved = saved_results.take(instance)
        else:
            name, out, logsumexp, saved = saved_results.recomputed(lambda: run_forward(call))
        store(instance, KERNELS[name].backward(grad, call, out, logsumexp, tuple(saved)))

    return run


TARGETS = {FORWARD: _forward, BACKWARD: _backward}
