"""The reader of long JSON documents gives what `json` gives, wherever the windows end in which it reads a file."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces.errors import UnusableFileError
from traces.formats import json_stream

#: Texts that look like the borders of objects.
TEXTS = st.text(st.sampled_from('{}[],:" \\\na'), max_size=12)
VALUES = st.recursive(TEXTS | st.integers(-5, 5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
OBJECTS = st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), max_size=8)


def entries(text: str, window: int) -> list:
    """The top-level entries and the items of "events", read in windows of so many bytes."""
    fill = patch.object(json_stream._Reader._fill, "__defaults__", (window,))
    with TemporaryDirectory() as folder, patch.object(json_stream, "CHUNK_BYTES", window), fill:
        path = Path(folder) / "document.json"
        path.write_text(text)
        return list(json_stream.items(path, "events", "document"))


@given(OBJECTS, st.lists(VALUES, max_size=3), st.sampled_from((8, 1024, 16384)), st.sampled_from((None, 1)))
def test_items_are_those_of_json(events, others, window, indent):
    text = json.dumps({"first": others, "events": [*events, *others], "last": events}, indent=indent)
    expected = [("first", others), *(("events", each) for each in (*events, *others)), ("last", events)]
    assert entries(text, window) == expected


def test_objects_behind_the_array_are_not_its_items():
    text = '{"events": [{"a": 1}, {"a": 2}], "more": [{"a": 3}, {"a": 4}]}'
    assert entries(text, 1024) == [("events", {"a": 1}), ("events", {"a": 2}), ("more", [{"a": 3}, {"a": 4}])]


@pytest.mark.parametrize("window", [8, 16384])
def test_a_fault_is_reported_behind_the_items_before_it(window):
    with pytest.raises(UnusableFileError, match="line 3, column 2, after 2 whole items of events"):
        entries('{"events": [{"a": 1},\n {"a": 2},\n ?, {"a": 3}, {"a": 4}]}', window)
