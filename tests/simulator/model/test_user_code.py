"""Errors in a user's code name the innermost line of the user's own files."""

from pathlib import Path

import pytest
import torch

from simulator.model.user_code import MOST_CHARACTERS, blamed, brief, training_step
from traces.errors import SchedcastError

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
