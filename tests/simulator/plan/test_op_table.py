"""The table of ops against the schemas of PyTorch: its rows can be read, and ops that need a row have one."""

from collections import Counter

import pytest
import torch

from calibrate import operands
from simulator.plan import ops
from simulator.plan.index_space import Form, parse
from simulator.plan.ops import ROWS, row
from simulator.plan.task import allowed
from tests.support.pure_ops import overloads

#: Ops in recorded traces alone, and collectives, which plans have as tasks of another kind.
NOT_CALLED = {"mkldnn_convolution", "all_gather", "reduce_scatter"}
#: Made by compilers, or run on a GPU alone: no graph that is captured has them.
NEVER_CAPTURED = {
    "_fused_dropout", "normal_functional", "rrelu_with_noise_functional", "_embedding_bag_dense_backward", "_embedding_bag_forward_only",
    "_embedding_bag_per_sample_weights_backward", "_slow_conv2d_backward", "batch_norm_backward", "convolution_backward_overrideable",
    "linear_backward", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate",
}  # fmt: skip
#: One kernel computes all of their results.
ONE_KERNEL = {"grid_sampler_2d_backward", "grid_sampler_3d_backward", "native_batch_norm_backward"}
#: Ops that write their indices, and ops on segments, which PyTorch refuses with indices.
NO_INDICES = {"_cummax_helper", "_cummin_helper", "segment_reduce"}


#: The overloads that a plan may call, of this version of PyTorch.
CALLED = {str(op): op for op in overloads() if str(op) in allowed()}


def schemas(name: str) -> list[torch.FunctionSchema]:
    return [op._schema for target, op in CALLED.items() if ops.name_of(target) == name]


def arguments(target: str) -> dict[str, str]:
    return {argument.name: str(argument.type) for argument in CALLED[target]._schema.arguments}


@pytest.fixture(scope="module")
def captured() -> list[str]:
    """The ops that a graph may have: those that PyTorch does not replace by others before."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    targets = [target for target in CALLED if ops.name_of(target) not in NEVER_CAPTURED]
    return [target for target in targets if not CALLED[target].has_kernel_for_dispatch_key(composite)]


def without_row(targets: list[str], needed, has) -> set[str]:
    """The names of ops that need something of a row that they do not have."""
    return {ops.name_of(target) for target in targets if needed(arguments(target)) and not has(row(target))}


def test_no_op_has_two_rows_and_every_row_is_of_ops():
    names = Counter(name for each in ops._TABLE for name in each.names.split())
    assert [name for name, count in names.items() if count > 1] == []
    assert set(names) - NOT_CALLED <= {ops.name_of(target) for target in allowed()}


def test_ops_without_a_row_compute_element_by_element():
    assert row("aten.hardswish.default") == ops.Row("")
    assert row("aten.mm.default") is row("mm") is row("aten.mm.dtype")


@pytest.mark.parametrize("name", [name for name, each in ROWS.items() if each.holds])
def test_what_operands_hold_is_said_of_arguments_of_the_op(name):
    holds = ROWS[name].holds
    if holds in operands._RULES:
        return
    for term in holds.split(", "):
        _, operand, extent = operands._TERM.fullmatch(term).groups()
        stated, _, dim = extent.rstrip("]").partition("[")
        needed = {operand, stated} | ({dim} if dim.isidentifier() else set())
        assert any(needed - {"result"} <= {argument.name for argument in schema.arguments} for schema in schemas(name)), term


#: The types of arguments that a term may be of, as schemas call them. A list of numbers is a shape.
TYPES = {
    Form.TENSOR: {"Tensor", "Optional[Tensor]", "List[int]"}, Form.BROADCAST: {"Tensor", "Optional[Tensor]"},
    Form.TENSORS: {"List[Tensor]"}, Form.FLAG: {"bool"}, Form.WHOLE: {"int"}, Form.SUMMED: {"Optional[List[int]]"},
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, each in ROWS.items() if each.divides and schemas(name)])
def test_the_division_of_an_op_is_one_of_its_arguments_and_results(name):
    """Of one overload at least: some have numbers where others have tensors."""
    space = parse(ROWS[name].divides)

    def is_of(schema) -> bool:
        types = {argument.name: str(argument.type) for argument in schema.arguments}
        terms = [*zip(types.values(), space.arguments, strict=False), *((types.get(key), term) for key, term in space.named)]
        fitting = all(term.form is Form.OTHER or given in TYPES[term.form] for given, term in terms)
        return space.every or (fitting and len(space.arguments) <= len(types) and len(space.results) == len(schema.returns))

    assert any(map(is_of, schemas(name)))


@pytest.mark.parametrize("name", [name for name, each in ROWS.items() if each.kernels or each.statistics or each.looks_up is not None])
def test_positions_are_those_of_tensors(name):
    own = ROWS[name]
    positions = {*(position for each in own.kernels or () for position in each), *own.statistics, *({own.looks_up} - {None})}
    assert all("Tensor" in str(schema.arguments[position].type) for schema in schemas(name) for position in positions)


def test_ops_with_a_generator_draw(captured):
    assert without_row(captured, lambda given: "generator" in given, lambda own: own.draws) == set()


def test_ops_with_indices_say_what_they_hold(captured):
    def indexes(given):
        return any("Tensor" in given.get(name, "") for name in ("index", "indices", "max_indices"))

    assert without_row(captured, indexes, lambda own: own.holds) == NO_INDICES


def test_ops_with_a_mask_of_results_say_what_their_kernels_read(captured):
    assert without_row(captured, lambda given: "output_mask" in given, lambda own: own.kernels) == ONE_KERNEL
