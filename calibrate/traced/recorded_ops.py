"""The recorded ops of a trace that did device work, in the order in which the host issued them.

An op has one name, whatever the plan, a version of PyTorch, or the library that computes it calls it, and in place or not.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from traces.formats.iterations import Iterations
from traces.formats.recording import KERNEL, MEMSET, Operators, Recording, Shape

_CONVOLUTION = ("conv1d", "conv2d", "conv3d", "_convolution", "convolution_overrideable", "cudnn_convolution", "miopen_convolution",
                "thnn_conv2d", "_slow_conv2d_forward", "_conv_depthwise2d", "conv_depthwise3d", "thnn_conv_depthwise2d")  # fmt: skip
_CONVOLUTION_BACKWARD = ("cudnn_convolution_backward", "miopen_convolution_backward", "thnn_conv2d_backward", "_slow_conv2d_backward",
                         "_convolution_double_backward", "thnn_conv_depthwise2d_backward", "_conv_depthwise2d_backward",
                         "convolution_backward_overrideable")  # fmt: skip
_BATCH_NORM = ("batch_norm", "_batch_norm_impl_index", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit",
               "_batch_norm_with_update", "_native_batch_norm_legit_functional")  # fmt: skip
_BATCH_NORM_BACKWARD = ("_batch_norm_impl_index_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward", "batch_norm_backward")
_SAME = {
    **dict.fromkeys(_CONVOLUTION, "convolution"),
    **dict.fromkeys(_CONVOLUTION_BACKWARD, "convolution_backward"),
    **dict.fromkeys(_BATCH_NORM, "native_batch_norm"),
    **dict.fromkeys(_BATCH_NORM_BACKWARD, "native_batch_norm_backward"),
    "layer_norm": "native_layer_norm",
    "rms_norm": "_fused_rms_norm",
    "group_norm": "native_group_norm",
    "_fused_dropout": "native_dropout",
    "_masked_scale": "native_dropout_backward",
    "_cudnn_rnn": "recurrent",
    "_cudnn_rnn_backward": "recurrent_backward",
}
_ATTENTION = re.compile(r"^_?(?:scaled_dot_product|flash|efficient|cudnn)_\w*attention\w*?(_backward)?$|^scaled_dot_product_attention$")
_BACKWARD = re.compile(r"Backward\d*$|^autograd::engine::evaluate_function")
#: Ops that make views: they launch nothing.
VIEWS = frozenset({
    "view", "t", "transpose", "permute", "reshape", "expand", "unsqueeze", "squeeze", "flatten", "select", "slice", "narrow", "view_as",
    "_unsafe_view", "movedim", "unflatten", "split", "chunk", "unbind", "split_with_sizes",
})  # fmt: skip
#: Ops that allocate a result.
ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "zeros", "zeros_like", "new_empty", "new_zeros"})

FORWARD, BACKWARD, UPDATE, GRADIENT, ZEROING = "forward", "backward", "update", "gradient", "zeroing"


def is_aten(name: str) -> bool:
    """Whether an operator is one of PyTorch's own ops."""
    return name.startswith("aten::")


@cache
def bare(name: str) -> str:
    """The op's name without its namespace and overload: `relu_` of `aten::relu_` and of `aten.relu_.default`."""
    return name.removeprefix("aten::") if "::" in name else name.split(".")[1] if name.startswith("aten.") else name


@cache
def common_name(name: str) -> str:
    """The name under which a plan's op and a recorded operator are the same."""
    text = bare(name)
    text = text[:-1] if text.endswith("_") and not text.endswith("__") else text
    attention = _ATTENTION.match(text)
    if attention:
        return "attention_backward" if attention[1] else "attention"
    return _SAME.get(text, text)


def updates_parameters(name: str) -> bool:
    """Whether an op updates parameters, in a recording without the optimizer's annotations."""
    return name.startswith(("aten::_foreach_", "aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad"))


@cache
def phase_within(name: str) -> str | None:
    """The phase of everything that an operator or range of this name encloses; None if the name does not tell."""
    if name.startswith("Optimizer.step#"):
        return UPDATE
    if name.startswith("Optimizer.zero_grad#"):
        return ZEROING
    if name.endswith("AccumulateGrad"):
        return GRADIENT
    return BACKWARD if _BACKWARD.search(name) else None


#: A call that takes longer than this many typical launches waited for the device, for room in its queue or for a lock.
_BLOCKED = 10.0


@dataclass(frozen=True)
class RecordedOp:
    """One op and all device work that it launched. `operator`: its index, the outermost that the plan may mean; -1 if none was recorded.

    `shapes`: those of its tensor arguments with at least one dimension. `works`: indices into the recording's works.
    """

    name: str
    phase: str
    operator: int
    shapes: tuple[Shape, ...]
    works: tuple[int, ...]
    iteration: int
    start_s: float
    end_s: float


class RecordedRun:
    """A recording seen as ops. `wanted`: the common names of the plan's ops."""

    def __init__(self, recording: Recording, iterations: Iterations, wanted: Collection[str]):
        self.recording, self.iterations, self._wanted = recording, iterations, wanted
        self.operators: Operators = recording.operators

    @cached_property
    def ops(self) -> tuple[RecordedOp, ...]:
        """Ops that launched kernels or sets, in order of start."""
        recording = self.recording
        groups: dict[tuple[int, str, str], list[int]] = {}
        for index, work in enumerate(recording.works):
            if work.category in (KERNEL, MEMSET):
                operator = self.operators.of_call.get(work.call, -1) if work.call >= 0 else -1
                node, name, phase = self._placed(operator)
                group = (node, name, phase) if node >= 0 else (-1 - index, work.name, phase)
                groups.setdefault(group, []).append(index)
        ops = []
        for (node, name, phase), works in groups.items():
            iteration = self.iterations.of_work[works[0]]
            if node >= 0:
                one = self.operators.all[node]
                shapes = tuple(shape for shape in one.shapes or () if shape)
                start_s, end_s = one.start_s, one.end_s
            else:
                shapes = ()
                call = recording.works[works[0]].call
                start_s, end_s = recording.calls[call][3:5] if call >= 0 else (recording.works[works[0]].start_s,) * 2
            ops.append(
                RecordedOp(
                    name,
                    phase,
                    operator=node,
                    shapes=shapes,
                    works=tuple(works),
                    iteration=iteration,
                    start_s=start_s,
                    end_s=end_s,
                )
            )
        return tuple(sorted(ops, key=lambda op: (op.start_s, op.works)))

    def _placed(self, operator: int) -> tuple[int, str, str]:
        """The op that an operator's launch belongs to, its common name, and its phase."""
        chain = list(self.operators.ancestors(operator))
        names = [self.operators.all[index].name for index in chain]
        phases = [phase for phase in map(phase_within, reversed(names)) if phase is not None]
        phase = next((p for p in phases if p in (UPDATE, ZEROING, GRADIENT)), phases[0] if phases else FORWARD)
        if phase == FORWARD and not self._annotated and any(map(updates_parameters, names)):
            phase = UPDATE
        aten = [(index, name) for index, name in zip(chain, names, strict=True) if is_aten(name)]
        if phase in (UPDATE, ZEROING, GRADIENT):
            wanted = aten[-1:]
        else:
            wanted = [(index, name) for index, name in aten if common_name(name) in self._wanted][-1:]
        node, name = (wanted or aten[-1:] or [(operator, names[0] if names else "")])[0]
        return node, common_name(name), phase

    def seconds(self, works: Sequence[int]) -> float:
        return sum(self.recording.works[index].duration_s for index in works)

    @cached_property
    def _annotated(self) -> bool:
        return any(phase_within(operator.name) == UPDATE for operator in self.operators.all)

    @cached_property
    def has_shapes(self) -> bool:
        return any(shape for operator in self.operators.all for shape in operator.shapes or ())

    @cached_property
    def blocked_s(self) -> "Blocked":
        """How long calls waited."""
        return Blocked(self.recording)

    def issuing(self, op: RecordedOp, target: str) -> tuple[float, float]:
        """When the host issued an op as the executor calls it: by the operator called `target`, else by the innermost of that name."""
        node, same = op.operator, [op.operator]
        while node >= 0:
            inner = [child for child in self.operators.children.get(node, ()) if common_name(self.operators.all[child].name) == op.name]
            node = inner[0] if len(inner) == 1 else -1
            same += [node] if node >= 0 else []
        exact = [index for index in same if index >= 0 and bare(self.operators.all[index].name) == bare(target)]
        chosen = (exact or same[-1:])[0]
        one = self.operators.all[chosen] if chosen >= 0 else op
        return one.start_s, one.end_s


class Blocked:
    """Time for which calls waited beyond what a launch takes, by interval of the host's time."""

    def __init__(self, recording: Recording):
        lengths = sorted(call.end_s - call.start_s for call in recording.calls if call.kind.value == "launch")
        most_s = _BLOCKED * lengths[len(lengths) // 2] if lengths else float("inf")
        waits = [(call.start_s, call.end_s - call.start_s - most_s) for call in recording.calls if call.end_s - call.start_s > most_s]
        self._waits = sorted(waits)

    def within(self, start_s: float, end_s: float) -> float:
        """Seconds that calls which began within an interval waited."""
        return sum(seconds for begin, seconds in self._waits if start_s <= begin < end_s)
