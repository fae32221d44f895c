"""Find the factory of a model: a built-in name or form, `FILE.py:FACTORY`, `PACKAGE.MODULE:FACTORY`, or a library's model (`libraries`).

A factory is the user's code: `factory(batch_size)` returns `(module, inputs, target)` or `(module, inputs, target, loss)`. It runs only
if it is named on the command line.
"""

import ast
import hashlib
import importlib
import importlib.util
import os
import stat
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from simulator.model.factory import LIVE, Factory, Stack
from simulator.model.libraries import LIBRARIES, define_missing_operators, library_factory
from simulator.model.user_code import blamed, time_limit
from simulator.model.workloads.registry import Workload, decoder_of, get, is_built_in, language_model, names
from traces.errors import Code, SchedcastError, UnknownNameError, nearest
from traces.process import interrupts_delayed, spec_of

#: Top-level packages of Schedcast: a user's file with one of these names cannot be imported.
RESERVED = ("traces", "simulator", "executors", "calibrate", "ui") if __package__ == "simulator.model" else ()


def check_built_in(spec: str, image_size: int | None) -> None:
    """Raise SchedcastError for an unknown built-in model or a wrong image size. A user's model is not checked: it is code to run."""
    if is_built_in(spec) or ":" not in spec:
        find_factory(spec, image_size)


def find_factory(spec: str, image_size: int | None = None) -> Factory:
    """Return the factory that `spec` names. Raises SchedcastError if there is none, or if its file does not import."""
    if spec.partition(":")[0] in LIBRARIES and ":" in spec:
        return library_factory(spec, image_size)
    if spec.startswith(LIVE):
        if image_size is not None:
            raise SchedcastError("image_size (seq) applies to built-in models, not to a module; give a batch of that size")
        from simulator.model.live import find_live

        return find_live(spec)
    if ":" in spec and not is_built_in(spec):
        source, _, name = spec.rpartition(":")
        if image_size is not None:
            raise SchedcastError(f"--image-size (--seq) applies to built-in models, not to {spec!r}; set the size in your factory")
        return _user(source, name)
    if spec.endswith(".py"):
        raise SchedcastError(f"--model {spec!r} names no factory; expected FILE.py:FACTORY; add a colon and the function's name")
    workload = get(spec)
    size = workload.image_size if image_size is None else image_size
    if size < workload.least_size:
        raise SchedcastError(f"--image-size is {size}; {spec} takes {workload.least_size} or more")
    if workload.most_size is not None and size > workload.most_size:
        raise SchedcastError(f"--seq is {size}; {spec} has positions for {workload.most_size} tokens; choose a shorter sequence")
    code = _hash_files(set(Path(__file__).with_name("workloads").rglob("*.py")))
    make = workload.data
    data = None if make is None else lambda batch, seed: make(batch, size, seed)
    return Factory(spec, lambda batch: workload.build(batch, size), f"{code}:{size}", data, stack=_stack(workload, size, code))


def _stack(workload: Workload, size: int, code: str) -> Stack | None:
    """The identical blocks of a language model; None for other models, and if it has only a small number of blocks.

    `code`: a hash of that of the built-in models.
    """
    form = language_model(workload.name)
    if form is None:
        return None
    first = form.dense_layers if form.experts else 0
    few = replace(form, layers=first + 4)
    if form.layers < few.layers + 2:
        return None
    build = decoder_of(few)
    factory = Factory(workload.name, lambda batch: build(batch, size), f"{code}:{size}:{few}")
    return Stack("blocks", first, form.layers - few.layers, factory)


def _user(source: str, name: str) -> Factory:
    module = _import_file(Path(source)) if source.endswith(".py") else _import_module(source, f"{source}:{name}")
    call = getattr(module, name, None)
    if not callable(call):
        offered = [n for n, item in vars(module).items() if callable(item) and not n.startswith("_")]
        raise SchedcastError(
            f"{source} has no factory {name!r}; expected a function taking a batch size; it offers: {', '.join(offered[:12])}"
        )
    return Factory(f"{source}:{name}", call, None, repeats=True)


def _load_torch() -> None:
    """Load PyTorch before a user's model does: its libraries must not be interrupted by Ctrl-C, and the model's own code may be."""
    with interrupts_delayed():
        importlib.import_module("torch")
        define_missing_operators()


def _import_file(path: Path):
    try:
        path = path.resolve()
        readable = stat.S_ISREG(path.stat().st_mode)  # since Python 3.14, is_file() hides why it cannot tell
    except (FileNotFoundError, NotADirectoryError, ValueError):
        readable = False
    except (OSError, RuntimeError) as error:  # a name that is too long, a folder without permission, a circle of links
        raise SchedcastError(f"cannot read {path}: {error}; expected a Python file with a factory; check --model", Code.FILE) from error
    if not readable:
        raise SchedcastError(f"no file {path}; expected a Python file with a factory; check --model", Code.FILE)
    _refuse_reserved_names(path)
    _load_torch()
    # At the end, after our own packages and the libraries: a traces.py next to the user's model must not replace ours.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    name = f"schedcast_user_{path.stem}_{hashlib.blake2b(os.fsencode(path), digest_size=4).hexdigest()}"
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise SchedcastError(f"{path} is no Python file; expected one with a factory; check --model", Code.FILE)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        with time_limit(f"the import of {path}"):
            specification.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt | SchedcastError):
            raise
        raise SchedcastError(blamed(error, f"{path} does not import")) from error
    return module


def _refuse_reserved_names(path: Path) -> None:
    """Raise SchedcastError if the user's file, or a neighbor that it imports, imports a neighbor whose name one of our packages has."""
    seen: set[Path] = set()
    todo = [path]
    while todo:
        file = todo.pop()
        for name in _imported(file):
            candidates = (path.parent / f"{name}.py", path.parent / name / "__init__.py")
            neighbor = next((candidate for candidate in candidates if candidate.is_file()), None)
            if neighbor is None or neighbor in seen:
                continue
            if name in RESERVED and str(neighbor) != getattr(spec_of(name), "origin", None):
                raise SchedcastError(f"{file} imports {name}, a name taken by schedcast; rename {neighbor} and import it by the new name")
            seen.add(neighbor)
            todo.append(neighbor)


def _imported(file: Path) -> frozenset[str]:
    """Return the top-level names that a Python file imports; none if it cannot be read or parsed, which importing it will report."""
    try:
        return _imported_by(file.read_bytes())
    except OSError:
        return frozenset()


@lru_cache  # the file is imported anew for each job, and seldom changes between two
def _imported_by(code: bytes) -> frozenset[str]:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return frozenset(name.partition(".")[0] for name in names)


def _import_module(name: str, spec: str):
    if name.partition(".")[0] in RESERVED:
        raise SchedcastError(f"module {name} has a name taken by schedcast; give it as FILE.py:FACTORY, or rename it")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    may_exist = all(part.isidentifier() for part in name.split("."))
    if not (may_exist and spec_of(name.partition(".")[0])) and nearest(spec, names()) is not None:
        raise UnknownNameError("model", spec, names(), "`schedcast models` lists them; a model of your own is FILE.py:FACTORY")
    if not may_exist:
        raise SchedcastError(f"--model names {name!r}, neither a file nor a module; expected FILE.py:FACTORY or PACKAGE.MODULE:FACTORY")
    _load_torch()
    try:
        with time_limit(f"the import of {name}"):
            module = importlib.import_module(name)
    except (KeyboardInterrupt, SchedcastError):
        raise
    except BaseException as error:
        raise SchedcastError(blamed(error, f"module {name} does not import; check --model and the installation")) from error
    return module


def _hash_files(files: set[Path]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
