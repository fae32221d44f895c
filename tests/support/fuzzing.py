"""Damaged input for the tests of `tests/fuzz`, and what must hold for any of it.

`make test` tries a fixed selection of inputs, in about a minute, and stops at the first fault. `make fuzz` sets SCHEDCAST_FUZZ to a factor,
tries that many times as many, others every time, and reports every kind of fault once, with the input.
"""

import copy
import os
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from traces.errors import SchedcastError

FACTOR = int(os.environ.get("SCHEDCAST_FUZZ", "1"))
#: No input may take longer, in seconds.
LONGEST_S = 60
#: Inputs tried, and those that were refused, by kind.
TRIED: Counter[str] = Counter()
REFUSED: Counter[str] = Counter()
#: With SCHEDCAST_FUZZ: a report of each fault, by the lines of code that it came from.
FAULTS: dict[str, str] = {}

HUGE = 10**400
#: What takes the place of a part of a document.
JUNK = st.sampled_from([
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, 2**64 - 1, HUGE, 0.0, -0.0, -1.5, 1e-308, 5e-324, 1e9, 1e12, 1e30, 1e300, 1.7e308, -1e300,
    float("nan"), float("inf"), float("-inf"), "", "0", "1e5", "nan", "inf", "text", "a\0b", "\ud800", "a\nb", "é😀", "/etc/passwd",
    "$x_{$", "[bold]", "<b>", "x" * 5000, "9" * 5000, [], [[]], {}, {"": None}, [0], [1, 2, 3], ["a"], [None] * 40, {"a": 1},
    {"\0": "\ud800"}, "[" * 10_000, '["a"]',
])  # fmt: skip
#: What takes the place of a stretch of text.
TEXT_JUNK = ["", "\0", "\ud800", "9" * 400, "-", '"', "[", "{", "\n", "1e999", "é"]


def fuzzed(count: int) -> Callable:
    """Settings of a test that tries `count` inputs in `make test`."""
    return settings(
        max_examples=count * FACTOR,
        derandomize=FACTOR == 1,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def sound(kind: str, tried: Any = None) -> Iterator[None]:
    """Whatever the block does with the input `tried`: it ends in time, and it succeeds or raises a SchedcastError of one printable line."""
    TRIED[kind] += 1
    handler = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST_S)
    try:
        yield
    except SchedcastError as error:
        REFUSED[kind] += 1
        message = str(error)
        assert message, "a refusal says why"
        assert len(message.splitlines()) == 1, message
        message.encode()
    except Exception as error:
        if FACTOR == 1:
            raise
        frames = getattr(error, "frames", None)  # of an exception in another process or thread
        frames = frames or [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-3:]]
        report = f"{kind}: {ascii(tried)[:3000]}\n{''.join(traceback.format_exception(error)[-12:])}"
        FAULTS.setdefault(f"{type(error).__name__} {' '.join(frames)}", report)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def _too_long(number: int, frame: object) -> None:
    raise AssertionError(f"an input took longer than {LONGEST_S} s")


def mostly(usual: st.SearchStrategy, *others: st.SearchStrategy) -> st.SearchStrategy:
    """`usual` in three of four cases, else one of `others`, or junk if there are none."""
    return st.integers(0, 3).flatmap(lambda one_of_four: usual if one_of_four else st.one_of(*others or [JUNK]))


def places(node: Any, path: tuple = ()) -> Iterator[tuple]:
    """The path of every item inside a JSON document."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in inner:
        yield (*path, key)
        yield from places(child, (*path, key))


CHANGES = ["replace", "replace", "remove", "double", "exchange", "scale", "scale", "rename", *["nudge"] * 6]


@st.composite
def damaged(draw, document: Any) -> Any:
    """A copy of a JSON document in which one item, sometimes more, is replaced, removed, doubled, exchanged, scaled or renamed.

    Nearly half of the changes are small: a number becomes a similar one, anything else what another place of the same type holds.
    """
    document = copy.deepcopy(document)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        paths = list(places(document))
        if not paths:
            break
        *outer, last = draw(st.sampled_from(paths))
        node = document
        for key in outer:
            node = node[key]
        change = draw(st.sampled_from(CHANGES))
        if change == "remove":
            del node[last]
        elif change == "double" and isinstance(node, list):
            node.insert(last, copy.deepcopy(node[last]))
        elif change == "exchange":
            node[last] = copy.deepcopy(_at(document, draw(st.sampled_from(paths))))
        elif change == "nudge" and isinstance(node[last], int | float) and abs(node[last]) < 1e290:
            node[last] = type(node[last])(draw(st.sampled_from([0.5, 0.9, 1.5, 3])) * node[last])
        elif change == "nudge":
            like = [path for path in paths if type(_at(document, path)) is type(node[last])]
            node[last] = copy.deepcopy(_at(document, draw(st.sampled_from(like))))
        elif change == "scale" and isinstance(node[last], int | float) and abs(node[last]) < 1e290:
            node[last] = draw(st.sampled_from([-1, 0, 1e-9, 1e9, 1e18, 2**40])) * node[last]
        elif change == "rename" and isinstance(node, dict):
            node[draw(st.sampled_from(["", "x", "a\0b", "\ud800", "schema"]))] = node.pop(last)
        else:
            node[last] = copy.deepcopy(draw(JUNK))
    return document


def _at(document: Any, path: tuple) -> Any:
    try:
        for key in path:
            document = document[key]
    except (LookupError, TypeError):
        return None
    return document


@st.composite
def damaged_text(draw, text: str, pieces: tuple[str, ...] = ()) -> str:
    """A copy of a text in which a few stretches are removed, doubled, or replaced by junk or by one of `pieces`."""
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, max(0, len(text) - 1)))
        last = min(len(text), first + draw(st.sampled_from([0, 1, 1, 2, 5, 40, 400])))
        middle = draw(st.sampled_from([*TEXT_JUNK, text[first:last] * 2, *pieces]))
        text = text[:first] + middle + text[last:]
    return text


@st.composite
def damaged_bytes(draw, content: bytes) -> bytes:
    """A copy of a file's content that is cut off, or in which some bytes are changed."""
    if draw(st.booleans()):
        return content[: draw(st.integers(0, len(content)))]
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)
