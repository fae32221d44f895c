"""The ops that a plan or a captured graph may name: pure tensor ops, listed by name in `ops.json`.

A plan is data and may come from anyone. So what it can make an executor call is an explicit list: ops that compute tensors from tensors and
numbers. Ops that open files, or that change anything but their results, are not on it.
"""

import json
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

LIST = Path(__file__).with_name("ops.json")
NAMESPACES = ("aten", "schedcast")


@cache
def allowed() -> frozenset[str]:
    """The full names of all ops on the list, such as `aten.mm.default`."""
    return frozenset(f"{name}.{overload}" for name, overloads in json.loads(LIST.read_text()).items() for overload in overloads.split())


def check_op(target: str) -> str:
    """Return `target`. Raises ValueError if it is not on the list."""
    if target not in allowed():
        raise ValueError(f"{target[:80]!r} is not a tensor op that a plan may call")
    return target


#: The name of an op. Documents with any other name are refused when they are read.
OpName = Annotated[str, AfterValidator(check_op)]
