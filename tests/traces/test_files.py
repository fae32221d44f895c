"""Writing files: in one step, through links, into devices and pipes, with the umask's permissions."""

import bz2
import gzip
import lzma
import os
import stat
import threading

import pytest

from tests.support.refusals import refuses
from traces.errors import Code, SchedcastError, UnusableFileError
from traces.files import (
    MOST_ROWS,
    check_writable,
    kind_at,
    read_document,
    read_json,
    read_table,
    read_text,
    starts_with_schema,
    write_atomic,
    write_json,
)


def mode(path) -> int:
    """The permissions of a file."""
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def umask():
    """Sets the umask for a test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize(("mask", "permissions"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_permissions_that_the_umask_leaves(tmp_path, umask, mask, permissions):
    umask(mask)
    assert mode(write_atomic(tmp_path / "new" / "t.json", "{}")) == permissions


def test_a_replaced_file_keeps_its_permissions(tmp_path, umask):
    place = tmp_path / "t.json"
    place.write_text("old")
    place.chmod(0o640)
    write_atomic(place, "new")
    assert (place.read_text(), mode(place), os.listdir(tmp_path)) == ("new", 0o640, ["t.json"])


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    target, link, dangling = tmp_path / "far" / "t.json", tmp_path / "link", tmp_path / "dangling"
    target.write_text("old")
    link.symlink_to(target)
    dangling.symlink_to(tmp_path / "far" / "later.json")
    for place in (link, dangling):
        check_writable(place)
        write_atomic(place, "new")
        assert (place.is_symlink(), place.read_text()) == (True, "new")
    assert sorted(os.listdir(tmp_path / "far")) == ["later.json", "t.json"]


ARCHIVES = {
    "Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
    "zip archive": b"PK\x03\x04" + bytes(30),
    "xz": lzma.compress(b"{}"),
    "bzip2": bz2.compress(b"{}"),
    "tar archive": gzip.compress(bytes(257) + b"ustar" + bytes(250)),
    "web page": b"<!doctype HTML><html>",
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_a_file_of_another_kind_is_refused_for_what_it_is(tmp_path, kind):
    path = tmp_path / "plan.json"
    path.write_bytes(ARCHIVES[kind])
    for read in (read_json, read_text):
        with pytest.raises(UnusableFileError, match=f"it is .*{kind}"):
            read(path, "plan")


def test_a_device_is_written_in_place():
    check_writable("/dev/null")
    write_atomic("/dev/null", "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(SchedcastError, match="cannot write /dev/full: No space left on device"):
        write_atomic("/dev/full", "too much")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_a_pipe_is_written_in_place(tmp_path):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    check_writable(pipe)  # does not open it, which would wait for a reader
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    write_atomic(pipe, "x" * 100_000)
    reader.join(timeout=60)
    assert received == [b"x" * 100_000]
    assert os.listdir(tmp_path) == ["pipe"]


def test_an_open_file_is_not_replaced(tmp_path):
    with (tmp_path / "out").open("w+") as file:
        write_atomic(f"/dev/fd/{file.fileno()}", "through the descriptor")
        assert os.fstat(file.fileno()).st_ino == os.stat(tmp_path / "out").st_ino
    assert (tmp_path / "out").read_text() == "through the descriptor"


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    place = tmp_path / "t.json"
    place.write_text("old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SchedcastError, match=r"t\.json: No space left on device"):
        write_atomic(place, "new")
    assert (place.read_text(), os.listdir(tmp_path)) == ("old", ["t.json"])


@pytest.mark.parametrize(("name", "message"), [("x" * 5000, "File name too long"), ("a\0b", r"null (byte|character)")])
def test_names_that_no_file_can_have(tmp_path, name, message):
    with pytest.raises(SchedcastError, match=message):
        check_writable(tmp_path / name)


def test_what_is_at_a_path_that_a_user_named(tmp_path):
    file = write_atomic(tmp_path / "a.json", "{}")
    named = (file, tmp_path, "/dev/null", tmp_path / "none", "a NUL: \0", "x" * 300)
    assert [kind_at(path) for path in named] == ["file", "folder", "special", "", "", ""]


def test_documents_are_read_that_have_the_projects_former_name(tmp_path):
    key = "stepcast.rnn.default|f32[8,4]"
    named = {"strategy": "image-parallel:overlap=off", "micro_batches": 2, "micro_batch": 1}
    former = {"schema": "stepcast.profile/1", "costs": {key: 1.0, f"ops[{key}]": 2.0}, "about": "stepcast, by hand", **named}
    place = write_json(tmp_path / "p.json.gz", former)
    assert starts_with_schema(place, "schedcast.profile/")
    present = key.replace("stepcast", "schedcast")
    costs = {present: 1.0, f"ops[{present}]": 2.0}
    assert read_document(place, "profile", "schedcast.profile/1") == {
        "schema": "schedcast.profile/1", "costs": costs, "about": former["about"],
        "strategy": "data-parallel:overlap=off", "microbatches": 2, "microbatch": 1,
    }  # fmt: skip


def test_names_in_other_documents_stay(tmp_path):
    place = write_json(tmp_path / "t.json", {"schema": "schedcast.timeline/1", "task": "stepcast.forward"})
    assert read_document(place, "timeline", "schedcast.timeline/1")["task"] == "stepcast.forward"


def test_a_table_names_the_row_that_cannot_be_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1, 2 \n" + "x" * 200_000 + ",2\n3\n")
    table = read_table(path, "table")
    assert table.columns == ("a", "b")
    assert list(table.rows) == [
        (2, {"a": "1", "b": "2"}),
        (3, "it cannot be read: field larger than field limit (131072)"),
        (4, {"a": "3", "b": ""}),
    ]


def test_what_is_no_table_is_refused_at_once(tmp_path):
    pipe, endless, damaged, long = (tmp_path / name for name in ("pipe.csv", "endless.csv", "damaged.csv.gz", "long.csv"))
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    damaged.write_bytes(b"\x1f\x8b\x08damaged")
    long.write_text("a\n" * (MOST_ROWS + 2))
    for path, words in (
        (pipe, "a device or a pipe, not a file"), (endless, "a device or a pipe, not a file"), (damaged, "is a damaged gzip file"),
        (long, "holds more than 200,000 rows"),
    ):  # fmt: skip
        with refuses(Code.FILE, words):
            read_table(path, "table")
