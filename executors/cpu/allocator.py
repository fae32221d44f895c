"""Settings and counters of glibc's allocator.

`prepare` keeps the memory of tensors in the process between steps. By default every large tensor is a new mapping whose pages fault on
first touch (9,000 to 15,000 faults in one ResNet-50 step), which makes times unpredictable.
"""

import ctypes
import logging
import resource
from functools import cache

_OPTIONS = (
    (-4, 0),  # M_MMAP_MAX: no mapping per allocation
    (-1, 2**31 - 1),  # M_TRIM_THRESHOLD: never give memory back
    (-2, 256 << 20),  # M_TOP_PAD: grow the heap in large pieces
    (-8, 1),  # M_ARENA_MAX: one arena, so that a tensor freed by one worker can be reused by another
)


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
    except (OSError, AttributeError):
        accepted = False
    if not accepted:
        logging.getLogger("stepcast").warning("the C library's allocator cannot be set; CPU times will be less predictable")
    return accepted


@cache
def _mallinfo2():
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
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


def page_faults() -> int:
    """Minor page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
