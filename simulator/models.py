"""Finding a model's factory: a built-in name, `path/to/file.py:factory`, `package.module:factory`, or `torchvision:NAME`.

A factory is the user's code: `factory(batch_size)` returns `(module, inputs, target)` or `(module, inputs, target, loss)`. It runs only
when a person names it on the command line.
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traces.errors import StepcastError

EXPECTED = "(module, inputs, target) or (module, inputs, target, loss)"


@dataclass(frozen=True)
class Factory:
    """A callable that makes a model for a batch size, and a hash of the code it comes from (for the capture cache)."""

    name: str
    call: Callable[[int], tuple]
    fingerprint: str


def find_factory(spec: str, image_size: int | None = None) -> Factory:
    """The factory that `spec` names. Raises StepcastError with what is wrong on one line."""
    if spec.startswith("torchvision:"):
        return _torchvision(spec.removeprefix("torchvision:"), image_size)
    if ":" in spec:
        place, _, name = spec.rpartition(":")
        if image_size is not None:
            raise StepcastError(f"--image-size applies to built-in models, not to {spec!r}; set the size in your factory")
        return _user(place, name)
    if spec.endswith(".py"):
        raise StepcastError(f"--model {spec!r} names no factory; expected FILE.py:FACTORY; add a colon and the function's name")
    from .workloads import get

    workload = get(spec)
    size = workload.image_size if image_size is None else image_size
    return Factory(spec, lambda batch: workload.build(batch, size), f"{_hash_folder(Path(__file__).parent / 'workloads')}:{size}")


def _torchvision(name: str, image_size: int | None) -> Factory:
    try:
        torchvision = importlib.import_module("torchvision")
    except ImportError as error:
        raise StepcastError(f"torchvision:{name} needs torchvision, which is not installed; install it or use a built-in model") from error
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        from traces.errors import UnknownNameError

        raise UnknownNameError("torchvision model", name, known)
    size = image_size or 224

    def make(batch: int) -> tuple:
        import torch

        return torchvision.models.get_model(name, weights=None), torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))

    return Factory(f"torchvision:{name}", make, f"{torchvision.__version__}:{size}")


def _user(place: str, name: str) -> Factory:
    module, folder = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    call = getattr(module, name, None)
    if not callable(call):
        offered = [n for n, item in vars(module).items() if callable(item) and not n.startswith("_")]
        raise StepcastError(
            f"{place} has no factory {name!r}; expected a function taking a batch size; it offers: {', '.join(offered[:12])}"
        )
    files = [Path(m.__file__) for m in list(sys.modules.values()) if getattr(m, "__file__", None) and m.__file__.startswith(str(folder))]
    return Factory(f"{place}:{name}", call, _hash_files({f for f in files if f.suffix == ".py"}))


def _import_file(path: Path):
    path = path.resolve()
    if not path.is_file():
        raise StepcastError(f"no file {path}; expected a Python file with a factory; check --model")
    # Behind our own packages and the libraries, so that a user's traces.py next to the model cannot replace ours.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    name = f"stepcast_user_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise StepcastError(f"{path} does not import: {_brief(error)}; run it with python to see where") from error
    return module, path.parent


def _import_module(name: str):
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise StepcastError(f"module {name} does not import: {_brief(error)}; check --model and the installation") from error
    return module, Path(module.__file__).parent if module.__file__ else Path.cwd()


def call_factory(factory: Factory, batch: int):
    """Run the factory and bring what it returns into one form (`built.Built`), the module in training mode.

    Raises StepcastError when it raises or returns something else.
    """
    import torch

    from .built import Built, FactoryFailedError

    try:
        made = factory.call(batch)
    except StepcastError:
        raise
    except Exception as error:
        raise FactoryFailedError(
            f"the factory {factory.name} failed for batch size {batch}: {_brief(error)}; run it on its own to see where"
        ) from error
    if not isinstance(made, tuple | list) or len(made) not in (3, 4) or not isinstance(made[0], torch.nn.Module):
        shown = f"a tuple of {len(made)}" if isinstance(made, tuple | list) else type(made).__name__
        raise StepcastError(f"the factory {factory.name} returned {shown}; expected {EXPECTED}")
    module, inputs, target = made[:3]
    loss = made[3] if len(made) == 4 else torch.nn.functional.cross_entropy
    if not callable(loss):
        raise StepcastError(
            f"the factory {factory.name} returned a loss of type {type(loss).__name__}; expected a function (output, target)"
        )
    keywords = dict(inputs) if isinstance(inputs, dict) else {}
    positional: tuple[Any, ...] = () if keywords else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    module.train()
    return Built(module, positional, keywords, target, loss)


def _brief(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _hash_folder(folder: Path) -> str:
    return _hash_files(set(folder.glob("*.py")))


def _hash_files(files: set[Path]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
