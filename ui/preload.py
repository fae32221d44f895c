"""Loads Schedcast's packages from the folder of this one, and PyTorch's files from the disk. Imports nothing but the standard library."""

import os
import sys
from contextlib import suppress
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from threading import Thread

#: Schedcast's top-level packages other than this one, lowest layer first.
PACKAGES = ("traces", "simulator", "executors", "calibrate")
#: Linux reads no more than its readahead window at a request, which has at least this many bytes.
_WINDOW = 1 << 17


def load_packages() -> None:
    """Load Schedcast's other packages from the folder of this one, so that a user's traces.py, earlier on the path, cannot replace them.

    In an installed wheel they have names that no user's file has.
    """
    for name in PACKAGES if __package__ == "ui" else ():
        if name not in sys.modules:
            spec = spec_from_file_location(name, Path(__file__).resolve().parents[1] / name / "__init__.py")
            if spec is not None and spec.loader is not None:  # there is one for a file of Python
                sys.modules[name] = module_from_spec(spec)
                spec.loader.exec_module(sys.modules[name])


def read_torch_ahead() -> None:
    """Let the disk read the libraries of PyTorch, and NVIDIA's next to it, while this process continues."""
    spec = find_spec("torch")
    if spec is not None and spec.origin is not None:  # a user's folder called torch has none
        Thread(target=read_ahead, args=(Path(spec.origin).parents[1],), daemon=True).start()


def read_ahead(site: Path) -> None:
    """Let the disk read the libraries in a folder of packages into memory. Silent if that fails: they are read when they are used."""
    with suppress(OSError, AttributeError):  # not every system can be asked
        for path in (*site.glob("torch/lib/*.so*"), *site.glob("nvidia/*/lib/*.so*")):
            with path.open("rb") as file:
                for offset in range(0, path.stat().st_size, _WINDOW):
                    os.posix_fadvise(file.fileno(), offset, _WINDOW, os.POSIX_FADV_WILLNEED)
