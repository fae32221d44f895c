"""Loops over recurrent cells, results written into given tensors, CTC loss and distinct elements: they run with equal numbers."""

import pytest

from simulator.job import Job
from tests.support import unusual_models
from tests.support.same_numbers import assert_trains_alike


@pytest.mark.parametrize("name", unusual_models.NAMES)
def test_unusual_models_train_as_in_plain_pytorch(name, two_cores, backend):
    job = Job(f"{unusual_models.__file__}:{name}", 4, precision="fp64", optimizer="sgd")
    assert_trains_alike(job, two_cores, backend)


def test_a_loop_over_a_cell_is_captured_with_all_of_its_steps():
    ops = Job(f"{unusual_models.__file__}:lstm_cell_in_a_loop", 4, precision="fp64", optimizer="sgd").graph().ops
    of_cell = [op for op in ops if op.layer == "cell" and op.phase == "forward" and "addmm" in op.body.target]
    assert len(of_cell) == 2 * 6
