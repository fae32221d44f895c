"""Waits for the GPU so that Ctrl-C works, and so that a GPU that never finishes is reported instead of waited for in silence.

PyTorch's synchronize blocks within the driver, where Python handles no signal. Kernels whose blocks wait for each other need all of their
SMs at once, and may not get them beside other work: cuDNN's persistent batch-norm for channels-last tensors stalls beside collectives
(pytorch/pytorch#80259). PyTorch's own channels-last batch-norm does not wait: its last block finishes the sum.
"""

import logging
import time
from collections.abc import Callable

log = logging.getLogger("schedcast")

#: Seconds after which the wait is reported for the first time. A chunk of steps rarely takes that long.
PATIENCE_S = 60.0
#: The GPU is asked without pause for the first millisecond, and then with pauses that are short beside what is waited for.
SPIN_S, PAUSE_S = 1e-3, 20e-6


def wait_until(
    done: Callable[[], bool],
    in_flight: Callable[[], str] | None = None,
    now_s: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Return when `done` does. Logs a warning with what is `in_flight` after `PATIENCE_S`, and each time the wait has doubled."""
    begin_s = now_s()
    report_s = begin_s + PATIENCE_S
    while not done():
        waited_s = now_s() - begin_s
        if begin_s + waited_s >= report_s:
            what = in_flight() if in_flight is not None else "no plan"
            log.warning("the GPU has not finished after %.0f s, with %s in flight; Ctrl-C ends the wait", waited_s, what)
            report_s = begin_s + 2 * waited_s
        if waited_s > SPIN_S:
            pause(PAUSE_S)
