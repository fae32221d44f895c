"""A process that runs probes: `python -m calibrate.preflight.child HANDLE JSON`. A crash or a hang ends it alone.

HANDLE is the file descriptor of a connection. JSON has `opener`, which names a function, as module:function or module:function:INDEX, that
returns the context, `folder`, `targets` and `samples`. Requests are the name of a probe, the seconds that are left and those to reserve.
"""

import json
import logging
import os
import sys
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

from calibrate.cuda.device_record import GpuMonitor
from calibrate.preflight.probe import Context, answer
from calibrate.preflight.registry import probes
from calibrate.preflight.validations import Target
from calibrate.testbeds import wait_until_quiet
from executors.cuda.torch_driver import gpu
from traces.errors import SchedcastError
from traces.process import end_with

REAL = "calibrate.preflight.child:on_gpu"
#: The request besides the names of probes: wait until other processes leave the GPU alone, and return its name.
QUIET = "other processes"


def on_gpu(index: str = "0") -> Context:
    """The context of probes on GPU `index`. Raises SchedcastError if it cannot be used."""
    return Context(gpu(int(index)))


def main(handle: str, request: str) -> None:
    """Answer the requests of the connection until it is closed."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="schedcast: %(message)s")
    end_with(os.getppid())
    os.set_inheritable(int(handle), False)
    connection, given = Connection(int(handle)), json.loads(request)
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
