"""Runs the command line many times in one warm process, which imports torch once and forks for every request.

Requests and answers are JSON lines: {"args", "cwd", "env", "file_limit"} in, {"status", "out", "err"} out. `file_limit` is the size in
bytes that a file may reach, which simulates a full disk; 0 for no limit.
"""

import json
import os
import resource
import sys
import tempfile
import traceback


def main() -> None:
    """Serve requests until standard input ends."""
    import torch

    from simulator.model.job import Job
    from tests.support.busy_machine import accept_other_work
    from ui import cli
    from ui.commands import listing, measuring, predicting, training  # noqa: F401

    accept_other_work()
    if torch.version.cuda is None:  # autograd of a CUDA build refuses to work after a fork once it has worked before
        Job("lenet5", 1).graph()  # makes PyTorch load what it loads on first use
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), cli.main)), flush=True)


def _answer(request: dict, run) -> dict:
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os._exit(_child(request, run, out, err))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return {"status": status, "out": out.read(), "err": err.read()}


def _child(request: dict, run, out, err) -> int:
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    if request["file_limit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
    sys.argv = ["schedcast", *request["args"]]
    status = 0
    try:
        run()
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 70
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        stream.flush()
    return status


if __name__ == "__main__":
    main()
