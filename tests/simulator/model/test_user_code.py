"""Errors in a user's code name the innermost line of the user's own files."""

import itertools
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from simulator.model import user_code as limits
from simulator.model.capture.capture import capture
from simulator.model.job import Job
from simulator.model.user_code import MOST_CHARACTERS, VARIABLE, blamed, brief, limit_s, time_limit, training_step
from tests.support.cli_process import start
from tests.support.refusals import refuses
from traces.errors import Code, SchedcastError

CODE = """
import json

def outer(then):
    return inner(then)

def inner(then):
    return then()

def reads():
    return json.loads("{")
"""


@pytest.fixture
def user_file(tmp_path, monkeypatch):
    """A user's file in the current folder, run as a module would be."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    names: dict = {}
    exec(compile(CODE, path, "exec"), names)
    return names


def message(call) -> str:
    with pytest.raises(SchedcastError) as raised, training_step(4):
        call()
    return str(raised.value)


def test_the_line_is_the_innermost_one_of_the_users_files(user_file):
    assert message(user_file["reads"]).startswith("mine.py:11 in reads: JSONDecodeError: Expecting property name")
    multiply, narrow = torch.nn.Linear(3, 2), torch.zeros(1, 4)
    told = message(lambda: user_file["outer"](lambda: 1 / 0))
    assert told.startswith(f"{Path(__file__)}:")  # the lambda is in this file
    assert told.endswith(" in <lambda>: ZeroDivisionError: division by zero; the training step fails for batch size 4")
    torch_only = message(lambda: user_file["outer"](lambda: multiply(narrow)))
    assert " in <lambda>: RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x4 and 3x2);" in torch_only


def test_an_error_outside_the_users_code_has_no_line():
    assert blamed(ValueError("no"), "it fails") == "it fails: ValueError: no"


def test_brief_is_one_short_line_even_if_the_exception_cannot_be_shown():
    class SilentError(Exception):
        def __str__(self):
            raise RuntimeError

    assert brief(SilentError()) == "SilentError"
    assert brief(ValueError("a\nb")) == "ValueError: a"
    assert len(brief(ValueError("a" * 10**6))) == MOST_CHARACTERS + len("ValueError: ")


def test_ctrl_c_is_not_an_error_of_the_model():
    with pytest.raises(KeyboardInterrupt), training_step(4):
        raise KeyboardInterrupt


# A factory or a training step that does not return is ended with a message that names the user's line, whatever it does with exceptions.
# Ctrl-C works, and a slow one is announced.


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
    with refuses(Code.REQUEST) as refusal, time_limit("the factory f"):
        retry_for_ever()
    line = retry_for_ever.__code__.co_firstlineno
    assert re.search(
        rf"test_user_code.py:{line + 3} in retry_for_ever: the factory f has made no progress for 0.2 s; .*set {VARIABLE}",
        str(refusal.value),
    )


#: A linear model, with a forward, a backward or a loss that may never return.
ENDLESS = """
import torch
from torch import nn

class Gradient(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        while torch.is_tensor(gradient): pass

class Model(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        while WHERE == "forward" or WHERE == "second forward" and self.calls > 1: pass
        return Gradient.apply(super().forward(x)) if WHERE == "backward" else super().forward(x)

def loss(output, target):
    while WHERE == "loss": pass
    return nn.functional.cross_entropy(output, target)

def make(batch):
    return Model(4, 3), torch.randn(batch, 4), torch.randint(3, (batch,)), loss
"""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("where", "line"),
    [("forward", "19 in forward"), ("second forward", "19 in forward"), ("loss", "23 in loss"), ("backward", "12 in backward")],
)
def test_a_training_step_that_never_returns_is_ended(tmp_path, monkeypatch, where, line):
    (tmp_path / "m.py").write_text(f"WHERE = {where!r}\n{ENDLESS[1:]}")
    monkeypatch.setenv(VARIABLE, "1.5")
    with refuses(Code.REQUEST) as refusal:
        Job(f"{tmp_path / 'm.py'}:make", 2).graph()
    assert f"m.py:{line}: the training step for batch size 2 has made no progress for 1.5 s; if it only" in str(refusal.value)


def test_the_capture_of_a_built_in_model_may_take_any_time(monkeypatch):
    built = Job("lenet5", 2).build(2)
    monkeypatch.setenv(VARIABLE, "0.001")
    assert capture(lambda: built, 2, repeats=False).ops


def test_ctrl_c_works_meanwhile(monkeypatch):
    monkeypatch.setenv(VARIABLE, "100")
    threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt), time_limit("the factory f"):
        retry_for_ever()


@pytest.mark.thorough
def test_code_that_swallows_every_exception_ends_with_its_process(tmp_path):
    (tmp_path / "m.py").write_text("def f(b):\n  while True:\n    try:\n      while True: pass\n    except BaseException: pass\n")
    code = "import simulator.model.user_code as t\nt.GRACE_S = 0.2"
    call = ("predict", "--model", "m.py:f", "--batch", 2, "--strategy", "baseline", "--machine", "h100")
    out, err = (process := start(code, *call, folder=tmp_path, **{VARIABLE: "0.5"})).communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert "m.py:4 in f: the factory m.py:f has made no progress for 0.5 s" in err
    assert len(err.splitlines()) == 1


def test_slow_code_is_announced_and_may_finish(monkeypatch, caplog):
    monkeypatch.setattr(limits, "NOTICE_S", 0.05)
    with time_limit("the factory f"):
        time.sleep(0.2)
    assert [record.getMessage() for record in caplog.records] == [
        f"the factory f is still running; it ends after 50 s without progress ({VARIABLE}), and Ctrl-C stops it"
    ]


def test_code_that_gets_on_may_take_longer_than_the_limit_and_shows_how_far_it_is(short, monkeypatch, caplog):
    monkeypatch.setattr(limits, "SHOWN_S", 0.0)
    caplog.set_level("INFO", logger="schedcast.progress")
    count = itertools.count()
    with time_limit("the factory f", done=lambda: next(count)):
        time.sleep(0.4)
    *shown, last = [record.getMessage() for record in caplog.records]
    assert re.fullmatch("the factory f: [0-9]+ ops, 0 s", shown[-1])
    assert last == ""


def test_code_that_gets_on_for_ever_is_ended(short, monkeypatch):
    monkeypatch.setattr(limits, "MOST_LIMITS", 2)
    count = itertools.count()
    with refuses(Code.REQUEST), time_limit("the factory f", done=lambda: next(count)):
        retry_for_ever()


def test_a_factory_that_has_returned_once_may_take_any_time(short):
    with time_limit("the factory f", limited=False):
        time.sleep(0.3)


def test_the_alarm_of_others_is_restored(short):
    before = signal.getsignal(signal.SIGALRM)
    with time_limit("the factory f"):
        assert signal.getsignal(signal.SIGALRM) is not before
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_alarm_of_others_rings_when_it_was_due():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic()))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with time_limit("the factory f"):
            time.sleep(0.2)
        for _ in range(500):  # five seconds at most
            if rung:
                break
            time.sleep(0.01)
        assert rung
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_the_limit_is_a_number_of_seconds(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    with refuses(Code.REQUEST, "expected a number of seconds above 0"):
        limit_s()
