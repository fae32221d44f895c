"""Calls of the CUDA driver through cuda.bindings: optional, and PyTorch's CUDA builds bring it."""

from types import ModuleType
from typing import Any

from traces.errors import StepcastError


class DriverApi:
    """The functions of `cuda.bindings.driver`, with errors as StepcastError. `names` is the module itself, for its constants."""

    def __init__(self, names: ModuleType):
        self.names = names

    def __call__(self, function: str, *args: Any) -> Any:
        """Call one function; returns its only output, or the tuple of them. Raises StepcastError if it fails or does not exist."""
        try:
            code, *outputs = getattr(self.names, function)(*args)
        except AttributeError as error:
            raise StepcastError(f"cuda-bindings has no {function} ({error}); install a newer one: pip install -U cuda-bindings") from error
        except RuntimeError as error:  # cuda.bindings looks the function up in libcuda at the first call
            raise StepcastError(f"the GPU driver has no {function} ({first_line(error)}); update the driver") from error
        if int(code) != 0:
            raise StepcastError(f"{function} failed with {code.name}; see the CUDA driver's documentation of that error")
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def find_driver_api() -> DriverApi | None:
    """The driver's functions, or None where the package cuda-bindings is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    return DriverApi(driver)


def first_line(error: BaseException) -> str:
    """What an error says, on one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
