"""Captured graphs as documents: read back as they were, and refused if they are not graphs of a training step."""

import copy
import json

import pytest

from simulator.model import graph as graphs
from simulator.model.job import Job
from traces.errors import UnusableFileError


@pytest.fixture(scope="module")
def document():
    return json.loads(json.dumps(graphs.dump(Job("lenet5", 2).graph())))


def test_a_graph_comes_back_as_it_was(document):
    assert graphs.load(document) == Job("lenet5", 2).graph()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d["ops"][0]["reads"][0].update(value="nobody"), "names an unknown value 'nobody'"),
        (lambda d: d["ops"][0]["reads"][0].update(strides=[]), "has 2 dimensions and 0 strides|has 4 dimensions and 0 strides"),
        (lambda d: d["ops"][0].update(phase="later"), "has phase 'later'"),
        (lambda d: d["ops"][0]["body"].update(flops=1e300), r"has 1e\+300 FLOPs"),
        (lambda d: d["ops"][0]["body"].update(launches=-1), "has -1 launches"),
        (lambda d: d["ops"].append(d["ops"][0]), "two ops of one name"),
        (lambda d: d.update(loss="nobody"), "'nobody' is not among its values"),
        (lambda d: d.update(batch=0), "it has no samples"),
        (lambda d: d["gradients"].popitem(), "do not belong together"),
        (lambda d: d["storage_bytes"].popitem(), "an unknown storage"),
        (lambda d: d.pop("ops"), "damaged at ops: Field required"),
    ],
)
def test_a_damaged_graph_is_refused(document, change, expected):
    damaged = copy.deepcopy(document)
    change(damaged)
    with pytest.raises(UnusableFileError, match=expected):
        graphs.load(damaged)
