"""Finding a model's factory: a built-in name, `path/to/file.py:factory`, `package.module:factory`, or `torchvision:NAME`.

A factory is the user's code: `factory(batch_size)` returns `(module, inputs, target)` or `(module, inputs, target, loss)`. It runs only
when a person names it on the command line.
"""

import ast
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path

from simulator.models.factory import Factory, brief
from traces.errors import StepcastError
from traces.interrupts import interrupts_delayed

#: Top-level names that are ours: a user's file of such a name cannot be imported beside us.
TAKEN = ("traces", "simulator", "executors", "calibrate", "ui")


def check_built_in(spec: str, image_size: int | None) -> None:
    """Raise StepcastError for an unknown built-in model or image size; a user's model is not looked at, because it is code to run."""
    if ":" not in spec:
        find_factory(spec, image_size)


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
    from simulator.workloads.registry import get

    workload = get(spec)
    size = workload.image_size if image_size is None else image_size
    if size < workload.least_size:
        raise StepcastError(f"--image-size is {size}; {spec} takes {workload.least_size} or more")
    code = _hash_folder(Path(__file__).parents[1] / "workloads")
    data = None if workload.data is None else lambda batch, seed: workload.data(batch, size, seed)
    return Factory(spec, lambda batch: workload.build(batch, size), f"{code}:{size}", data)


def _torchvision(name: str, image_size: int | None) -> Factory:
    try:
        with interrupts_delayed():
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
    files = {Path(module.__file__) for module in list(sys.modules.values()) if getattr(module, "__file__", None)}
    own = {f for f in files if f.suffix == ".py" and f.is_relative_to(folder) and "site-packages" not in f.parts}
    return Factory(f"{place}:{name}", call, _hash_files(own))


def _load_torch() -> None:
    """Load PyTorch before a user's model does: its libraries must not be interrupted by Ctrl-C, and the model's own code may be."""
    with interrupts_delayed():
        importlib.import_module("torch")


def _import_file(path: Path):
    path = path.resolve()
    if not path.is_file():
        raise StepcastError(f"no file {path}; expected a Python file with a factory; check --model")
    _refuse_taken_names(path)
    _load_torch()
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
        raise StepcastError(f"{path} does not import: {brief(error)}; run it with python to see where") from error
    return module, path.parent


def _refuse_taken_names(path: Path) -> None:
    """Our packages win over a user's files of the same name; say so where the model means its own."""
    seen: set[Path] = set()
    todo = [path]
    while todo:
        file = todo.pop()
        for name in _imported(file):
            places = (path.parent / f"{name}.py", path.parent / name / "__init__.py")
            beside = next((place for place in places if place.is_file()), None)
            if beside is None or beside in seen:
                continue
            if name in TAKEN and str(beside) != getattr(importlib.util.find_spec(name), "origin", None):
                raise StepcastError(f"{file} imports {name}, a name taken by stepcast; rename {beside} and import it by the new name")
            seen.add(beside)
            todo.append(beside)


def _imported(file: Path) -> set[str]:
    """Top-level names that a Python file imports; none where it cannot be parsed, which its import will say."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return set()
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in found}


def _import_module(name: str):
    if not all(part.isidentifier() for part in name.split(".")):
        raise StepcastError(f"--model names {name!r}, neither a file nor a module; expected FILE.py:FACTORY or PACKAGE.MODULE:FACTORY")
    if name.partition(".")[0] in TAKEN:
        raise StepcastError(f"module {name} has a name taken by stepcast; give it as FILE.py:FACTORY, or rename it")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    _load_torch()
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise StepcastError(f"module {name} does not import: {brief(error)}; check --model and the installation") from error
    return module, Path(module.__file__).parent if module.__file__ else Path.cwd()


def _hash_folder(folder: Path) -> str:
    return _hash_files(set(folder.rglob("*.py")))


def _hash_files(files: set[Path]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
