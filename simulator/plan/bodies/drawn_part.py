"""Parts of dropout masks: an op that works on a box of a tensor draws that box of the whole tensor's mask.

The part is in the op's named arguments: `{"part": {"of": [8, 10], "box": [[4, 8], [0, 10]]}}` draws the mask of a tensor [8, 10] and keeps
its last 4 rows. So all parts together have the mask that one op on the whole tensor draws.
"""

import json
from typing import NamedTuple

#: The only op that can draw a part.
DROPOUT = "aten.native_dropout.default"


class DrawnPart(NamedTuple):
    """The shape of the whole mask, and (first, end) of the part in each dimension."""

    of: tuple[int, ...]
    box: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the part."""
        return tuple(end - first for first, end in self.box)

    @property
    def fits(self) -> bool:
        """Whether the part lies within the whole."""
        return len(self.of) == len(self.box) and all(0 <= first <= end <= n for (first, end), n in zip(self.box, self.of, strict=True))


def drawn_part(kwargs: str) -> DrawnPart | None:
    """The part in an op's named arguments, which are JSON text; None for an op that draws all it returns."""
    if '"part"' not in kwargs:
        return None
    part = json.loads(kwargs)["part"]
    return DrawnPart(tuple(part["of"]), tuple((first, end) for first, end in part["box"]))


def without_part(kwargs: str) -> str:
    """An op's named arguments, as JSON text, without the part."""
    if '"part"' not in kwargs:
        return kwargs
    return json.dumps({name: item for name, item in json.loads(kwargs).items() if name != "part"}, separators=(",", ":"))
