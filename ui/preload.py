"""Loads Schedcast's packages from the folder of this one. Imports nothing but the standard library."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

#: Schedcast's top-level packages other than this one, lowest layer first.
PACKAGES = ("traces", "simulator", "executors", "calibrate")


def load_packages() -> None:
    """Load Schedcast's other packages from beside this one, so that a user's traces.py, earlier on the path, cannot replace them."""
    for name in PACKAGES:
        if name not in sys.modules:
            spec = spec_from_file_location(name, Path(__file__).resolve().parents[1] / name / "__init__.py")
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
