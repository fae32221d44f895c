"""Compiles the hand-written CUDA kernels of scans, each for one width and dtype, when a task that uses them is compiled.

They are used on CUDA for float32 and float64 up to `simulator.plan.bodies.scan_level.FUSED_WIDTH` units. Otherwise PyTorch's batched
products compute the same results; tests compare the two.
"""

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from executors.binding import Binding
from executors.kernels.native import nvrtc
from simulator.plan.bodies.scan_level import FUSED_WIDTH
from simulator.plan.task import Task
from traces.errors import SchedcastError

#: CUDA C++ types by dtype.
C_TYPES = {"float32": "float", "float64": "double"}
_log = logging.getLogger("schedcast")


def source(file: str, defines: Mapping[str, int | str]) -> str:
    """The text of a kernel file, preceded by its constants."""
    constants = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    return constants + (Path(__file__).parent / file).read_text()


def c_type(task: Task, binding: Binding) -> str | None:
    """The CUDA C++ type of a task's hand-written kernel; None if the task must run with PyTorch's ops."""
    width = task.writes[0].shape[-1]
    dtypes = {operand.dtype for operand in (*task.inputs, *task.writes)}
    usable = binding.forms.cuda and binding.device(task.device).type == "cuda" and width <= FUSED_WIDTH and len(dtypes) == 1
    return C_TYPES.get(dtypes.pop()) if usable else None


def kernel(text: str, name: str) -> nvrtc.Kernel | None:
    """The compiled kernel for the current GPU. Logs a warning and returns None if it cannot be compiled; then PyTorch's ops run instead."""
    return _compiled(text, name, torch.cuda.current_device() if torch.cuda.is_available() else -1)


@cache
def _compiled(text: str, name: str, device: int) -> nvrtc.Kernel | None:
    """Compiles once per GPU, because a CUDA module belongs to the context that it is loaded in."""
    try:
        compiled = nvrtc.compiled(text, name)
    except SchedcastError as error:
        _log.warning("scans run as PyTorch's batched products, with several kernels instead of one: %s", error)
        return None
    _log.debug("compiled %s", name)
    return compiled
