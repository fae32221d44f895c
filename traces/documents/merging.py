"""Merges two changed copies of the same data."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

_NOTHING = object()


def merged(base: Any, ours: Any, theirs: Any) -> Any:
    """What both sides made of `base`: entries of dictionaries and fields of models one by one, lists joined, anything else as a whole.

    What only one side changed, added or removed is as that side has it; what both changed is as in `ours`.

    >>> merged({"a": 1, "b": 1}, {"a": 2, "b": 1, "c": 3}, {"a": 1, "d": 4})
    {'a': 2, 'd': 4, 'c': 3}
    """
    if ours is theirs or ours == base:
        return theirs
    if theirs == base:
        return ours
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        base = base if isinstance(base, Mapping) else {}
        entries = {
            name: merged(base.get(name, _NOTHING), ours.get(name, _NOTHING), theirs.get(name, _NOTHING)) for name in {**theirs, **ours}
        }
        return {name: entry for name, entry in entries.items() if entry is not _NOTHING}
    if isinstance(ours, BaseModel) and type(ours) is type(theirs):
        fields = {name: merged(getattr(base, name, None), getattr(ours, name), getattr(theirs, name)) for name in type(ours).model_fields}
        return ours.model_copy(update=fields)
    if isinstance(ours, list) and isinstance(theirs, list):
        return [*theirs, *(item for item in ours if item not in theirs)]
    return ours
