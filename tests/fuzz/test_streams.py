"""Standard streams that are closed, full, or in ASCII: any command ends with a status and without a traceback."""

import io
import os
import sys
import traceback

from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzzing import fuzzed, sound
from tests.support.option_texts import JUMBLED
from ui import cli
from ui.commands import listing, measuring, predicting, training  # noqa: F401 - once, instead of in every fork

COMMANDS = [
    [], ["--help"], ["--version"], ["machines"], ["machines", "--json"], ["strategies"], ["strategies", "deepa"], ["strategies", "nobody"],
    ["models", "--json"], ["profiles"], ["rules"], ["rules", "/dev/zero"], ["nobody"], ["predict"], ["predict", "--model", "é\udcff"],
    ["replay", "/dev/null"], ["replay", "nothing", "--json"], ["scoreboard", "/dev/null"], ["report", "nothing"], ["mcp", "--nobody"],
]  # fmt: skip
#: Arguments that are added to a command's own.
EXTRA = st.lists(st.sampled_from(["--json", "--help", "--strategy", "--nobody", "-"]) | JUMBLED, max_size=2)
#: What stands in the place of each standard stream: nothing, a device that is always full, or a pipe's end in an encoding.
STREAMS = st.tuples(*[st.sampled_from([None, "/dev/null", "/dev/full"])] * 3)


def ended(args: list[str], places: tuple[str | None, ...], encoding: str) -> str:
    """Run a command in a fork of this process whose standard streams are those. Returns what it fails with, "" if it ends with a status."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os._exit(_child(args, places, encoding, writing))
    os.close(writing)
    with os.fdopen(reading) as report:
        failure = report.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return failure or ("" if status in (0, 1, 2) else f"status {status}")


def _child(args: list[str], places: tuple[str | None, ...], encoding: str, report: int) -> int:
    try:
        for number, (name, place) in enumerate(zip(("stdin", "stdout", "stderr"), places, strict=True)):
            stream = None
            if place is None:
                os.close(number)
            else:
                mode = "r" if name == "stdin" else "w"
                os.dup2(os.open(place, os.O_RDONLY if mode == "r" else os.O_WRONLY), number)
                stream = io.TextIOWrapper(io.FileIO(number, f"{mode}b", closefd=False), encoding=encoding)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        sys.argv = ["schedcast", *args]
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except BaseException:
        os.write(report, traceback.format_exc().encode(errors="replace"))
        return 3
    return 0


class StreamError(Exception):
    """A command that ends with a traceback."""


def test_any_standard_streams_end_no_command_with_a_traceback(monkeypatch, tmp_path):
    monkeypatch.setenv("SCHEDCAST_DATA", str(tmp_path / "data"))

    @fuzzed(15)
    @given(st.sampled_from(COMMANDS), EXTRA, STREAMS, st.sampled_from(["utf-8", "ascii", "latin-1"]))
    def check(args, extra, places, encoding):
        with sound("streams", (args, extra, places, encoding)):
            failure = ended([*args, *extra], places, encoding)
            if failure:
                raise StreamError(failure)

    check()
