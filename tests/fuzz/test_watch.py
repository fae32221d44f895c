"""Arguments of `watch`: refused before the loop, which then runs to its end."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzzing import JUNK, fuzzed, sound
from ui.api import facade

PLACES = st.sampled_from(["/", "/dev/null", "/dev/full", "/proc/x", "x" * 5000, "a\0b", "\udcff", Path("/nobody/t.json.gz"), b"bytes"])
ARGUMENTS = st.fixed_dictionaries({}, optional={"steps": JUNK | st.just(2), "out": JUNK | PLACES, "memory": JUNK | st.booleans()})


@fuzzed(60)
@given(ARGUMENTS, st.integers(0, 3))
def test_a_watched_loop_ends(arguments, steps):
    with sound("watch", (arguments, steps)):
        watch = facade.watch(**arguments)
        with watch as seen:
            for _ in range(steps):
                seen.step()
        assert not seen.ended
