"""Calls of a C function on the host from within a stream: the stream stops, a thread of the driver sleeps, the stream goes on.

The driver's library is called directly: cuda.bindings 12.9 and 13.0 hand cuLaunchHostFunc a wrapper instead of the function given (13.5
does not). The wrapper needs Python's lock, and data that lives for one call, so that only the first replay of a graph is known to reach
the function (NVIDIA/cuda-python, "cudaLaunchHostFunc doesn't work with CUDA Graph").
"""

import ctypes
from functools import cache

from traces.errors import StepcastError

#: The range of useconds_t, the argument of usleep; what is above it would be cut to 32 bits.
_MOST_US = 2**32 - 1
_LIBRARY = "libcuda.so.1"


def call_host(stream: int, duration_s: float) -> None:
    """Let the stream behind the handle call a function that sleeps for `duration_s` seconds, to the microsecond, or returns at once for 0.

    Sleeping ends later than asked for by what the system's timers are late, usually some 50 us. Raises StepcastError.
    """
    microseconds = round(duration_s * 1e6)
    if not 0 <= microseconds <= _MOST_US:
        raise StepcastError(f"a stream of a GPU cannot call the host for {duration_s} s; expected 0 to {_MOST_US // 10**6} s")
    driver = _driver()
    code = driver.cuLaunchHostFunc(stream, _function("usleep" if microseconds else "labs"), microseconds)
    if code:
        raise StepcastError(f"cuLaunchHostFunc failed with {_named(driver, code)}; see the CUDA driver's documentation of that error")


@cache
def _driver() -> ctypes.CDLL:
    try:
        found = ctypes.CDLL(_LIBRARY)
        found.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
    except (OSError, AttributeError) as error:
        raise StepcastError(
            f"streams cannot call the host: {_LIBRARY} or its cuLaunchHostFunc is missing; update the GPU driver"
        ) from error
    return found


@cache
def _function(name: str) -> int:
    """The address of a function of the C library with one integer argument. It needs neither Python nor its lock."""
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value


def _named(driver: ctypes.CDLL, code: int) -> str:
    """The error's name, else its number."""
    name = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(name))
    return name.value.decode() if name.value else f"error {code}"
