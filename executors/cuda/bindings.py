"""Calls the CUDA driver through the optional package cuda-bindings, which PyTorch's CUDA builds install."""

from types import ModuleType
from typing import Any

from traces.errors import SchedcastError


class DriverApi:
    """The functions of `cuda.bindings.driver`, with errors raised as SchedcastError. `names`: the module itself, for its constants."""

    def __init__(self, names: ModuleType):
        self.names = names

    def __call__(self, function: str, *args: Any) -> Any:
        """Call one function. Returns its only output, or a tuple of its outputs. Raises SchedcastError if it fails or does not exist."""
        try:
            code, *outputs = getattr(self.names, function)(*args)
        except AttributeError as error:
            raise SchedcastError(f"cuda-bindings has no {function} ({error}); install a newer one: pip install -U cuda-bindings") from error
        except RuntimeError as error:  # cuda.bindings looks the function up in libcuda at the first call
            raise SchedcastError(f"the GPU driver has no {function} ({first_line(error)}); update the driver") from error
        if int(code) != 0:
            raise SchedcastError(f"{function} failed with {code.name}; see the CUDA driver's documentation of that error")
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def find_driver_api() -> DriverApi | None:
    """The driver's functions; None if the package cuda-bindings is not installed."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None
    return DriverApi(driver)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
