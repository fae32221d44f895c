"""Hand-written CUDA kernels of scans, compiled for one width and dtype when a task is, and how they are launched.

They take over on CUDA for float32 and float64 up to `simulator.bodies.scan_level.FUSED_WIDTH` units. Elsewhere the batched products of
PyTorch do the same, which tests hold them against.
"""

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from executors.binding import Binding
from executors.kernels.native import nvrtc
from simulator.bodies.scan_level import FUSED_WIDTH
from simulator.plan.task import Task
from traces.errors import StepcastError

_REAL = {"float32": "float", "float64": "double"}
_log = logging.getLogger("stepcast")


def source(file: str, defines: Mapping[str, int | str]) -> str:
    """The text of a kernel file with its constants before it."""
    constants = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    return constants + (Path(__file__).parent / file).read_text()


def usable(task: Task, binding: Binding) -> str | None:
    """The dtype, as CUDA C++ calls it, in which a task's own kernel can run where it is bound; None for PyTorch's ops."""
    width = task.writes[0].shape[-1]
    dtypes = {operand.dtype for operand in (*task.inputs, *task.writes)}
    own = binding.forms.cuda and binding.device(task.device).type == "cuda" and width <= FUSED_WIDTH and len(dtypes) == 1
    return _REAL.get(dtypes.pop()) if own else None


def kernel(text: str, name: str) -> nvrtc.Kernel | None:
    """The compiled kernel; None, with a warning in the log, where there is no NVRTC: PyTorch's ops do its work then."""
    return _compiled(text, name, torch.cuda.current_device() if torch.cuda.is_available() else -1)


@cache
def _compiled(text: str, name: str, device: int) -> nvrtc.Kernel | None:
    """Once per GPU: a module belongs to the context that it is loaded in."""
    try:
        found = nvrtc.compiled(text, name)
    except StepcastError as error:
        _log.warning("scans run as PyTorch's batched products, several kernels in place of one: %s", error)
        return None
    _log.debug("compiled %s", name)
    return found
