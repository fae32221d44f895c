"""Faults in the log of the CUDA library that feigns a GPU, by small logs. A line is a call; addresses below 1000 are one segment."""

import pytest

from tests.support.stub_log import Checker

START = ["malloc 0x0 1000", "stream 1 0 1", "stream 2 0 1"]
WRITTEN = ["task a", "op 0 1 write", "uses 0 w:0:1:64:1", "task"]
READ = ["task b", "op 1 2 read", "uses 1 r:32:1:8:1", "task"]
RACE = "read after write: write of a on stream 1, read of b on stream 2"


def faults(*parts: list[str]) -> list[str]:
    return Checker().read([*START, *(line for part in parts for line in part)]).faults


@pytest.mark.parametrize(
    "between",
    [
        ["record 1 0xe", "wait 2 0xe"],
        ["sync 1"],
        ["sync_device"],
        ["record 1 0xe", "sync_event 0xe"],
        ["record 1 0xe", "wait 3 0xe", "record 3 0xf", "wait 2 0xf"],
    ],
)
def test_an_event_or_the_host_orders_two_uses(between):
    assert not faults(WRITTEN, between, READ)


@pytest.mark.parametrize(
    "between",
    [
        [],
        ["sync 2"],
        ["record 2 0xe", "wait 1 0xe"],
        ["record 1 0xe", "record 2 0xe", "wait 2 0xe"],  # the event's first record is forgotten
        ["record 1 0xe", "wait 3 0xe"],
    ],
)
def test_two_uses_that_nothing_orders_are_a_fault(between):
    assert faults(WRITTEN, between, READ) == [RACE]


def test_an_event_recorded_before_the_write_does_not_order_it():
    assert faults(["record 1 0xe"], WRITTEN, ["wait 2 0xe"], READ) == [RACE]


def test_reads_and_other_bytes_need_no_order():
    assert not faults(READ, ["op 2 1 read", "uses 2 r:0:1:64:1"], ["op 3 1 write", "uses 3 w:64:1:64:1"])


def test_the_host_may_not_write_what_a_stream_still_reads():
    """Pinned memory that is filled anew for the next replay."""
    refilled = ["op 2 host copy_", "uses 2 w:0:1:64:1"]
    assert faults(READ, refilled) == ["write after read: read of b on stream 2, copy_ of work between tasks by the host"]
    assert not faults(READ, ["sync 2"], refilled)


def test_memory_given_out_again_before_its_last_use_has_ended():
    freed, again = ["alloc 0 1", *WRITTEN, "record 1 0xe", "wait 2 0xe", *READ, "release 0"], ["task c", "alloc 0 1", "task"]
    assert faults(freed, again) == ["write after read: read of b on stream 2, an allocation of c on stream 1"]
    assert not faults(freed, ["record 2 0xf", "wait 1 0xf"], again)


CAPTURE = ["begin 1 7 1", *WRITTEN, "record 1 0xe", "wait 2 0xe", *READ]
JOINED = ["record 2 0xf", "wait 1 0xf", "end 1 7 0x9"]


def test_a_captures_streams_must_be_joined():
    assert not faults(CAPTURE, JOINED)
    assert faults(CAPTURE, ["end 1 7 0x9"]) == ["capture 7 ends on stream 1, and stream 2 is not joined to it"]
    assert faults(CAPTURE, JOINED[:1], ["end 1 7 0x9"]) == ["capture 7 ends on stream 1, and stream 2 is not joined to it"]


def test_streams_race_within_a_capture_only_with_each_other():
    late = ["begin 1 7 1", "record 1 0xe", "wait 2 0xe", *WRITTEN, *READ, *JOINED]
    assert faults(late) == [f"in capture 7, {RACE}"]
    assert not faults(["op 5 3 write", "uses 5 w:0:1:64:1"], CAPTURE, JOINED), "the capture runs nothing"


def test_a_launch_uses_all_that_its_graph_uses():
    launched = ["graph 3 0x9"]
    assert not faults(CAPTURE, JOINED, launched)
    (fault,) = faults(CAPTURE, JOINED, ["op 5 4 write", "uses 5 w:40:1:4:1"], launched)
    assert fault == "write after write: write of work between tasks on stream 4, a launch of graph 7 on stream 3"


def test_a_graph_may_not_outlive_the_memory_that_it_uses():
    before = ["alloc 0 1", "sync_device"]
    (fault,) = faults(before, CAPTURE, JOINED, ["release 0", "graph 1 0x9"])
    assert fault == "graph 7 is launched after memory was freed that write of a uses"
    assert not faults(CAPTURE[:1], ["alloc 0 1"], CAPTURE[1:], JOINED, ["release 0", "graph 1 0x9"]), "the graph's own memory"


def test_what_else_is_a_fault():
    assert faults(["task a", "wait 1 0xe"]) == ["a: stream 1 waits for an event that was never recorded"]
    assert faults(["task a", "refused cudaMalloc cudaErrorX"]) == ["a: cudaMalloc is refused with cudaErrorX"]
    assert faults(["launch 1 k", "begin 1 7 1", "task a", "launch 1 k", "launch 1 m"]) == [
        "a: kernel m is launched for the first time, in a capture"
    ]
