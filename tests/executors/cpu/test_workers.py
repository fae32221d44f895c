"""Worker threads: Ctrl-C ends the caller's wait whichever thread the signal reaches; an error is raised again in the caller."""

import signal
import threading

import pytest

from executors.cpu.workers import Workers


@pytest.fixture(scope="module")
def workers():
    return Workers((0,))


def test_ctrl_c_that_reaches_a_worker_ends_the_wait(workers):
    enough, ended = threading.Event(), threading.Event()

    def work(position: int) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # the main thread sleeps on: nothing interrupts its wait
        enough.wait(20)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        workers.run(work)
    assert not ended.is_set()
    enough.set()
    after = []
    workers.run(after.append)
    assert after == [0]


def test_an_error_is_raised_in_the_caller(workers):
    with pytest.raises(ZeroDivisionError):
        workers.run(lambda position: 1 / position)
