"""Worker threads: Ctrl-C ends the caller's wait, whichever thread receives the signal, and errors are raised again in the caller."""

import signal
import threading

import pytest

from executors.cpu.workers import Workers


@pytest.fixture(scope="module")
def workers():
    return Workers((0,))


def test_ctrl_c_that_reaches_a_worker_ends_the_wait(workers):
    may_end, ended = threading.Event(), threading.Event()

    def work(position: int) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # does not interrupt the main thread's wait
        may_end.wait(20)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        workers.run(work)
    assert not ended.is_set()
    may_end.set()
    positions = []
    workers.run(positions.append)
    assert positions == [0]


def test_an_error_is_raised_in_the_caller(workers):
    with pytest.raises(ZeroDivisionError):
        workers.run(lambda position: 1 / position)
