"""One operation: an aten op, or one of a recurrent layer."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal, NamedTuple

from simulator.plan.bodies.op_class import WITH_PRODUCTS, kernels, op_class, work_of
from simulator.plan.keys import geometry, read_geometry
from simulator.plan.ops import row
from simulator.plan.task import Body, HasOperands, Operand, OpName, Task, Value, Work

# Ops that draw random numbers. Does not import torch.


def is_random(target: str) -> bool:
    """Whether `target` is an op, `aten.NAME.OVERLOAD`, that draws random numbers."""
    return target.startswith("aten.") and row(target).draws


# Parts of dropout masks: an op that works on a box of a tensor draws that box of the whole tensor's mask.
# The part is in the op's named arguments: `{"part": {"of": [8, 10], "box": [[4, 8], [0, 10]]}}` draws the mask of a tensor [8, 10] and
# keeps its last 4 rows. So all parts together have the mask that one op on the whole tensor would draw.


#: The op that converts a tensor to another type.
CAST = "aten._to_copy.default"
#: The only op that can draw a part.
DROPOUT = "aten.native_dropout.default"
#: Attention as one op. With dropout it draws within the kernel, and no part: such a part is predicted only.
ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu.default"


class DrawnPart(NamedTuple):
    """The shape of the whole mask, and (first, end) of the part in each dimension."""

    of: tuple[int, ...]
    box: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the part."""
        return tuple(end - first for first, end in self.box)

    @property
    def fits(self) -> bool:
        """Whether the part lies within the whole."""
        return len(self.of) == len(self.box) and all(0 <= first <= end <= n for (first, end), n in zip(self.box, self.of, strict=True))


def drawn_part(kwargs: str) -> DrawnPart | None:
    """The part in an op's named arguments, which are JSON text; None for an op that draws all it returns."""
    if '"part"' not in kwargs:
        return None
    part = json.loads(kwargs)["part"]
    return DrawnPart(tuple(part["of"]), tuple((first, end) for first, end in part["box"]))


def without_part(kwargs: str) -> str:
    """An op's named arguments, as JSON text, without the part."""
    if '"part"' not in kwargs:
        return kwargs
    return json.dumps({name: item for name, item in json.loads(kwargs).items() if name != "part"}, separators=(",", ":"))


def kernel_of(kwargs: str) -> str:
    """The kernel that an op's named arguments (JSON text) select, beyond the arguments of the op: that of attention; empty if none."""
    return json.loads(kwargs).get("kernel", "") if '"kernel"' in kwargs else ""


def with_kernel(body: "OpCall", kernel: str) -> "OpCall":
    """The op that asks for a kernel."""
    return replace(body, kwargs=json.dumps({**json.loads(body.kwargs), "kernel": kernel}, separators=(",", ":")))


@dataclass(frozen=True, slots=True)
class OpCall(Body):
    """Call `target` (such as `aten.mm.default`) with arguments given as JSON text.

    In `args` and `kwargs`, `{"$": i}` stands for operand i of the task's `reads + mutates`, and `{"dtype": "float32"}` and the like for
    values that JSON cannot express. `kwargs` may also name the part of a mask that the op draws (`drawn_part`), or the kernel that runs it
    on a GPU (`kernel_of`). `outputs[k]` is the
    position of the k-th write among the op's results. `flops` and `launches` (kernels, or op calls on a CPU) are those counted at capture.
    `draw` is the number of the op's random draw among those of a step of plain PyTorch. So an op draws the same numbers in every issue
    order, and ops that draw parts of one mask share one number.
    """

    target: OpName
    args: str = "[]"
    kwargs: str = "{}"
    outputs: tuple[int, ...] = (0,)
    flops: float = 0.0
    launches: int = 1
    draw: int = 0
    kind: Literal["op"] = "op"

    @classmethod
    def cast(cls, dtype: str) -> "OpCall":
        """The call that converts what it reads to a type."""
        return cls(CAST, '[{"$":0}]', json.dumps({"dtype": {"dtype": dtype}}, separators=(",", ":")))

    @property
    def op(self) -> str:
        """The op."""
        return self.target

    @property
    def is_copy(self) -> bool:
        """Whether it clones."""
        return self.target == "aten.clone.default"

    @property
    def has_products(self) -> bool:
        """Whether it is a matrix product or a recurrent layer. Convolutions are cuDNN's."""
        return op_class(self.target) in WITH_PRODUCTS

    @property
    def opaque(self) -> tuple[int, ...]:
        """The positions of the results that are stored as they come, since only the op's own backward op reads them."""
        return row(self.target).opaque

    @property
    def random(self) -> bool:
        """Whether it draws random numbers. Dropout outside training draws none, and so does attention without dropout."""
        if self.target == ATTENTION:
            return json.loads(self.args)[3:4] not in ([], [0], [0.0])
        return is_random(self.target) and (self.target != DROPOUT or json.loads(self.args)[2] is not False)

    @property
    def loop_length(self) -> int:
        """The kernels of an op that has several, such as those of a recurrent layer's steps."""
        return self.launches

    @property
    def as_measured(self) -> "OpCall":
        """The op without the part of a mask that it draws."""
        return replace(self, kwargs=without_part(self.kwargs)) if drawn_part(self.kwargs) else self

    def key(self, task: HasOperands) -> str:
        """Target, operand geometry and every other argument. A part of a mask costs what a whole mask of the part's shape costs."""
        shapes, kwargs = "|".join(map(geometry, task.inputs)), without_part(self.kwargs)
        return f"{self.target}|{shapes}|{self.args}{'' if kwargs == '{}' else kwargs}"

    def least_kernels(self, device_kind: str) -> int:
        """The launches; a backward op of dX and dW has two kernels on every device."""
        return self.launches * kernels(self.target, self.args)

    def work(self, task: HasOperands) -> Work:
        """FLOPs from capture; bytes of every operand read (as often as kernels read it), mutated (twice) and written."""
        return work_of(task, self.target, self.args, self.flops)

    def faults(self, task: HasOperands, values: Mapping[str, Value]) -> Iterator[str]:
        """Why the part of a mask that the op draws does not fit its operands."""
        part = drawn_part(self.kwargs)
        if part is None:
            return
        if self.target == ATTENTION and self.random:
            return
        if self.target != DROPOUT:
            yield f"draws a part of a mask with {self.target}; only {DROPOUT} can"
        elif not part.fits or part.shape != task.inputs[0].shape:
            yield f"draws the part {list(part.box)} of a mask {part.of} for an operand of shape {task.inputs[0].shape}"


# Several ops as one task: a pipeline stage, or short CPU ops merged by a plan pass.


@dataclass(frozen=True, slots=True)
class ListedOp:
    """One op of an OpList. Its operands name the task's values, or values that live only inside the list.

    Field names are those of Task, so that an op's body can take either.
    """

    body: OpCall
    reads: tuple[Operand, ...] = ()
    writes: tuple[Operand, ...] = ()
    mutates: tuple[Operand, ...] = ()

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """`reads + mutates`, as in Task."""
        return self.reads + self.mutates

    @staticmethod
    def of_key(key: str, flops: float, launches: int) -> "ListedOp | None":
        """The op that has this `OpCall.key`, without its results, which a key does not say; None for the key of another body."""
        target, *parts = key.split("|")
        operands = [operand for part in parts if (operand := read_geometry(part)) is not None]
        text = "|".join(parts[max(1, len(operands)) :])
        if "." not in target or not text.startswith("["):
            return None
        args, end = json.JSONDecoder().raw_decode(text)
        body = OpCall(target, json.dumps(args, separators=(",", ":")), text[end:] or "{}", flops=flops, launches=launches)
        return ListedOp(body, reads=tuple(operands))


@dataclass(frozen=True, slots=True)
class OpList(Body):
    """Ops run one after another on one lane, without other tasks between them. `label` is for people."""

    steps: tuple[ListedOp, ...]
    label: str = ""
    kind: Literal["ops"] = "ops"

    @property
    def has_products(self) -> bool:
        """Whether one of the ops does."""
        return any(step.body.has_products for step in self.steps)

    @property
    def launches(self) -> int:
        """The sum over the ops."""
        return sum(step.body.launches for step in self.steps)

    @property
    def inner_ops(self) -> tuple[ListedOp, ...]:
        """The steps."""
        return self.steps

    @property
    def as_measured(self) -> "OpList":
        """The steps as they are measured."""
        return replace(self, steps=tuple(replace(step, body=step.body.as_measured) for step in self.steps))

    def key(self, task: Task) -> str:
        """Label and a hash of the ops' own keys, in order."""
        text = "\n".join(step.body.key(step) for step in self.steps)
        return f"ops.{self.label or 'list'}|{len(self.steps)}|{blake2b(text.encode(), digest_size=8).hexdigest()}"

    def faults(self, task: Task, values: Mapping[str, Value]) -> Iterator[str]:
        """Those of the steps."""
        for step in self.steps:
            yield from step.body.faults(step, values)

    def work(self, task: Task) -> Work:
        """The sum over the ops; the class is that of the op with the most FLOPs."""
        works = [step.body.work(step) for step in self.steps]
        heaviest = max(works, key=lambda w: w.flops)
        return Work(heaviest.op_class, sum(w.flops for w in works), sum(w.bytes for w in works))
