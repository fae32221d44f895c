"""What the capture of a live module depends on, in a form that can be compared: all that its forward, its loss and its step can read."""

import builtins
import contextvars
import hashlib
import logging
import os
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, timedelta
from enum import Enum
from functools import cache, partial
from pathlib import PurePath
from typing import Any

import numpy
import torch

from simulator.model.built import tensors_of

#: Objects that are looked at, at most, and the bytes of the tensors and arrays whose content is compared.
MOST_OBJECTS, MOST_BYTES = 50_000, 1 << 24
#: Packages whose functions do not change unless they are replaced: what they read is in `_switches`.
_FIXED = {*sys.stdlib_module_names, "torch", "numpy", __name__.partition(".")[0]}
#: What is compared by its value, as it does not change.
_VALUES = (
    bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice, date, timedelta, PurePath, re.Pattern,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.iinfo, torch.finfo,
)  # fmt: skip
#: What is the same as long as it is the same object: it does not change, or what it computes does not depend on its state.
_IDENTITIES = (
    Enum, logging.Logger, type(threading.Lock()), type(threading.RLock()), threading.local, numpy.dtype, numpy.ufunc, torch.Generator,
    torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch.jit.ScriptFunction, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
#: Functions with a cache.
_CACHED = type(cache(lambda: None))
#: Objects that contain others: those that are often empty, and all.
_HOLDERS = (dict, OrderedDict, tuple, list, set)
_CONTAINERS = (list, tuple, deque, dict, set, frozenset)
#: Built-in functions that read what cannot be seen from the code.
_HIDDEN = {"open", "input", "eval", "exec", "__import__", "globals"}
#: Methods that only other kinds of code call: making, copying and printing objects. Those of classes that the code names are read too.
_MAKING = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__class_getitem__"}
_UNREAD = {"__repr__", "__str__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__copy__", "__deepcopy__", "__del__"}
#: Methods that PyTorch calls, in addition to those with two underscores.
_CALLED = {"forward", "backward", "setup_context", "jvp"}


class _UnclearError(Exception):
    """Something may change that cannot be seen."""


class _Same:
    """Equal to another one of the same object. It references the object, so that no other object gets its address."""

    __slots__ = ("_item",)

    def __init__(self, item: Any):
        self._item = item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._item is other._item

    def __hash__(self) -> int:
        return id(self._item)


def fingerprint(module: torch.nn.Module, batch: Any, *others: Any) -> tuple | None:
    """Return what a capture of `module` with the tensors of `batch` and with `others` (the loss, a step) depends on.

    Two equal ones mean the same graph. None if that is not certain: then capture again. Covered are the tree of modules with all their
    attributes, hooks and modes, and the code of their forward and of `others` with the globals, closures, defaults and methods that it
    names; of the tensors of `module` and `batch` what their type, geometry and memory are, and not the numbers (`content`); and PyTorch's
    switches. Of installed packages, methods are read of modules only: of other classes it is seen when one is replaced.
    """
    own = (*module.parameters(), *module.buffers())
    numbered = {id(tensor) for tensor in (*own, *(tensor for _, tensor in tensors_of(batch, "")))}
    try:
        return (*_switches(), *_Reader(numbered).read(module, batch, *others))
    except _UnclearError:
        return None


def content(tensors: Iterable[torch.Tensor]) -> bytes:
    """A hash of the numbers in tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        if tensor.device.type != "meta":
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()


def _switches() -> Iterator[Any]:
    """PyTorch's global switches, and the environment."""
    backends: Any = torch.backends
    cuda, cudnn, mkldnn = backends.cuda, backends.cudnn, backends.mkldnn
    yield from (torch.get_default_dtype(), torch.get_default_device(), torch.is_inference_mode_enabled(), torch.is_grad_enabled())
    yield from ((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))
    yield from (part.fp32_precision for part in (cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul))
    yield from (cudnn.enabled, cudnn.benchmark, torch.are_deterministic_algorithms_enabled(), backends.mha.get_fastpath_enabled())
    yield from (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled())
    yield tuple(sorted(os.environ.items()))


def _is_fixed(name: Any) -> bool:
    """Whether a module of this name belongs to Python, PyTorch or Schedcast."""
    return str(name).partition(".")[0] in _FIXED


def _is_installed(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file


def _is_plain(kind: type) -> bool:
    """Whether the state of the objects of a class is in their `__dict__`, their slots and, of containers, their items."""
    root = kind
    while root.__base__ not in (object, None, *_CONTAINERS):
        root = root.__base__
    return root is types.SimpleNamespace or "__weakref__" in vars(root) or "__slots__" in vars(root)


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes that code reads, and its texts, which may be names."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


class _Reader:
    """Reads objects, the nearest first. Each is numbered where it is first met, so that equal results mean equal graphs of objects."""

    def __init__(self, numbered: set[int]):
        """`numbered`: the ids of the tensors whose numbers do not count."""
        self._numbered = numbered
        self._numbers: dict[Any, int] = {}
        self._storages: dict[int, int] = {}
        self._queue: deque[Any] = deque()
        self._alive: list[Any] = []
        self._facts: list[Any] = []
        self._names: set[str] = set(_CALLED)
        self._classes: dict[type, set[str]] = {}  # the entries that were read
        self._made: set[type] = set()
        self._slots: dict[type, list[types.MemberDescriptorType]] = {}
        self._bytes = 0

    def read(self, *roots: Any) -> list[Any]:
        """Return everything that `roots` lead to. Raises _UnclearError if it cannot be told whether it stays the same."""
        self._facts.extend(map(self._known, roots))
        while self._queue:
            while self._queue:
                item, names = self._queue.popleft()
                self._facts.append(self._facts_of(item, names))
                if len(self._numbers) > MOST_OBJECTS:
                    raise _UnclearError
            self._facts.extend(self._named_entries())
        return self._facts

    def _known(self, item: Any, names: tuple[str, ...] = ()) -> Any:
        """A value, or the number of an object, which will be read. `names`: what code reads of a module."""
        kind = type(item)
        if kind in _VALUES or isinstance(item, _VALUES):
            return kind, repr(item) if kind in (float, complex, slice) else item
        if kind in _HOLDERS and not item:
            return kind  # most hooks of a module
        if kind is object or isinstance(item, _IDENTITIES):
            return _Same(item)
        key = (id(item), names)
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._queue.append((item, names))
            self._alive.append(item)
        return self._numbers[key]

    def _all(self, items: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(map(self._known, items))

    def _pairs(self, items: Mapping[Any, Any]) -> tuple[Any, ...]:
        return tuple((self._known(key), self._known(item)) for key, item in items.items())

    def _facts_of(self, item: Any, names: tuple[str, ...]) -> Any:
        match item:
            case torch.Tensor():
                return self._tensor(item)
            case type():
                return self._class(item)
            case types.FunctionType():
                return self._function(item)
            case types.ModuleType():
                return self._module(item, names)
            case types.MethodType():
                return "method", *self._all((item.__func__, item.__self__))
            case types.BuiltinFunctionType() | types.MethodWrapperType():
                owner = item.__self__
                return item.__name__, _Same(owner) if isinstance(owner, types.ModuleType | type) else self._known(owner)
            case staticmethod() | classmethod():
                return type(item), self._known(item.__func__)
            case property():
                return "property", *self._all((item.fget, item.fset))
            case partial():
                return "partial", *self._all((item.func, item.args, item.keywords)), self._pairs(vars(item))
            case types.MappingProxyType():
                return "mapping", self._pairs(item)
            case contextvars.ContextVar():
                return item.name, self._known(item.get(None))
            case weakref.ref():
                return "weak", self._known(item())
            case _ if isinstance(item, _CACHED):
                return "cached", self._known(item.__wrapped__)
            case numpy.ndarray() | numpy.generic():
                self._count(item.nbytes)
                return item.dtype.str, item.shape, self._known(item.tolist()) if item.dtype.hasobject else item.tobytes()
        return self._object(item)

    def _object(self, item: Any) -> Any:
        kind = type(item)
        contents: list[Any] = [_Same(kind)]
        if isinstance(item, dict):
            contents.append(self._pairs(dict(item)))
        elif isinstance(item, set | frozenset):
            contents.append(self._all(sorted(item, key=repr)))
        elif isinstance(item, list | tuple | deque):
            contents.append(self._all(item))
        if kind in _CONTAINERS or kind is torch.Size:
            return tuple(contents)
        if not (isinstance(item, _CONTAINERS) and kind.__module__ in ("collections", "builtins")) and not _is_plain(kind):
            raise _UnclearError
        self._known(kind)
        with suppress(TypeError, AttributeError):
            contents.append(self._pairs(object.__getattribute__(item, "__dict__")))
        if kind not in self._slots:
            entries = [entry for base in kind.__mro__ for entry in vars(base).values()]
            self._slots[kind] = [entry for entry in entries if isinstance(entry, types.MemberDescriptorType)]
        for slot in self._slots[kind]:
            with suppress(AttributeError):  # one that is not set
                contents.append((slot.__name__, self._known(slot.__get__(item))))
        return tuple(contents)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        kind: list[Any] = [_Same(type(tensor)), tensor.shape, tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad]
        hooks = [getattr(tensor, name, None) for name in ("_backward_hooks", "_post_accumulate_grad_hooks")]
        kind += [self._pairs(vars(tensor)), *self._all(hooks)]
        try:
            address = tensor.untyped_storage()._cdata
            kind += [tensor.stride(), tensor.storage_offset(), self._storages.setdefault(address, len(self._storages))]
        except (NotImplementedError, RuntimeError):  # sparse, nested or a class of the user's
            if id(tensor) not in self._numbered:
                raise _UnclearError from None
        if id(tensor) not in self._numbered:
            self._count(tensor.nbytes)
            with suppress(RuntimeError, TypeError):
                kind.append(content([tensor]))
                return tuple(kind)
            raise _UnclearError
        return tuple(kind)

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MOST_BYTES:
            raise _UnclearError

    def _function(self, function: types.FunctionType) -> Any:
        code = function.__code__
        if _is_fixed(function.__globals__.get("__name__")):
            return _Same(function), code
        names = tuple(dict.fromkeys(_names(code)))
        self._names.update(names)
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(self._known(cell.cell_contents))
            except ValueError:  # one that is not set yet
                cells.append(None)
        installed = _is_installed(code.co_filename)
        read = [(name, self._global(name, names, function.__globals__, installed)) for name in names]
        own = self._pairs(vars(function))
        return code, tuple(cells), *self._all((function.__defaults__, function.__kwdefaults__)), own, tuple(read)

    def _global(self, name: str, names: tuple[str, ...], scope: Mapping[str, Any], installed: bool) -> Any:
        if name in scope:
            item = scope[name]
        elif hasattr(builtins, name):
            if name in _HIDDEN and not installed:
                raise _UnclearError
            return None
        else:  # maybe what the code imports
            package = scope.get("__package__") or ""
            item = sys.modules.get(name) or sys.modules.get(f"{package}.{name}")
        if isinstance(item, type):
            self._made.add(item)
        return self._known(item, names if isinstance(item, types.ModuleType) else ())

    def _module(self, module: types.ModuleType, names: tuple[str, ...]) -> Any:
        scope, fixed = vars(module), _is_fixed(getattr(module, "__name__", ""))
        read = []
        for name in names:
            if name in scope:
                item = scope[name]
                code = isinstance(item, types.FunctionType | types.ModuleType | type)
                if isinstance(item, type):
                    self._made.add(item)
                read.append((name, _Same(item) if fixed and not code else self._known(item, names if type(item) is type(module) else ())))
        return _Same(module), tuple(read)

    def _class(self, kind: type) -> Any:
        """All entries, by identity; `_named_entries` reads those that some code names."""
        if kind is object:
            return "object"
        self._classes[kind] = set()
        entries = tuple((name, _Same(entry)) for name, entry in vars(kind).items() if not name.startswith("__") or callable(entry))
        return _Same(kind), entries, self._all(kind.__bases__)

    def _named_entries(self) -> Iterator[Any]:
        """Read the entries of classes that the code read so far names, or that Python's and PyTorch's own ways lead to."""
        for kind, done in list(self._classes.items()):
            file = getattr(sys.modules.get(kind.__module__), "__file__", None)
            shallow = not issubclass(kind, torch.nn.Module) and _is_installed(file or "")
            for name, entry in vars(kind).items():
                special = name.startswith("__") and name.endswith("__")
                called = name not in _UNREAD and (name not in _MAKING or kind in self._made) and callable(entry) if special else False
                if name in done or not (called or (name in self._names and not special)):
                    continue
                done.add(name)
                code = isinstance(entry, types.FunctionType | staticmethod | classmethod | property)
                if not shallow if code else not _is_fixed(kind.__module__):
                    yield name, self._known(entry)
