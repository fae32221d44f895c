"""Loops over cells, results written into given tensors, CTC loss, distinct elements and odd filters: they run with equal numbers."""

import pytest

from simulator.model.job import Job
from tests.support import unusual_models
from tests.support.jobs import planned
from tests.support.same_numbers import assert_trains_alike


@pytest.mark.parametrize("name", unusual_models.NAMES)
def test_unusual_models_train_as_in_plain_pytorch(name, two_cores, backend):
    job = Job(f"{unusual_models.__file__}:{name}", 4, precision="fp64", optimizer="sgd")
    assert_trains_alike(job, two_cores, backend)


def test_a_loop_over_a_cell_is_captured_with_all_of_its_steps():
    ops = Job(f"{unusual_models.__file__}:lstm_cell_in_a_loop", 4, precision="fp64", optimizer="sgd").graph().ops
    of_cell = [op for op in ops if op.layer == "cell" and op.phase == "forward" and "addmm" in op.body.target]
    assert len(of_cell) == 2 * 6


def test_a_depthwise_convolution_is_not_split_by_group(two_cores):
    job = Job(f"{unusual_models.__file__}:depthwise_filter_longer_than_the_image", 4, precision="fp64", optimizer="sgd")
    names = [task.name for task in planned("turbodl", job, two_cores).tasks]
    assert "layer/convolution" in names
    assert not [name for name in names if "group" in name]
