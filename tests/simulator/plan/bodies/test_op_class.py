"""The bytes that an op's kernels move, where they are not those of its operands."""

import json

import pytest

from simulator.plan.bodies.op_class import reads, work_of
from simulator.plan.bodies.opcall import OpCall
from simulator.plan.task import Operand, Task

TABLE, LABELS, ROWS = (
    Operand("table", (1000, 8), (8, 1), "float32"),
    Operand("labels", (5,), (1,), "int64"),
    Operand("rows", (5, 8), (8, 1), "float32"),
)
LOSS, GRAD = Operand("loss", (), (), "float32"), Operand("grad", (1000, 8), (8, 1), "float32")


def task(target: str, args: list, inputs: tuple, result: Operand) -> Task:
    return Task("t", OpCall(target, json.dumps(args)), "d", reads=inputs, writes=(result,))


@pytest.mark.parametrize(
    ("target", "args", "inputs", "result", "moved"),
    [
        ("aten.embedding.default", [{"$": 0}, {"$": 1}], (TABLE, LABELS), ROWS, 160 + 40 + 160),
        ("aten.index_select.default", [{"$": 1}, 0, {"$": 0}], (LABELS, TABLE), ROWS, 40 + 160 + 160),
        ("aten.nll_loss_forward.default", [{"$": 0}, {"$": 1}, None, 1, -100], (TABLE, LABELS), LOSS, 20 + 40 + 4),
        ("aten.nll_loss_backward.default", [{"$": 0}, {"$": 1}, {"$": 2}, None], (LOSS, TABLE, LABELS), GRAD, 4 + 40 + 32_000),
        ("aten.add.Tensor", [{"$": 0}, {"$": 1}], (TABLE, TABLE), GRAD, 3 * 32_000),
    ],
)  # fmt: skip
def test_of_a_table_only_what_is_looked_up_is_read(target, args, inputs, result, moved):
    own = task(target, args, inputs, result)
    assert work_of(own, target, own.body.args, 0.0).bytes == moved


def test_more_rows_than_a_table_has_read_it_once():
    many = Operand("rows", (5000, 8), (8, 1), "float32")
    own = task("aten.embedding.default", [{"$": 0}, {"$": 1}], (TABLE, LABELS), many)
    assert reads(own, own.body.target, own.body.args) == (1.0, 1)


def test_each_kernel_of_the_gradients_of_rms_norm_reads_by_itself():
    args = [{"$": 0}, {"$": 1}, [8], {"$": 2}, {"$": 3}, [True, True]]
    inputs = (
        Operand("grad", (5, 8), (8, 1), "float32"),
        ROWS,
        Operand("rstd", (5, 1), (1, 1), "float32"),
        Operand("weight", (8,), (1,), "float32"),
    )
    own = task("aten._fused_rms_norm_backward.default", args, inputs, ROWS)
    assert reads(own, own.body.target, own.body.args) == (2, 2, 2, 1)
