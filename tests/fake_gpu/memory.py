"""Tracks the memory of tensors: which stream's pool it comes from, and when it returns to the allocator."""

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor


@dataclass(eq=False)
class Memory:
    """One storage. `owner`: the stream whose pool it comes from; None if it was allocated outside of the simulation.

    `gpu`: the number of the GPU whose memory it is in; None if it is in none, or was allocated outside of the simulation.
    `block`: the number of its place in the GPU's memory, which a later storage of the same size takes over.
    """

    block: int
    bytes: int
    owner: int | None = None
    gpu: int | None = None
    capture: object = None  # the capture that allocated it, if any did
    host: str | None = None  # "pinned" or "pageable" host memory; None for the GPU's
    tensors: int = 0  # how many known tensors on it are alive, without those that graphs keep
    held: bool = False  # whether a graph keeps the storage alive
    released: bool = False


class Region(NamedTuple):
    """The bytes [first, end) of a memory that a view spans. Shape and strides say which of them belong to the view."""

    first: int
    end: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Region":
        """The region of a view."""
        item = tensor.element_size()
        shape, strides = tuple(tensor.shape), tensor.stride()
        first, count = tensor.storage_offset() * item, 1
        for n, stride in zip(shape, strides, strict=True):
            count += (n - 1) * stride
        return cls(first, first + (0 if 0 in shape else count) * item, shape, strides, item)

    @property
    def dense(self) -> bool:
        """Whether every byte of the span belongs to the view."""
        count = self.item_bytes
        for n in self.shape:
            count *= n
        return count >= self.end - self.first and 0 not in self.strides

    def covers(self, other: "Region") -> bool:
        """Whether the region contains all of `other`'s bytes. May return False for a region with gaps that does."""
        return self is other or self == other or (self.dense and self.first <= other.first and other.end <= self.end)

    def overlaps(self, other: "Region") -> bool:
        """Whether the two regions share a byte."""
        if self.first >= other.end or other.first >= self.end:
            return False
        if self.dense and other.dense:
            return True
        first, unit = min(self.first, other.first), gcd(self.item_bytes, other.item_bytes, self.first - other.first)
        units = -(-(max(self.end, other.end) - first) // unit)
        return bool((self._used(first, unit, units) & other._used(first, unit, units)).any())

    def _used(self, first: int, unit: int, units: int) -> Tensor:
        """Which of the `units` units of `unit` bytes from `first` on belong to the region."""
        used, item = torch.zeros(units, dtype=torch.bool), self.item_bytes // unit
        shape, strides = (*self.shape, item), (*(s * item for s in self.strides), 1)
        used[torch.as_strided(torch.arange(units), shape, strides, (self.first - first) // unit).reshape(-1)] = True
        return used


class _Known(weakref.ref):
    """A weak reference to a tensor or storage that the simulation has seen, with its key and memory. Cheaper than `weakref.finalize`."""

    __slots__ = ("key", "memory")

    def __new__(cls, thing: object, ended: Callable[["_Known"], None], key: int, memory: Memory) -> "_Known":
        """`ended` is called with the reference when the thing is gone."""
        return super().__new__(cls, thing, ended)

    def __init__(self, thing: object, ended: Callable[["_Known"], None], key: int, memory: Memory):
        super().__init__(thing, ended)
        self.key, self.memory = key, memory

    def __hash__(self) -> int:
        """By identity: some storages cannot be hashed."""
        return id(self)

    def __eq__(self, other: object) -> bool:
        """By identity."""
        return self is other


class Memories:
    """All memories that simulated ops have touched. `released(memory)` is called once for each, when its last tensor is gone.

    That is when the storage is freed, or if a graph keeps the storage, when no known tensor is on it any more.
    """

    def __init__(self, released: Callable[[Memory], None]):
        self._released = released
        self._by_storage: dict[int, Memory] = {}
        self._tensors: dict[int, _Known] = {}  # by id of the tensor
        self._storages: set[_Known] = set()
        self._blocks = 0
        self._free: WeakKeyDictionary[object, defaultdict] = WeakKeyDictionary()  # free blocks of each capture's pool, and of the stream's
        self.live_bytes: Counter[int] = Counter()  # by number of the GPU
        self.peak_bytes: Counter[int] = Counter()

    def find(self, tensor: Tensor) -> Memory | None:
        """The memory of a tensor; None if no op has used it before."""
        return self._by_storage.get(tensor.untyped_storage()._cdata)

    def of(self, tensor: Tensor) -> Memory:
        """The memory of a tensor that an op uses. A memory that is not known yet has no owner."""
        memory = self.find(tensor) or self._add(tensor, None, None, None, 0)
        self._count(tensor, memory)
        return memory

    def allocate(self, tensor: Tensor, owner: int, gpu: int, capture: object, round_bytes: int) -> Memory:
        """The new memory of a tensor that an op allocated."""
        memory = self._add(tensor, owner, gpu, capture, round_bytes)
        if free := self._free_blocks(memory):
            memory.block = free.pop()
        self._count(tensor, memory)
        self.add_bytes(gpu, memory.bytes)
        return memory

    def add_bytes(self, gpu: int, count: int) -> None:
        """Count so many more bytes as allocated on a GPU; fewer if `count` is negative."""
        self.live_bytes[gpu] += count
        self.peak_bytes[gpu] = max(self.peak_bytes[gpu], self.live_bytes[gpu])

    def hold(self, tensor: Tensor) -> Tensor:
        """A tensor on the same memory that does not count as a user, for a graph to keep."""
        self.of(tensor).held = True
        with torch.no_grad():
            return tensor.detach()

    def _add(self, tensor: Tensor, owner: int | None, gpu: int | None, capture: object, round_bytes: int) -> Memory:
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        if round_bytes:
            size = -(-size // round_bytes) * round_bytes
        self._blocks += 1
        memory = self._by_storage[storage._cdata] = Memory(self._blocks, size, owner, gpu, capture)
        self._storages.add(_Known(storage, self._ended, storage._cdata, memory))
        return memory

    def _count(self, tensor: Tensor, memory: Memory) -> None:
        key = id(tensor)
        if key not in self._tensors:
            memory.tensors += 1
            self._tensors[key] = _Known(tensor, self._forget, key, memory)

    def _forget(self, known: "_Known") -> None:
        memory = known.memory
        del self._tensors[known.key]
        memory.tensors -= 1
        if not memory.tensors and memory.held:
            self._release(memory)

    def _ended(self, known: "_Known") -> None:
        self._storages.discard(known)
        if self._by_storage.get(known.key) is known.memory:
            del self._by_storage[known.key]
        self._release(known.memory)

    def _release(self, memory: Memory) -> None:
        if not memory.released and (memory.owner is not None or not memory.held):
            memory.released = True
            if memory.owner is not None and memory.gpu is not None:
                self.add_bytes(memory.gpu, -memory.bytes)
                self._free_blocks(memory).append(memory.block)
            self._released(memory)

    def _free_blocks(self, memory: Memory) -> list[int]:
        """The free blocks for the memory. Like PyTorch's allocator, the simulation hands a block out again as soon as it is free."""
        return self._free.setdefault(memory.capture or self, defaultdict(list))[memory.owner, memory.bytes]
