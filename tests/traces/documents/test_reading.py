"""Reading documents: bounded in size, and refused in one line unless they are JSON as this program writes it, and add up."""

import gzip
import json
import os
import tracemalloc

import pytest
from pydantic import ValidationError

from traces import files
from traces.documents.replay_result import Diff, DiffTerm
from traces.errors import LONGEST, SchedcastError, UnusableFileError
from traces.files import read_json, write_json


@pytest.mark.parametrize(("difference_s", "term_s", "fault"), [(0.03, 0.03, "is not that of the two steps"), (0.02, 0.01, "do not add up")])
def test_a_difference_that_does_not_add_up_is_refused(difference_s, term_s, fault):
    terms = (DiffTerm(part="kernels", seconds=term_s),)
    numbers = {"a_step_s": 0.10, "b_step_s": 0.12, "difference_s": difference_s, "terms": terms, "remainder_s": 0.0, "steps": 1}
    with pytest.raises(ValidationError, match=fault):
        Diff(compared="traces", a="a", b="b", aligned_share=1.0, **numbers)


def refusal(path) -> str:
    with pytest.raises(UnusableFileError) as caught:
        read_json(path, "profile")
    return str(caught.value)


@pytest.mark.parametrize("packed", [False, True])
def test_a_document_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, packed):
    monkeypatch.setattr(files, "LARGEST_DOCUMENT", 1 << 22)
    text = b"[" + b" " * (1 << 24) + b"]"
    path = tmp_path / "p.json"
    path.write_bytes(gzip.compress(text) if packed else text)
    tracemalloc.start()
    assert "holds more than 4 MiB of text, too much for a profile" in refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_a_document_of_too_many_items_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_ITEMS", 1000)
    (tmp_path / "p.json").write_text("[" + "[]," * 1000 + "[]]")
    assert "holds more than 1,000 items, too much for a profile" in refusal(tmp_path / "p.json")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NaN", "the number NaN is not finite"),
        ("[-Infinity]", "the number -Infinity is not finite"),
        ("1e400", "the number 1e400 is not finite"),
        ("1" * 400 + ".5", "is not finite"),
        ("1" * 5000, "an integer of 5000 digits is too large"),
        ("18446744073709551616", "an integer of 20 digits is too large"),
        ("-9223372036854775809", "an integer of 20 digits is too large"),
        (r'{"\udc00": 1}', "surrogates not allowed"),
        (r'"\ud800"', "surrogates not allowed"),
        ("[" * 100_000, "nested too deeply"),
        ("", "Expecting value"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_what_this_program_never_writes_is_refused(tmp_path, text, expected, encoding):
    (tmp_path / "p.json").write_text(text, encoding=encoding)
    message = refusal(tmp_path / "p.json")
    assert expected in message if encoding == "utf-8" else "is not valid JSON" in message


@pytest.mark.parametrize("content", [2**64 - 1, -(2**63), 0.12345678901234568, 1.7e308, 5e-324, "😀", {"a": [1e-300, None, True]}])
def test_what_this_program_writes_comes_back(tmp_path, content):
    for name in ("p.json", "p.json.gz"):
        assert read_json(write_json(tmp_path / name, content), "profile") == content


def test_names_that_are_no_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "it is a device or a pipe, not a file" in refusal(tmp_path / "pipe")
    assert "it is a device or a pipe, not a file" in refusal("/dev/zero")
    assert "Is a directory" in refusal(tmp_path)
    assert "embedded null" in refusal(f"{tmp_path}/a\0b")
    assert r"no profile at /\udcff" in refusal("/\udcff")
    assert "File name too long" in refusal("x" * 5000)


def test_a_damaged_gzip_file_is_refused(tmp_path):
    packed = gzip.compress(json.dumps(list(range(1000))).encode())
    for number, data in enumerate((packed[:-20], packed[:40] + b"x" * 20 + packed[60:], packed[:3])):
        (tmp_path / f"{number}.gz").write_bytes(data)
        assert "damaged gzip file" in refusal(tmp_path / f"{number}.gz")


def test_the_message_of_an_error_is_one_printable_line():
    error = SchedcastError("unknown model 'a\n\tb\x1b[31m\0\ud800'")
    assert str(error) == r"unknown model 'a b\x1b[31m\x00\ud800'"
    assert len(str(SchedcastError("x" * 10**6))) == LONGEST
