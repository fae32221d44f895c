"""The contents of fake tensors, computed when a model asks for one to decide what to do.

Known are tensors that depend on nothing but inputs, buffers, frozen parameters and literals. Which experts tokens choose is not known: the
choice is assumed to be balanced. A single random number is assumed to be at its mean.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map

from simulator.plan.bodies.opcall import is_random

#: Ops that choose among the elements along a dimension -> (position of this argument, its default, position of the indices among the
#: results).
_CHOICES: dict[Callable, tuple[int, int, int]] = {
    torch.ops.aten.topk.default: (2, -1, 1),
    torch.ops.aten.sort.default: (1, -1, 1),
    torch.ops.aten.max.dim: (1, -1, 1),
    torch.ops.aten.argmax.default: (1, -1, 0),
}
#: Draws uniformly from 0 to 1.
_RANDOM_NUMBER = torch.ops.aten.rand.default
#: What is assumed, in words.
_BALANCED, _MEAN = "balanced experts", "each random number at its mean, 0.5, so that layers dropped with a lower probability all run"


class UnknownContentError(Exception):
    """The step reads the content of a tensor that was made under fake tensors, so that nobody knows it."""


class VariableContentError(Exception):
    """The step reads a content that depends on trainable parameters or random numbers, and so changes from step to step."""


@dataclass(frozen=True, slots=True)
class _Call:
    func: Callable
    args: tuple
    kwargs: dict[str, Any]
    results: tuple[Any, ...]
    assumed: bool


class KnownValues:
    """A record of all calls of a step, of which those that a content needs run again on real tensors."""

    def __init__(self, contents: Mapping[str, torch.Tensor]):
        """`contents`: real tensors by name of value."""
        self._contents = contents
        self._leaves: dict[int, torch.Tensor | None] = {}  # by storage
        self._calls: list[_Call] = []
        self._of_storage: dict[int, list[int]] = {}  # the calls that make, view or change it
        self._variable: set[int] = set()
        self._data: set[int] = set()  # what depends on parameters, buffers or inputs
        self._assumed: dict[int, str] = {}  # by storage: what is assumed

    def define(self, name: str, tensor: torch.Tensor, trainable: bool, constant: bool) -> None:
        """Add a tensor that no call of the step makes: a `constant` of the code, or a parameter, buffer or input."""
        self._leaves.setdefault(_storage(tensor), self._contents.get(name))
        if trainable:
            self._variable.add(_storage(tensor))
        if not constant:
            self._data.add(_storage(tensor))

    def record(self, func: Callable, args: tuple, kwargs: dict[str, Any], result: Any, changed: list[torch.Tensor]) -> None:
        """Add a call with its results. `changed`: the arguments that it changed."""
        arguments = {_storage(item) for item in _tensors((args, kwargs))}
        variable = bool(arguments & self._variable) or is_random(str(func))
        results = tuple(result) if isinstance(result, list | tuple) else (result,)
        made = {_storage(item) for item in _tensors((results, changed))}
        if arguments & self._data:
            self._data |= made
        chosen = _storage(results[_CHOICES[func][2]]) if variable and func in _CHOICES else None
        if func is _RANDOM_NUMBER and results[0].numel() == 1:
            chosen = _storage(results[0])
        number = len(self._calls)
        self._calls.append(_Call(func, args, kwargs, results, chosen is not None))
        for storage in made:
            self._of_storage.setdefault(storage, []).append(number)
        if variable:
            self._variable |= made - {chosen}
        why = (_MEAN if func is _RANDOM_NUMBER else _BALANCED) if chosen is not None else ""
        why = why or next((self._assumed[storage] for storage in arguments if storage in self._assumed), "")
        if why:
            self._assumed |= dict.fromkeys(made, why)

    def assumed(self, tensor: torch.Tensor) -> str:
        """What is assumed of the choices and random numbers that the content depends on, in words; empty if it depends on none."""
        return self._assumed.get(_storage(tensor), "")

    def reads_data(self, items: Any) -> bool:
        """Whether a tensor among `items` depends on parameters, buffers or inputs."""
        return any(_storage(tensor) in self._data for tensor in _tensors(items))

    def content(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the content of a tensor. Raises UnknownContentError or VariableContentError if there is none."""
        if not isinstance(tensor, FakeTensor):
            return tensor
        needed = self._needed(tensor)
        memory: dict[int, torch.Tensor] = {}  # a tensor on each storage
        real: dict[int, Any] = {}  # by id of the fake tensor

        def content(item: Any) -> Any:
            if not isinstance(item, FakeTensor):
                return item.clone() if isinstance(item, torch.Tensor) else item
            if id(item) not in real:
                storage = _storage(item)
                if storage not in memory:
                    if (leaf := self._leaves[storage]) is None:
                        raise UnknownContentError
                    memory[storage] = _copied_memory(leaf)
                real[id(item)] = memory[storage].as_strided(item.shape, item.stride(), item.storage_offset())
            return real[id(item)]

        with unset_fake_temporarily():
            for number in sorted(needed):
                call = self._calls[number]
                made = _assumption(call) if call.assumed else call.func(*tree_map(content, call.args), **tree_map(content, call.kwargs))
                for fake, item in zip(call.results, made if isinstance(made, list | tuple) else (made,), strict=True):
                    real[id(fake)] = item
                    if isinstance(item, torch.Tensor):
                        memory.setdefault(_storage(fake), item)
            return content(tensor)

    def _needed(self, tensor: torch.Tensor) -> set[int]:
        """The numbers of the calls that the content of a tensor depends on."""
        needed: set[int] = set()
        seen: set[int] = set()
        todo = [_storage(tensor)]
        while todo:
            storage = todo.pop()
            if storage in seen:
                continue
            seen.add(storage)
            if storage in self._variable:
                raise VariableContentError
            calls = self._of_storage.get(storage, [])
            if self._leaves.get(storage) is None and (not calls or storage in self._leaves):
                raise UnknownContentError
            for number in set(calls) - needed:
                needed.add(number)
                call = self._calls[number]
                arguments = () if call.assumed else _tensors((call.args, call.kwargs))
                todo += [_storage(item) for item in arguments if isinstance(item, FakeTensor)]
        return needed


def _assumption(call: _Call) -> list[torch.Tensor | None]:
    """The results of an op that chooses, with each element along the dimension chosen equally often. Only the indices are known.

    Of an op that draws one random number: its mean.
    """
    if call.func is _RANDOM_NUMBER:
        return [torch.full(call.results[0].shape, 0.5, dtype=call.results[0].dtype)]
    position, default, number = _CHOICES[call.func]
    dim = call.args[position] if position < len(call.args) else call.kwargs.get("dim", default)
    indices, extent = call.results[number], call.args[0].shape[default if dim is None else dim]
    results: list[torch.Tensor | None] = [None] * len(call.results)
    results[number] = (torch.arange(indices.numel()) % max(1, extent)).view(indices.shape)
    return results


def _copied_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the whole storage of a tensor, as one dimension."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.detach().untyped_storage().clone())


def _tensors(items: Any) -> list[torch.Tensor]:
    return [item for item in tree_leaves(items) if isinstance(item, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
