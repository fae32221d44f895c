"""Lets a stream call a C function on the host: the stream stops, a thread of the driver sleeps, and the stream continues.

The driver's library is called directly, because cuda.bindings 12.9 and 13.0 pass a wrapper to cuLaunchHostFunc instead of the function
(13.5 does not). The wrapper needs Python's global lock, and data that lives for one call only, so in a graph only the first replay is
known to reach the function (NVIDIA/cuda-python, "cudaLaunchHostFunc doesn't work with CUDA Graph").
"""

import ctypes
from functools import cache

from traces.errors import SchedcastError

#: The largest value of useconds_t, the type of usleep's argument. A larger one would be truncated to 32 bits.
_MOST_US = 2**32 - 1
_LIBRARY = "libcuda.so.1"


def call_host(stream: int, duration_s: float) -> None:
    """Let the stream with this handle call a function that sleeps for `duration_s`, rounded to microseconds; 0 returns at once.

    The system's timers usually end the sleep about 50 us late. Raises SchedcastError if the duration is out of range or the call fails.
    """
    microseconds = round(duration_s * 1e6)
    if not 0 <= microseconds <= _MOST_US:
        raise SchedcastError(f"a stream of a GPU cannot call the host for {duration_s} s; expected 0 to {_MOST_US // 10**6} s")
    driver = _driver()
    code = driver.cuLaunchHostFunc(stream, _function("usleep" if microseconds else "labs"), microseconds)
    if code:
        raise SchedcastError(f"cuLaunchHostFunc failed with {_error_name(driver, code)}; see the CUDA driver's documentation of that error")


@cache
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL(_LIBRARY)
        driver.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
    except (OSError, AttributeError) as error:
        raise SchedcastError(
            f"streams cannot call the host: {_LIBRARY} or its cuLaunchHostFunc is missing; update the GPU driver"
        ) from error
    return driver


@cache
def _function(name: str) -> int:
    """The address of a C library function with one integer argument. Such a function needs neither Python nor its global lock."""
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value


def _error_name(driver: ctypes.CDLL, code: int) -> str:
    """The error's name, or its number if the driver does not know a name."""
    name = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(name))
    return name.value.decode() if name.value else f"error {code}"
