"""Runs one check in this process: `python -m calibrate.preflight.child NAME CONTEXT RESULT`.

CONTEXT names a function, as module:function or module:function:INDEX, that returns the check's context. The answer is written to RESULT. A
crash or a hang ends this process alone.
"""

import logging
import os
import sys
from importlib import import_module
from pathlib import Path

from calibrate.preflight.check import CheckContext
from calibrate.preflight.registry import CHECKS
from executors.cuda.torch_driver import gpu
from simulator.models.user_code import brief
from traces.errors import StepcastError
from traces.files import write_json
from traces.parents import end_with

REAL = "calibrate.preflight.child:on_gpu"


def on_gpu(index: str = "0") -> CheckContext:
    """The context of a check on GPU `index`."""
    return CheckContext(gpu(int(index)))


def main(name: str, opener: str, result: str) -> int:
    """Make the check and write its answer. Returns 0, or 2 if the GPU cannot be used, with the reason in the answer."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="stepcast: %(message)s")
    end_with(os.getppid())
    check = next(check for check in CHECKS if check.name == name)
    module, function, *arguments = opener.split(":")
    try:
        context: CheckContext = getattr(import_module(module), function)(*arguments)
    except StepcastError as error:
        write_json(result, {"unusable": str(error)})
        return 2
    context.path = Path(result)
    try:
        finding = check.run(context)
        context.driver.synchronize()
    except Exception as error:
        import traceback

        traceback.print_exc()
        write_json(result, {"figures": context.figures, "error": brief(error)})
        return 1
    mend = [mend.model_dump() for mend in finding.mend]
    write_json(result, {"figures": context.figures, "verdict": finding.verdict, "means": finding.means, "mend": mend})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
