"""Starts Python programs by forking a process that has imported PyTorch and Schedcast: `python -m tests.support.fork_server SOCKET_NUMBER`.

Each is a process of its own, with its own environment, folder, arguments, output and signals. It saves the seconds of the imports. See
`warm_processes`, which sends the requests.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
from types import ModuleType

from tests.support.busy_machine import accept_other_work

#: What most programs import. No module that is run as a program is among them.
IMPORTS = (
    "torch", "torch._dynamo", "torch.distributed", "rich.console", "rich.table", "typer.main",
    "calibrate.training", "calibrate.validation", "calibrate.cpu.plain_server", "calibrate.cpu.testbed", "executors.cpu.backend",
    "executors.distributed.backend",
    "executors.trainer", "simulator.papers", "simulator.strategies.registry", "ui.commands.measuring", "ui.commands.training",
    "ui.present.report",
)  # fmt: skip
#: How often to look for ended programs, in seconds.
POLL_S = 0.02


def main(channel: socket.socket) -> None:
    """Fork a program for each request until the other end closes the channel, and say when a program has ended."""
    for name in IMPORTS:
        importlib.import_module(name)
    accept_other_work()
    gc.collect()
    gc.freeze()
    running = set()
    while True:
        if select.select([channel], [], [], POLL_S if running else None)[0]:
            message, files, _, _ = socket.recv_fds(channel, 1 << 20, 3)
            if not message:
                return
            pid = os.fork()
            if not pid:
                channel.close()
                _become(json.loads(message), files)
            for file in files:
                os.close(file)
            running.add(pid)
            _send(channel, {"started": pid})
        for pid in tuple(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.remove(pid)
                _send(channel, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _send(channel: socket.socket, message: dict) -> None:
    channel.send(json.dumps(message).encode())


def _become(request: dict, files: list[int]) -> None:
    """Turn this process into the program that is asked for. Does not return."""
    status = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _use_threads(request["env"])
        status = _run(request["args"])
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _use_threads(env: dict[str, str]) -> None:
    """What PyTorch does when it is imported with OMP_NUM_THREADS."""
    import torch

    if "OMP_NUM_THREADS" in env:
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))


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
    main(socket.socket(fileno=int(sys.argv[1])))
