"""Binds a plan's values to tensors while the plan runs, and applies the view steps of operands.

A carried storage has one tensor for the whole run. Every other value lives in an `Instance`, one per iteration.

Results get the strides that the plan states. A plan is captured with the CPU's kernels, and it is right only for their strides: if PyTorch
asked whether a tensor is contiguous, the answer is part of the plan. `native_group_norm` refuses other strides, `as_strided` reads other
elements, and `view` raises an error. On CUDA an op may return other strides: cuDNN prefers channels-last, and fused attention places heads
next to features. Opaque results (`opaque` of a row of `simulator.plan.ops`) keep their strides.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from simulator.model.ops.aten_json import Slot, decode, decode_item, resolve
from simulator.plan.plan import Plan
from simulator.plan.task import INPUT, Operand, Task, Value, ViewStep
from traces.errors import Code, SchedcastError

#: How dropout masks are drawn. "keyed": from (seed, step, index), the same in any order of execution. "stream": from the device's
#: generator, in issue order, by the ops that PyTorch itself draws them with.
DRAWS = ("keyed", "stream")


@dataclass(frozen=True)
class Forms:
    """Which form of the canonical ops a backend runs: dropout, batch-norm, attention, recurrent layers and updates differ on CPU and CUDA.

    `cuda`: run ops in the forms that PyTorch chooses on CUDA. These forms also run on the CPU, so that they can be tested there.
    `draws`: one of DRAWS. A CUDA graph needs "stream", because the host cannot seed between two ops of a graph. On the CPU it serves to
    time the ops of PyTorch's own loop.
    `seed`: seeds the device's generator for "keyed" draws.
    `capturable`: run updates in the form that a CUDA graph can replay.
    """

    cuda: bool = False
    draws: str = "keyed"
    seed: Callable[[int], None] | None = None
    capturable: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError if `draws` is not one of DRAWS."""
        if self.draws not in DRAWS:
            raise ValueError(f"draws {self.draws!r}; expected {' or '.join(DRAWS)}")


#: The forms of the CPU backend.
PLAIN = Forms()


def fits(tensor: torch.Tensor, planned: Operand | Value) -> bool:
    """Whether a result can be used as the planned value without a copy.

    Also True if the backend's result has another shape, which only the backend's own ops can read, and for planned strides that name an
    element twice, which no copy can have.
    """
    if tuple(tensor.shape) != tuple(planned.shape):
        return True
    overlaps = any(stride == 0 and extent > 1 for stride, extent in zip(planned.strides, planned.shape, strict=True))
    return overlaps or same_strides(tensor, planned.strides)


def same_strides(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor has these strides. Those of dimensions of size 1 do not matter."""
    return all(a == b or n == 1 for a, b, n in zip(tensor.stride(), strides, tensor.shape, strict=True))


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


Getter = Callable[["Instance"], torch.Tensor]
log = logging.getLogger("schedcast")


class Instance:
    """The tensors of one iteration's values, by slot: None before and after a value exists; what an op saves for its backward is no tensor.

    `accesses_left`: by storage, how many tasks have yet to access it."""

    __slots__ = ("accesses_left", "iteration", "slots")

    def __init__(self, iteration: int, slots: int, accesses_left: list[int]):
        self.iteration = iteration
        self.slots: list[Any] = [None] * slots
        self.accesses_left = accesses_left


def view_function(step: ViewStep, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that applies the view step to a tensor."""
    op, args = resolve(step.target), decode(step.args, device)
    if step.output is not None:
        return lambda tensor: op(tensor, *args)[step.output]
    if not args:
        return op
    if len(args) == 1:
        only = args[0]
        return lambda tensor: op(tensor, only)
    return lambda tensor: op(tensor, *args)


def apply_views(tensor: torch.Tensor, operand: Operand) -> torch.Tensor:
    for step in operand.views:
        tensor = view_function(step, tensor.device)(tensor)
    return tensor


def input_piece(tensor: torch.Tensor, value: Value) -> torch.Tensor:
    """The piece of a job's input that an input value of the plan is.

    An input with the shape of the value itself does not grow with the batch, such as a mask without a batch dimension: every piece is the
    whole input.
    """
    return tensor if tuple(tensor.shape) == value.shape else apply_views(tensor, value.source or value.operand())


def op_tasks(task: Task) -> Iterator[Task]:
    """The single ops that a task runs, each as a task: itself, or the steps of its OpList."""
    if task.body.op:
        yield task
    for position, step in enumerate(task.body.inner_ops):
        yield replace(task, name=f"{task.name}#{position}", body=step.body, reads=step.reads, writes=step.writes, mutates=step.mutates)


class Binding:
    """The slots and carried tensors of one plan, and the getters and setters that its tasks are compiled to.

    `slot`: by value name, its position in `Instance.slots`. `carried`: by value name, the tensor that lives for the whole run.
    `fed`: by name of an input value, the operand of the job's input that it comes from. `forms`: which form of the canonical ops the
    backend runs.
    """

    def __init__(
        self,
        plan: Plan,
        tensors: Mapping[str, torch.Tensor],
        device: Callable[[str], torch.device],
        seed: int = 0,
        forms: Forms = PLAIN,
        carried: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ):
        """`carried`: tensors of carried values, by name, that another binding has made; the others are copies of `tensors`."""
        plan.require_runnable()
        plan.require_alone()
        self.plan, self.device, self.seed, self.forms = plan, device, seed, forms
        self.slot: dict[str, int] = {}
        self.carried: dict[str, torch.Tensor] = {}
        self.fed: dict[str, Operand] = {}
        self.ops = [op for task in plan.tasks for op in op_tasks(task)]
        self._reported = False  # that results are copied to get the plan's strides
        for name, value in plan.values.items():
            if value.storage in plan.carried:
                self.carried[name] = carried[name] if name in carried else self._initial(value, tensors)
            else:
                self.slot[name] = len(self.slot)
                if value.kind == INPUT:
                    self.fed[name] = value.source or value.operand()

    def _initial(self, value, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A new tensor for a carried value: a copy of its source, or zeros if it has none."""
        if value.source is None:
            empty = torch.empty_strided(value.shape, value.strides, dtype=getattr(torch, value.dtype), device=self.device(value.device))
            return empty.zero_()
        source = apply_views(tensors[value.source.value].detach(), value.source)
        if tuple(source.shape) != value.shape:
            whole = tuple(tensors[value.source.value].shape)
            raise SchedcastError(
                f"{value.name} of shape {value.shape} is no piece of {value.source.value} of {whole}; make the plan again", Code.PLAN
            )
        empty = torch.empty_strided(value.shape, value.strides, dtype=source.dtype, device=self.device(value.device))
        return empty.copy_(source)

    def feed(self, instance: Instance, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put the job's inputs of one iteration into its instance."""
        for name, source in self.fed.items():
            value = self.plan.values[name]
            tensor = input_piece(tensors[source.value].detach(), value).to(self.device(value.device))
            instance.slots[self.slot[name]] = tensor if fits(tensor, value) else with_strides(tensor, value.strides)

    def getter(self, operand: Operand) -> Getter:
        """A function that returns the operand's tensor in an instance. The views of a carried value are applied only once, here."""
        tensor = self.carried.get(operand.value)
        if tensor is not None:
            fixed = apply_views(tensor, operand)
            return lambda instance: fixed
        slot = self.local_slot(operand.value)
        device = self.device(self.plan.values[operand.value].device) if operand.value in self.plan.values else torch.device("cpu")
        views = [view_function(step, device) for step in operand.views]
        if not views:
            return lambda instance: instance.slots[slot]
        if len(views) == 1:
            (view,) = views
            return lambda instance: view(instance.slots[slot])

        def get(instance: Instance) -> torch.Tensor:
            tensor = instance.slots[slot]
            for view in views:
                tensor = view(tensor)
            return tensor

        return get

    def setter(self, operand: Operand, opaque: bool = False) -> Callable[[Instance, torch.Tensor], Any]:
        """A function that stores a result as the operand's value: with the strides that the plan states, or as it comes if it is opaque."""
        tensor = self.carried.get(operand.value)
        if tensor is not None:
            return lambda instance, result: tensor.copy_(result)
        slot = self.local_slot(operand.value)
        as_it_is = True if opaque else None  # None: known after the first call, because an op's strides do not change

        def put(instance: Instance, result: torch.Tensor) -> None:
            nonlocal as_it_is
            if as_it_is is None:
                as_it_is = fits(result, operand)
                if not as_it_is:
                    self._report_copy(operand, result)
            instance.slots[slot] = result if as_it_is else with_strides(result, operand.strides)

        return put

    def _report_copy(self, planned: Operand, result: torch.Tensor) -> None:
        """Log once per plan that results are copied, which takes time that no prediction contains."""
        level, self._reported = (logging.DEBUG if self._reported else logging.WARNING), True
        log.log(
            level,
            "%s comes with strides %s and was planned with %s, so every step copies it, which no prediction contains",
            *(planned.value, tuple(result.stride()), tuple(planned.strides)),
        )

    def slots_by_storage(self, keep: Collection[str]) -> dict[str, list[int]]:
        """By storage, the slots to empty when its instance is freed. Excludes the storages of the values named in `keep`."""
        kept_storages = {self.plan.values[name].storage for name in keep}
        slots: dict[str, list[int]] = {}
        for name, slot in self.slot.items():
            value = self.plan.values.get(name)  # None for a value that exists only inside an OpList
            if value is not None and value.storage not in kept_storages:
                slots.setdefault(value.storage, []).append(slot)
        return slots

    def local_slot(self, name: str) -> int:
        """A value's slot. A value that exists only inside an OpList gets one at the first call."""
        if name not in self.slot:
            self.slot[name] = len(self.slot)
        return self.slot[name]

    def arguments(self, task: Task) -> Callable[[Instance], tuple[list, dict]]:
        """A function that returns the positional and keyword arguments of an op's task in an instance."""
        device = self.device(task.device)
        getters = [self.getter(operand) for operand in task.inputs]
        named = {name: decode_item(item, device) for name, item in json.loads(task.body.kwargs).items()}
        return _filler(decode(task.body.args, device), named, getters)

    def results(self, task: Task) -> Callable[[Instance, Sequence], None]:
        """A function that stores an op's results, of which the plan reads some, as the task's writes."""
        writes, opaque = zip(task.body.outputs, task.writes, strict=True), task.body.opaque
        setters = [(position, self.setter(write, position in opaque)) for position, write in writes]

        def store(instance: Instance, results: Sequence) -> None:
            for position, put in setters:
                put(instance, results[position])

        return store


def _filler(template: list, named: dict, getters: list[Getter]):
    """A function that replaces the slots in an op's arguments by the tensors of an instance."""
    flat = [(i, getters[item]) for i, item in enumerate(template) if isinstance(item, Slot)]
    nested = [(i, item) for i, item in enumerate(template) if isinstance(item, list) and any(isinstance(e, Slot) for e in item)]
    keyed = [(k, getters[item]) for k, item in named.items() if isinstance(item, Slot)]
    lists = [(i, [getters[e] if isinstance(e, Slot) else (lambda _inst, e=e: e) for e in items]) for i, items in nested]

    def fill(instance: Instance) -> tuple[list, dict]:
        args = template.copy()
        for i, get in flat:
            args[i] = get(instance)
        for i, getters_of_list in lists:
            args[i] = [get(instance) for get in getters_of_list]
        if keyed:
            return args, named | {k: get(instance) for k, get in keyed}
        return args, named

    return fill


def task_storages(plan: Plan, tasks: tuple[Task, ...]) -> tuple[dict[str, int], list[list[int]]]:
    """Numbers the per-iteration storages, so that accesses can be counted to free an instance's tensors.

    Returns the number of each storage by name, and for each task the numbers of the storages that it accesses.
    """
    index: dict[str, int] = {}
    storages_by_task = []
    for task in tasks:
        names = {plan.storage_of(o) for o in (*task.inputs, *task.writes)} - plan.carried
        storages_by_task.append([index.setdefault(name, len(index)) for name in sorted(names)])
    return index, storages_by_task
