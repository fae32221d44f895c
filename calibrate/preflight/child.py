"""A process that runs probes: `python -m calibrate.preflight.child JSON`. A crash or a hang ends only this process.

Its standard input is a connection. JSON has `opener`, which names a function, as module:function or module:function:INDEX, that returns the
context, `folder`, `targets` and `samples`. Requests are the name of a probe, the seconds that are left and those to reserve.

Without JSON it is the server that forks such processes, since importing PyTorch and Schedcast takes each of them seconds.
"""

import json
import logging
import os
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch

from calibrate.cuda.device_record import GpuMonitor
from calibrate.preflight.probe import Context, answer
from calibrate.preflight.registry import probes
from calibrate.preflight.validations import Target
from calibrate.testbeds import wait_until_quiet
from executors.cuda.torch_driver import gpu
from traces.errors import SchedcastError
from traces.forking import serve
from traces.process import end_with

REAL = f"{__package__}.child:on_gpu"
#: The request other than the names of probes: wait until other processes leave the GPU alone, and return its name.
QUIET = "other processes"


def on_gpu(index: str = "0") -> Context:
    """The context of probes on GPU `index`. Raises SchedcastError if it cannot be used."""
    return Context(gpu(int(index)))


def main(*request: str) -> None:
    """Run probes, or, without JSON, fork processes that do."""
    if request:
        run_probes(json.loads(request[0]))
    end_with(os.getppid())
    import_module("torch._dynamo")  # as optimizers and captures do
    probes()
    if why := _unforkable():
        sys.exit(f"every probe imports PyTorch by itself, since a process that has done so cannot fork: {why}")
    serve(run_probes)


def _unforkable() -> str:
    """Why this process must not fork; "" if it may. Threads do not survive a fork, and CUDA and NVML do not work after one."""
    try:
        threads, files = len(os.listdir("/proc/self/task")), os.listdir("/proc/self/fd")
    except OSError as error:
        return f"its threads are unknown: {error}"
    if threads > 1:
        return f"it has {threads} threads"
    opened = torch.cuda.is_initialized()
    for file in files:
        with suppress(OSError):  # the folder that was just listed
            opened |= os.readlink(f"/proc/self/fd/{file}").startswith("/dev/nvidia")
    return "it has opened the GPU" if opened else ""


def run_probes(given: dict[str, Any]) -> NoReturn:
    """Answer the requests of the connection until it is closed, and end."""
    end_with(os.getppid())
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="schedcast: %(message)s")
    connection = Connection(os.dup(sys.stdin.fileno()))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())  # programs that a probe starts must not keep the connection open
    by_name = {probe.name: probe for probe in probes([Target(*target) for target in given["targets"]])}
    module, function, *arguments = given["opener"].split(":")
    try:
        context: Context = getattr(import_module(module), function)(*arguments)
    except SchedcastError as error:
        connection.recv()
        connection.send({"unusable": str(error)})
        os._exit(0)
    context.folder, context.keep_samples = Path(given["folder"]), given["samples"]
    context.show = lambda done, total, text: connection.send((done, total, text))
    while True:
        try:
            name, left_s, reserve_s = connection.recv()
        except EOFError:  # libraries of the GPU may hang at exit
            os._exit(0)
        if name == QUIET:
            monitor = partial(GpuMonitor, getattr(context.driver, "uuid", ""))
            reply = {"product": context.driver.facts.name, "busy_share": wait_until_quiet(monitor, left_s, context.show)}
        else:
            reply = answer(by_name[name], context, left_s, reserve_s)
        connection.send(reply)


if __name__ == "__main__":
    main(*sys.argv[1:])
