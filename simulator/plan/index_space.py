"""The index space of an op in one string, as in nnScaler: `m k+, k+ n -> m n` is the product of two matrices.

>>> space = parse("m k+, k+ n -> m n")
>>> [[dim.name for dim in term.dims] for term in space.arguments], [dim.name for dim in space.results[0].dims]
([['m', 'k'], ['k', 'n']], ['m', 'n'])

Left of the arrow is a term for each positional argument, and `name=term` for named ones; right of it one for each result. The last
arguments may be omitted. A term names the dimensions of a tensor. Who has a part of a dimension of what the op reads computes that part of
the result; if the result lacks the dimension, an addend of it.

    n           a dimension that may be divided
    k+          one that may be divided, and that results without it are sums over
    d^          one that each device needs as a whole
    t*          any number of dimensions; the last is divided first: tokens rather than sequences
    ...         any number of dimensions of tensors that are broadcast; alone on the left, those of every tensor
    (m n)       a tensor that is broadcast along dimensions that it lacks or has one element in
    [t*]        a list of tensors
    1           a tensor without dimensions
    ?           something else
    ?i          a flag: if it is set, `i` is needed as a whole
    ^  +        a number of a dimension, or a list of them: these are needed as a whole, or are summed over
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache

#: An op that computes each element of its results from those at the same place.
EACH = "... -> ..."
#: The name of the dimensions that `...` stands for.
BROADCAST = "..."


class Form(Enum):
    """What a term says of an argument."""

    TENSOR = auto()
    #: A tensor that may lack dimensions, or have one element in them.
    BROADCAST = auto()
    TENSORS = auto()
    FLAG = auto()
    #: Numbers of dimensions that are needed as a whole.
    WHOLE = auto()
    #: Numbers of dimensions that are summed over.
    SUMMED = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of a term, or with `several` any number of them."""

    name: str
    whole: bool = False
    summed: bool = False
    several: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """What a string says of one argument or result."""

    form: Form
    dims: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexSpace:
    """What a string says of an op. `every`: the only argument stands for all tensors."""

    arguments: tuple[Term, ...]
    named: tuple[tuple[str, Term], ...]
    results: tuple[Term, ...]
    every: bool


_SIGNS = {"^": Form.WHOLE, "+": Form.SUMMED, "?": Form.OTHER, "1": Form.TENSOR}
_DIM = re.compile(r"(\.\.\.|[a-z])(\*?)([+^]?)")


@cache
def parse(text: str) -> IndexSpace:
    """Read a string. Raises ValueError if it is none, or if a result lacks a dimension that is neither summed nor whole."""
    left, arrow, right = text.partition(" -> ")
    if not arrow:
        raise ValueError(f"{text!r} has no arrow")
    positional, named = [], []
    for each in left.split(", "):
        name, _, term = each.rpartition("=")
        if name:
            named.append((name, _term(term)))
        else:
            positional.append(_term(term))
    space = IndexSpace(tuple(positional), tuple(named), tuple(map(_term, right.split(", "))), left == BROADCAST)
    divided = {dim.name for term in positional if term.form is not Form.FLAG for dim in term.dims if not (dim.whole or dim.summed)}
    for result in space.results:
        if missing := divided - {dim.name for dim in result.dims}:
            raise ValueError(f"{text!r}: a result lacks {', '.join(sorted(missing))}, which is neither summed (+) nor whole (^)")
    return space


def _term(text: str) -> Term:
    if text in _SIGNS:
        return Term(_SIGNS[text])
    if text.startswith("?"):
        return Term(Form.FLAG, _dims(text[1:]))
    if text[:1] + text[-1:] in ("()", "[]"):
        return Term(Form.BROADCAST if text[0] == "(" else Form.TENSORS, _dims(text[1:-1]))
    return Term(Form.BROADCAST if BROADCAST in text else Form.TENSOR, _dims(text))


def _dims(text: str) -> tuple[Dim, ...]:
    dims = []
    for each in text.split(" "):
        match = _DIM.fullmatch(each)
        if match is None:
            raise ValueError(f"{each!r} is no dimension; expected a letter or ..., then * for several, then + or ^")
        name, several, how = match.groups()
        dims.append(Dim(name, how == "^", how == "+", bool(several) or name == BROADCAST))
    return tuple(dims)
