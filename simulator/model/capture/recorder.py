"""Record the aten ops that a training step issues below autograd.

A result on the storage of an argument is a view, so views never become ops. The modules of this folder are the only ones that use PyTorch's
private modules (torch._subclasses, torch.utils._python_dispatch).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import repeat
from types import MappingProxyType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simulator.model.capture import aten_calls
from simulator.model.capture.aten_calls import SHAPES, flops
from simulator.model.capture.branches import Branches, depends_on_values
from simulator.model.capture.known_values import KnownValues, UnknownContentError
from simulator.model.graph import Op
from simulator.model.ops.aten_json import encode, name_of, text_of
from simulator.model.ops.recurrent_layers import launches
from simulator.plan.bodies.op_class import op_class
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.ops import row
from simulator.plan.task import ACTIVATION, AGAIN, BACKWARD, BUFFER, FORWARD, GRADIENT, PARAMETER, Operand, Value, ViewStep, allowed
from traces.errors import Code, SchedcastError


class NumberedArguments:
    """Number the tensor arguments of an op: first those that it reads, then those that it changes."""

    def __init__(self, operand: Callable[[torch.Tensor], Operand], mutated: list[torch.Tensor]):
        """`operand` returns the operand of a tensor. `mutated`: the tensors that the op changes."""
        self._operand = operand
        self._mutated = {id(t) for t in mutated}
        self._reads: dict[Operand, int] = {}
        self._mutates: dict[Operand, int] = {}

    def __call__(self, tensor: torch.Tensor) -> str:
        """Return a placeholder for the tensor, which `renumber` replaces by its position."""
        operand = self._operand(tensor)
        table, mark = (self._mutates, "m") if id(tensor) in self._mutated else (self._reads, "r")
        return f"{mark}{table.setdefault(operand, len(table))}"

    def finish(self) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
        """Return (reads, mutates)."""
        return tuple(self._reads), tuple(self._mutates)

    def renumber(self, text: str) -> str:
        """Replace the placeholders in `text` by positions in reads + mutates."""
        for mark, table, first in (("r", self._reads, 0), ("m", self._mutates, len(self._reads))):
            for position in table.values():
                text = text.replace(f'{{"$":"{mark}{position}"}}', f'{{"$":{first + position}}}')
        return text


class OwnTensorError(Exception):
    """A second step reads a tensor that the first one has computed, from constants only."""


class Recorder(TorchDispatchMode):
    """Turn dispatched aten ops into `Op`s. Every tensor is kept alive, so that its id stays unique."""

    def __init__(self, earlier: "Recorder | None" = None, contents: Mapping[str, torch.Tensor] = MappingProxyType({})):
        """`earlier` has recorded a step of the same model: what that step computed must not be read in this one.

        `contents`: real tensors by name of value, for a model that branches by the content of a tensor.
        """
        super().__init__()
        self._earlier = earlier
        self._known = KnownValues(contents)
        self._branches = Branches(self, self._known)
        self.ops: list[Op] = []
        self.values: dict[str, Value] = {}
        self.storage_bytes: dict[str, int] = {}
        self.constants: dict[str, Any] = {}
        self.assumptions: tuple[str, ...] = ()
        self.phase, self.layer = FORWARD, ""
        self.calls = 0  # of ops and views
        self.draws = 0  # draws of random numbers
        self._view_calls = 0  # since the last op
        self._first: int | None = None  # while ops run again: the first op that may be repeated next
        self._redraws = False
        self._operands: dict[int, Operand] = {}
        self._offsets: dict[str, int] = {}
        self._by_storage: dict[int, str] = {}
        self._alive: list[Any] = []
        self._names: dict[str, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # a step is never compiled, and the wrapper that says so takes time in each op

    def enter(self, layer: str) -> None:
        """Assign the ops recorded from now on to `layer`."""
        self.layer = layer

    def repeat(self, first: int | None, redraws: bool = False) -> None:
        """From now on ops repeat those from op `first` on, drawing the same random numbers if `redraws`; None: they do not."""
        self._first, self._redraws = first, redraws

    def _repeated(self, target: str, operands: tuple[Operand, ...]) -> Op | None:
        """The op that runs again; None if no op is repeated, or none that read the same."""
        if self._first is None:
            return None
        read = [operand.value.removesuffix(AGAIN) for operand in operands]
        for index in range(self._first, len(self.ops)):
            op = self.ops[index]
            if op.phase != FORWARD:
                return None
            name = f"{op.name}{AGAIN}"
            if op.body.target == target and [operand.value for operand in op.inputs] == read and name not in self._names:
                self._first, self._names[name] = index + 1, 1
                return op
        return None

    def define(self, name: str, tensor: torch.Tensor, kind: str) -> Operand:
        """Make `tensor` a value called `name`. A further value on the same memory gets the storage of the first one."""
        self._alive.append(tensor)
        storage = tensor.untyped_storage()
        if kind not in (ACTIVATION, GRADIENT):
            constant = kind == BUFFER and name.startswith("constant:")
            self._known.define(name, tensor, trainable=kind == PARAMETER and tensor.requires_grad, constant=constant)
        shared = self._by_storage.setdefault(storage._cdata, name)
        if shared == name:
            self.storage_bytes[name] = storage.nbytes()
        self.values[name] = Value(
            name, tuple(tensor.shape), tuple(tensor.stride()), dtype=name_of(tensor.dtype), device="", kind=kind, storage=shared
        )
        self._offsets[name] = int(tensor.storage_offset())
        self._operands[id(tensor)] = self.values[name].operand()
        return self._operands[id(tensor)]

    def operand(self, tensor: torch.Tensor) -> Operand:
        """Return the operand of a tensor. A tensor not seen before is a constant of the model, or a new view of a known storage."""
        operand = self._operands.get(id(tensor))
        if operand is not None:
            return operand
        if isinstance(tensor, torch.nn.Parameter):
            raise SchedcastError(
                f"layer {self.layer!r} uses a parameter of shape {tuple(tensor.shape)} that the model does not register, or keeps elsewhere"
                " as well; expected one of model.parameters(); assign it to an attribute of its module, or use nn.ParameterList",
                Code.MODEL,
            )
        base = self._by_storage.get(tensor.untyped_storage()._cdata)
        if base is None:
            return self._constant(tensor)
        return self._strided_view(tensor, Operand(base, tuple(tensor.shape), tuple(tensor.stride()), name_of(tensor.dtype)))

    def _changed_in_place(self, tensor: torch.Tensor) -> None:
        """Record that the shape and strides of a tensor were changed in place (transpose_): it is now another view of its storage."""
        base = self.values[self._operands[id(tensor)].value].operand()
        self._strided_view(tensor, replace(base, shape=tuple(tensor.shape), strides=tuple(tensor.stride())))

    def _strided_view(self, tensor: torch.Tensor, operand: Operand) -> Operand:
        """Remember a tensor as `operand`, through as_strided unless it is the whole value."""
        if any(_bits(tensor)) or operand.dtype != self.values[operand.value].dtype:
            raise SchedcastError(f"layer {self.layer!r} reads a view that capture cannot follow; please report the model")
        if not self._whole(tensor, operand):
            args, _ = encode(([*tensor.shape], [*tensor.stride()], tensor.storage_offset()), {})
            operand = replace(operand, views=(ViewStep("aten.as_strided.default", args),))
        self._remember(tensor, operand)
        return operand

    def made(self, tensor: torch.Tensor) -> bool:
        """Whether an op that was recorded has made the tensor."""
        name = self._by_storage.get(tensor.untyped_storage()._cdata)
        return name is not None and self.values[name].kind in (ACTIVATION, GRADIENT)

    def _check_not_kept(self, tensor: torch.Tensor) -> None:
        """Raise OwnTensorError for a tensor computed in the earlier step, and SchedcastError if it depends on parameters or data."""
        if self._earlier is None or not self._earlier.made(tensor):
            return
        if not self._earlier._known.reads_data(tensor):
            raise OwnTensorError
        name = self._earlier._by_storage[tensor.untyped_storage()._cdata]
        raise SchedcastError(
            f"layer {self.layer!r} reads a tensor that an earlier step computed ({name}); expected steps that share only parameters and"
            " buffers; register it with register_buffer, and update it in place",
            Code.MODEL,
        )

    def _constant(self, tensor: torch.Tensor) -> Operand:
        self._check_not_kept(tensor)
        if isinstance(tensor, FakeTensor):
            raise UnknownContentError
        name = f"constant:{len(self.constants)}"
        with unset_fake_temporarily():
            self.constants[name] = text_of(tensor)
        return self.define(name, tensor, BUFFER)

    def _remember(self, tensor: torch.Tensor, operand: Operand) -> None:
        self._alive.append(tensor)
        self._operands[id(tensor)] = operand

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run the op on fake tensors and record it."""
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # two thirds of all calls: PyTorch's own rules ask for devices
            return func(*args)
        self.calls += 1
        if depends_on_values(func, args):
            return self._branches.run(func, args, kwargs)
        if aten_calls.targets(func):
            with self:
                return aten_calls.run(func, args, kwargs)
        if op_class(str(func)).startswith("matmul"):
            self._check_types(func, args)
        result = SHAPES.get(func, func)(*args, **kwargs)
        self.record(func, args, kwargs, result)
        return result

    def _check_types(self, func, args) -> None:
        """Raise SchedcastError for a product of different types: the kernels refuse it, and fake tensors do not."""
        types = {arg.dtype: None for arg in args[:3] if isinstance(arg, torch.Tensor) and arg.is_floating_point()}
        if len(types) > 1:
            raise SchedcastError(
                f"{func} in layer {self.layer!r} has operands of {' and '.join(map(name_of, types))}, which PyTorch refuses; expected one"
                " type; convert the inputs or the parameters, or use autocast",
                Code.MODEL,
            )

    def record(self, func, args, kwargs, result: Any) -> None:
        """Record a call with its result."""
        mutated = _mutated(func, args, kwargs)
        self._known.record(func, args, kwargs, result, mutated)
        results = [r for r in _as_list(result) if isinstance(r, torch.Tensor)]
        if not results and not func._schema.is_mutable:
            return
        mask = _mask_position(func)
        # The kernels of dX and dW are separate ops.
        if mask is not None and row(str(func)).kernels and args[mask][0] and any(args[mask][1:]):
            only_x = [True] + [False] * (len(args[mask]) - 1)
            rest = [False, *args[mask][1:]]
            outs = list(result)
            self._op(func, (*args[:mask], only_x, *args[mask + 1 :]), kwargs, [outs[0], *[None] * (len(outs) - 1)])
            self._op(func, (*args[:mask], rest, *args[mask + 1 :]), kwargs, [None, *outs[1:]])
        else:
            wanted = repeat(True) if mask is None else args[mask]  # fake tensors have results that real ones lack
            self._op(func, args, kwargs, [each if kept else None for each, kept in zip(_as_list(result), wanted, strict=False)])

    def assume(self, what: str) -> None:
        """Note that the graph rests on an assumption about the layer that runs."""
        self.assumptions = self.assumptions or (f"{f'layer {self.layer!r}' if self.layer else 'the model'} {what}",)

    def _op(self, func, args, kwargs, results: list[Any]) -> None:
        if func is torch.ops.aten.lift_fresh.default:  # torch.tensor(...): on real tensors it returns the constant, which must not change
            func = torch.ops.aten.clone.default
        if torch.Tag.inplace_view in func.tags:
            self._view_calls += 1
            self._changed_in_place(args[0])
            return
        if any(isinstance(item, torch.Generator) for item in tree_leaves((args, kwargs))):
            raise SchedcastError(
                f"{func} in layer {self.layer!r} draws from a generator of the model's own; expected the default one; remove generator=",
                Code.MODEL,
            )
        mutated = _mutated(func, args, kwargs)
        if not mutated and self._view(func, args, kwargs, results):
            self._view_calls += 1
            return
        if func.is_view and self._on_seen_storage(args[0]):  # as a task it would hide that two values share memory
            raise SchedcastError(f"{func} in layer {self.layer!r} gives a view that capture cannot follow; please report the model")
        if str(func) not in allowed():
            raise SchedcastError(f"{func} is not a tensor op that a plan may call; use a model without it", Code.MODEL)
        encoder = NumberedArguments(self.operand, mutated)
        text, named = encode(args, kwargs, encoder)
        reads, mutates = encoder.finish()
        text, named = encoder.renumber(text), encoder.renumber(named)
        first = self._repeated(str(func), (*reads, *mutates))
        name, again = (self._name(func), "") if first is None else (first.name, AGAIN)
        if self.phase == BACKWARD and OpCall(str(func), text).random and (first is None or not self._redraws):
            self.assume(
                "draws random numbers again in backward, by checkpointing, which a plan would not draw the same; predicted as it is"
            )
        writes, outputs = [], []
        mutated_ids = {id(t) for t in mutated}
        for position, tensor in enumerate(results):
            if not isinstance(tensor, torch.Tensor) or id(tensor) in mutated_ids:
                continue
            if tensor.untyped_storage()._cdata in self._by_storage:
                self.operand(tensor)  # the result of an in-place op, as a new tensor object
                continue
            kind = GRADIENT if self.phase == BACKWARD and self._first is None else ACTIVATION
            writes.append(self.define(f"{name}:{position}{again}" if position else f"{name}{again}", tensor, kind))
            outputs.append(position)
        body = OpCall(str(func), text, named, tuple(outputs), flops(func, args, kwargs, results), launches(func, args))
        if body.random and first is not None and self._redraws:
            body = replace(body, draw=first.body.draw)
        elif body.random:
            body, self.draws = replace(body, draw=self.draws), self.draws + 1
        self.ops.append(
            Op(
                f"{name}{again}",
                body,
                self.phase,
                layer=self.layer,
                reads=reads,
                writes=tuple(writes),
                mutates=mutates,
                view_calls=self._view_calls,
            )
        )
        self._view_calls = 0

    def _on_seen_storage(self, tensor: Any) -> bool:
        """Whether a fake tensor lies on a storage seen before. A real tensor among fake ones is a constant, which no op changes."""
        return isinstance(tensor, FakeTensor) and tensor.untyped_storage()._cdata in self._by_storage

    def _view(self, func, args, kwargs, results: list[Any]) -> bool:
        """Remember results that alias the first tensor argument as views of it. Returns False if the op computes something."""
        source = next((a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)), None)
        tensors = [r for r in results if isinstance(r, torch.Tensor)]
        if source is None or any(t.untyped_storage()._cdata != source.untyped_storage()._cdata for t in tensors):
            return False
        base = self.operand(source)
        text, _ = encode(args[1:], {})
        for position, tensor in enumerate(tensors):
            if id(tensor) in self._operands:
                continue
            operand = Operand(base.value, tuple(tensor.shape), tuple(tensor.stride()), name_of(tensor.dtype))
            if self._whole(tensor, operand):  # a view that undoes earlier ones, such as the transpose of a transpose
                self._remember(tensor, operand)
                continue
            operand = replace(operand, views=base.views)
            if operand != base or source.storage_offset() != tensor.storage_offset() or _bits(source) != _bits(tensor):
                step = ViewStep(str(func), text if not kwargs else encode(args[1:], kwargs)[0], position if len(tensors) > 1 else None)
                operand = replace(operand, views=(*base.views, step))
            self._remember(tensor, operand)
        return True

    def _whole(self, tensor: torch.Tensor, operand: Operand) -> bool:
        whole = tensor.storage_offset() == self._offsets[operand.value] and operand == self.values[operand.value].operand()
        return whole and not any(_bits(tensor))

    def _name(self, func) -> str:
        base = f"{self.layer or 'model'}/{str(func).split('.')[1]}"
        count = self._names[base] = self._names.get(base, 0) + 1
        return base if count == 1 else f"{base}#{count}"


def _bits(tensor: torch.Tensor) -> tuple[bool, bool]:
    """Whether the tensor is seen as its complex conjugate, and as its negative. PyTorch keeps this as bits of a view."""
    return tensor.is_conj(), tensor.is_neg()


@cache
def _mask_position(func) -> int | None:
    return next((i for i, argument in enumerate(func._schema.arguments) if argument.name == "output_mask"), None)


def _as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, list | tuple) else [result]


def _mutated(func, args, kwargs) -> list[torch.Tensor]:
    """Return the tensor arguments that the op changes, by its schema or as running statistics."""
    hidden = row(str(func)).running
    values = [args[position] if position < len(args) else kwargs.get(name) for position, name in _written(func)]
    values += [args[position] for position in hidden if args[5]]
    return [item for item in tree_leaves(values) if isinstance(item, torch.Tensor)] if values else []


@cache
def _written(func) -> tuple[tuple[int, str], ...]:
    """The arguments that the op changes by its schema, as positions and names."""
    arguments = enumerate(func._schema.arguments)
    return tuple((i, each.name) for i, each in arguments if each.alias_info is not None and each.alias_info.is_write)
