"""A factory that does not return is ended with a message, whatever it does with exceptions. Ctrl-C works, and a slow one is announced."""

import signal
import threading
import time

import pytest

from simulator.models import time_limit as limits
from simulator.models.time_limit import VARIABLE, limit_s, time_limit
from tests.support.cli_process import start
from traces.errors import StepcastError


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setenv(VARIABLE, "0.2")


def retry_for_ever() -> None:
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue


def test_code_that_retries_on_errors_is_ended(short):
    with pytest.raises(StepcastError, match=rf"the factory f has not finished after 0.2 s; .*set {VARIABLE}"), time_limit("the factory f"):
        retry_for_ever()


def test_ctrl_c_works_meanwhile(monkeypatch):
    monkeypatch.setenv(VARIABLE, "100")
    threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt), time_limit("the factory f"):
        retry_for_ever()


def test_code_that_swallows_every_exception_ends_with_its_process(tmp_path):
    (tmp_path / "m.py").write_text("def f(b):\n  while True:\n    try:\n      while True: pass\n    except BaseException: pass\n")
    code = "import simulator.models.time_limit as t\nt.GRACE_S = 0.2"
    call = ("predict", "--model", "m.py:f", "--batch", 2, "--strategy", "baseline", "--machine", "h100")
    out, err = (process := start(code, *call, folder=tmp_path, **{VARIABLE: "0.5"})).communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("stepcast: the factory m.py:f has not finished after 0.5 s")
    assert len(err.splitlines()) == 1


def test_slow_code_is_announced_and_may_finish(monkeypatch, caplog):
    monkeypatch.setattr(limits, "NOTICE_S", 0.05)
    with time_limit("the factory f"):
        time.sleep(0.2)
    assert [record.getMessage() for record in caplog.records] == [
        f"the factory f is still running; it may take 50 s ({VARIABLE}), and Ctrl-C stops it"
    ]


def test_a_factory_that_has_returned_once_may_take_any_time(short):
    with time_limit("the factory f", limited=False):
        time.sleep(0.3)


def test_the_alarm_of_others_is_restored(short):
    before = signal.getsignal(signal.SIGALRM)
    with time_limit("the factory f"):
        assert signal.getsignal(signal.SIGALRM) is not before
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_the_limit_is_a_number_of_seconds(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(StepcastError, match="expected a number of seconds above 0"):
        limit_s()
