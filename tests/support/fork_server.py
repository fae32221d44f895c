"""Runs Python programs in forks of a process that has imported PyTorch and Schedcast: `python -m tests.support.fork_server`.

Each has its own environment, folder, arguments, output and signals. It saves the seconds of the imports. `warm_processes` sends requests.
"""

import atexit
import importlib
import os
import runpy
import sys
import threading
import traceback
from types import ModuleType

from tests.support.busy_machine import accept_other_work
from traces.forking import serve

#: What most programs import. No module that is run as a program is among them.
IMPORTS = (
    "torch", "torch._dynamo", "torch.distributed", "rich.console", "rich.table", "typer.main",
    "calibrate.training", "calibrate.validation", "calibrate.cpu.plain_server", "calibrate.cpu.testbed", "executors.cpu.backend",
    "executors.distributed.backend",
    "executors.trainer", "simulator.papers", "simulator.strategies.registry", "ui.commands.measuring", "ui.commands.training",
    "ui.present.report",
)  # fmt: skip


def _become(args: list[str]) -> int:
    """Turn this process into the program that is asked for. Returns its status."""
    _use_threads()
    status = _run(args)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _use_threads() -> None:
    """What PyTorch does when it is imported with OMP_NUM_THREADS."""
    import torch

    if "OMP_NUM_THREADS" in os.environ:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def _run(args: list[str]) -> int:
    """Run `-c CODE ARGS...` or `-m MODULE ARGS...` as Python does. Returns the status."""
    kind, program, *rest = args
    sys.argv = [kind if kind == "-c" else program, *rest]
    sys.path[0] = "" if kind == "-c" else os.getcwd()
    try:
        if kind == "-c":
            sys.modules["__main__"] = module = ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), module.__dict__)
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    for name in IMPORTS:
        importlib.import_module(name)
    accept_other_work()
    serve(_become)
