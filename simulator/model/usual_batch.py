"""The batch of a job whose batch is not given: the model's usual one."""

import ast
from pathlib import Path

from traces.errors import UnusableFileError
from traces.files import kind_at, read_bytes


def usual_batch(spec: str, devices: int = 1) -> int:
    """Return the usual batch of the model that `spec` names (see `find`), or the next larger one that divides among the devices.

    A user's factory states it as the default of its argument, `def make(batch_size=16)`, which is read without running the file.
    """
    return -(-_usual(spec) // devices) * devices


def _usual(spec: str) -> int:
    from simulator.model.libraries import LIBRARIES
    from simulator.model.workloads.registry import USUAL_BATCH, get, is_built_in

    if is_built_in(spec) or (":" not in spec and not spec.endswith(".py")):
        return get(spec).batch
    source, _, name = spec.rpartition(":")
    default = _default(source_file(spec), name) if source and spec.partition(":")[0] not in LIBRARIES else None
    return USUAL_BATCH if default is None else default


def source_file(spec: str) -> Path | None:
    """Return the file of a user's factory: `FILE.py:FACTORY`, or `PACKAGE.MODULE:FACTORY` below the current folder. None for others."""
    source = spec.rpartition(":")[0]
    if source.endswith(".py"):
        return Path(source)
    module = Path(*source.split(".")) if source else None
    candidates = (module.with_suffix(".py"), module / "__init__.py") if module is not None else ()
    return next((file for file in candidates if kind_at(file) == "file"), None)


def _default(file: Path | None, name: str) -> int | None:
    """Return the default of the first argument of the function `name` in `file` if it is a positive number, otherwise None."""
    try:
        functions = [node for node in ast.parse(read_bytes(file, "model")).body if isinstance(node, ast.FunctionDef)] if file else []
    except (UnusableFileError, SyntaxError, ValueError, RecursionError):  # running the file will say what is wrong
        return None
    arguments = next((function.args for function in reversed(functions) if function.name == name), None)
    if arguments is None or len(arguments.defaults) < len(arguments.posonlyargs + arguments.args) or not arguments.defaults:
        return None
    first = arguments.defaults[0]
    value = first.value if isinstance(first, ast.Constant) else None
    return value if type(value) is int and value > 0 else None
