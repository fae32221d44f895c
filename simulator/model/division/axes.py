"""Along which dimensions of its tensors an op may be divided, and which of its results are then sums over the devices.

An op computes over an index space, as an einsum does: of [i, k] x [k, j] -> [i, j], a device that has a part of i or j computes that part
of the result, and a device that has a part of k computes an addend of it. The table of ops (`simulator.plan.ops`) states the index space of
each op as a string, of forward and backward ops alike.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from simulator.model.graph import Op, arguments_of, named_arguments_of
from simulator.plan.index_space import BROADCAST, EACH, Dim, Form, IndexSpace, Term, parse
from simulator.plan.ops import row
from simulator.plan.task import DTYPE_BYTES, Operand


class Axis(NamedTuple):
    """For each input and result of an op, the dimension that runs along the axis.

    None: it has no such dimension; then a result is a sum over the axis.
    """

    inputs: tuple[int | None, ...]
    writes: tuple[int | None, ...]


def axes(op: Op) -> list[Axis]:
    """The axes of an op; none if it runs on whole tensors only."""
    divides = row(op.body.target).divides
    if not divides:
        return []
    try:
        return list(_Dimensions(op, parse(divides)).axes())
    except _OtherRankError:
        return []


def is_linear(op: Op, widens: bool = False) -> bool:
    """Whether an op makes addends of its result of addends of all inputs. A sum with a number does not: every device would add it.

    `widens`: also if it casts to a wider type. If addends are to be summed soon, they are summed before: what is narrow moves faster.
    """
    own = row(op.body.target)
    if not own.linear or len(op.writes) != 1 or "float" not in op.writes[0].dtype:
        return False
    if not widens and any(DTYPE_BYTES[op.writes[0].dtype] > DTYPE_BYTES[read.dtype] for read in op.inputs):
        return False
    return own.divides != EACH or all(isinstance(item, dict) and "$" in item for item in arguments_of(op)[:2])


def scales_by_frequency(op: Op) -> bool:
    """Whether the gradient of an embedding, or of one that is looked up, depends on how often a token occurs in all of the batch."""
    terms = parse(row(op.body.target).divides).arguments
    return any(term.form is Form.FLAG and given is True for term, given in zip(terms, arguments_of(op), strict=False))


def concatenated_dim(op: Op) -> int:
    """The dimension along which `cat` puts its inputs one after another."""
    return (*arguments_of(op), 0)[1] % len(op.writes[0].shape)


class _OtherRankError(Exception):
    """A tensor has more or fewer dimensions than the string of its op names."""


#: A dimension of an op: its letter in the string, and its number among those that the letter stands for.
_Name = tuple[str, int]


class _Dimensions:
    """The dimensions of an op's tensors by the names that a string gives them. Raises _OtherRankError if a tensor has others."""

    def __init__(self, op: Op, space: IndexSpace):
        positional, named = [*arguments_of(op), *[None] * len(space.arguments)], named_arguments_of(op)
        given = [*zip(space.arguments, positional, strict=False), *((term, named.get(name)) for name, term in space.named)]
        tensors = [(each["$"], term) for term, argument in given for each in _tensors(term, argument)]
        inputs = [(at, space.arguments[0]) for at in range(len(op.inputs))] if space.every else tensors
        writes = [(space.results[0 if space.every else at], operand) for at, operand in zip(op.body.outputs, op.writes, strict=True)]
        self._op, self._terms = op, [*(term for term, _ in writes), *(term for _, term in inputs)]
        #: By letter, how many dimensions it stands for: as many as a shape has, a tensor of known dimensions besides, or a result.
        self._sizes = {term.dims[0].name: len(shape) for term, shape in given if term.form is Form.TENSOR and isinstance(shape, list)}
        self._solve([(term, op.inputs[at]) for at, term in inputs if term.form is Form.TENSOR])
        self._solve(writes or [(space.results[0], operand) for operand in op.mutates[:1]])
        self._gone: set[_Name] = set()  # dimensions of which a sum has no more than one element
        first = self._names(inputs[0][1], len(op.inputs[inputs[0][0]].shape)) if inputs else []
        whole = {name for term, argument in given for name in self._chosen(term, argument, Form.WHOLE, first)}
        self._gone = {name for term, argument in given for name in self._chosen(term, argument, Form.SUMMED, first)}
        self._whole = whole | {name for term in self._terms for dim in term.dims if dim.whole for name in self._of(dim)}
        self._summed = self._gone | {name for term in self._terms for dim in term.dims if dim.summed for name in self._of(dim)}
        self._inputs = [(at, term.form is Form.BROADCAST, self._names(term, len(op.inputs[at].shape))) for at, term in inputs]
        self._writes = [self._names(term, len(operand.shape)) for term, operand in writes]

    def axes(self) -> Iterator[Axis]:
        """Yield an axis for each dimension that may be divided: first those of results, then those that results are sums over."""
        shapes = [(names, self._op.inputs[at].shape) for at, _, names in self._inputs]
        shapes += [(names, operand.shape) for names, operand in zip(self._writes, self._op.writes, strict=True)]
        extents: dict[_Name, int] = {}
        for names, shape in shapes:
            extents |= {name: max(extent, extents.get(name, 0)) for name, extent in zip(names, shape, strict=False)}
        for name in dict.fromkeys(name for term in self._terms for dim in term.dims for name in self._in_order(dim)):
            if name not in self._whole and extents.get(name, 0) > 1 and (axis := self._axis(name, extents[name])) is not None:
                yield axis

    def _axis(self, name: _Name, extent: int) -> Axis | None:
        """The axis along a dimension; None if a tensor that is not broadcast has one element there, or the dimension twice."""
        inputs: list[int | None] = [None] * len(self._op.inputs)
        for at, broadcast, names in self._inputs:
            if name not in names:
                continue
            dim = names.index(name)
            own = self._op.inputs[at].shape[dim]
            if broadcast and own != extent:
                continue
            if own == 1 or inputs[at] not in (None, dim):
                return None
            inputs[at] = dim
        writes = tuple(names.index(name) if name in names and name not in self._gone else None for names in self._writes)
        return Axis(tuple(inputs), writes) if name in self._summed or None not in writes else None

    def _solve(self, tensors: Iterable[tuple[Term, Operand]]) -> None:
        """Find how many dimensions a letter stands for, where it is the only unknown of a term."""
        for term, operand in tensors:
            unknown = [dim for dim in term.dims if dim.several and dim.name not in self._sizes]
            if len(unknown) == 1:
                known = sum(len(self._of(dim)) for dim in term.dims if dim is not unknown[0])
                self._sizes[unknown[0].name] = max(0, len(operand.shape) - known)

    def _of(self, dim: Dim) -> list[_Name]:
        return [(dim.name, number) for number in range(self._sizes.get(dim.name, 0) if dim.several else 1)]

    def _in_order(self, dim: Dim) -> list[_Name]:
        """The dimensions in the order in which they are tried."""
        return self._of(dim) if dim.name == BROADCAST else self._of(dim)[::-1]

    def _names(self, term: Term, rank: int) -> list[_Name]:
        """The names of the dimensions of a tensor with `rank` of them; none of a tensor in a list that has others than the rest."""
        names = [name for dim in term.dims for name in self._of(dim)]
        if len(names) > rank:
            names = [name for name in names if name not in self._gone]
        if term.form is Form.BROADCAST:
            names = names[max(0, len(names) - rank) :]
        if len(names) == rank:
            return names
        if term.form is Form.TENSORS:
            return []
        raise _OtherRankError

    def _chosen(self, term: Term, argument: Any, form: Form, first: list[_Name]) -> list[_Name]:
        """The dimensions that an argument chooses: by number in the first tensor, all of it if a sum has no numbers, or by a flag."""
        if term.form is Form.FLAG and form is Form.WHOLE and argument is True:
            return [name for dim in term.dims for name in self._of(dim)]
        if term.form is not form:
            return []
        numbers = argument if isinstance(argument, list) else [argument] if argument is not None else []
        return [first[number] for number in numbers] or (first if form is Form.SUMMED else [])


def _tensors(term: Term, argument: Any) -> list[dict]:
    """The tensors that an argument is or has, as positions among the inputs."""
    items = argument if term.form is Form.TENSORS else [argument]
    return [item for item in items if isinstance(item, dict) and "$" in item]
