"""Settings and counters of glibc's allocator.

`prepare` keeps the memory of tensors in the process between steps. By default every large tensor is a new mapping whose pages fault on
first touch (9,000 to 15,000 faults in one ResNet-50 step), which makes times unpredictable.
"""

import ctypes
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

if sys.platform != "win32":
    import resource

_OPTIONS = (
    (-4, 0),  # M_MMAP_MAX: no mapping per allocation
    (-1, -1),  # M_TRIM_THRESHOLD: never return memory, however much is free
    (-2, 256 << 20),  # M_TOP_PAD: grow the heap in large pieces
    (-8, 1),  # M_ARENA_MAX: one arena, so that a tensor freed by one worker can be reused by another
)


#: Sizes in bytes that `without_holes` allocates, the largest first. With the 8 bytes that malloc adds they are powers of two.
_HOLES = tuple((1 << power) - 8 for power in range(16, 4, -1))
#: Free chunks that may remain, since visiting them takes only 50 us. At each size, twice as many chunks are allocated first.
_BATCH = 2000
#: The most bytes to allocate at a time.
_MOST_BYTES = 16 << 20


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
                                                     "fordblks", "keepcost")]  # fmt: skip


@cache
def prepare() -> bool:
    """Apply the settings, once per process and before any worker thread starts.

    Returns False, and logs a warning, if the allocator is not glibc's.
    """
    try:
        libc = ctypes.CDLL(None)
        accepted = all(libc.mallopt(option, value) == 1 for option, value in _OPTIONS)
    except (OSError, AttributeError, TypeError):  # TypeError: Windows
        accepted = False
    if not accepted:
        logging.getLogger("schedcast").warning("the C library's allocator cannot be set; CPU times will be less predictable")
    return accepted


@cache
def _mallinfo2():
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError, TypeError):  # TypeError: Windows
        return None
    function.restype = _Mallinfo2
    return function


def allocated_bytes() -> int | None:
    """Bytes in use according to the allocator; None if it has no mallinfo2 (glibc before 2.33, other C libraries)."""
    function = _mallinfo2()
    if function is None:
        return None
    info = function()
    return info.uordblks + info.hblkhd


@contextmanager
def without_holes() -> Iterator[None]:
    """Allocate the free chunks between those in use, so that `allocated_bytes` is quick in a process with many objects.

    mallinfo2 visits every free chunk, which takes 40 ms if there are 200,000. Until the chunks are freed again, new tensors are at the end
    of the heap.
    """
    if _mallinfo2() is None:
        yield
        return
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t]
    last_chunk = libc.sbrk(0) - _mallinfo2()().keepcost  # nothing beyond it was in use
    held: list[int] = []
    try:
        for size in _HOLES:
            count = inside = _BATCH
            while 2 * inside >= count and _mallinfo2()().ordblks > _BATCH:
                count = min(2 * count, max(1, _MOST_BYTES // size))
                taken = [libc.malloc(size) for _ in range(count)]
                inside = sum(address < last_chunk for address in taken)
                held += taken
        yield
    finally:
        for address in held:
            libc.free(address)


def page_faults() -> int:
    """Minor page faults of this process so far; 0 where the system does not count them."""
    return 0 if sys.platform == "win32" else resource.getrusage(resource.RUSAGE_SELF).ru_minflt
