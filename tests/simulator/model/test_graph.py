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


# A user's model is captured anew each time, because it may depend on anything: each of these changes must change the prediction.


MODEL = """
import json, os, pathlib, sys
import torch
{top}

def make(batch):
    {inside}
    return torch.nn.Sequential(torch.nn.Linear(8, hidden), torch.nn.Linear(hidden, 3)), torch.randn(batch, 8), torch.randint(3, (batch,))
"""
#: What the width of the hidden layer depends on: lines at the top and inside the factory, and the file that holds it.
CASES = {
    "a constant": ("hidden = {hidden}", "pass", None),
    "config.json": ("", "hidden = json.loads(pathlib.Path('config.json').read_text())", "config.json"),
    "an environment variable": ("", "hidden = int(os.environ['HIDDEN'])", None),
    "a module imported in the factory": ("", "from inner import hidden", "inner.py"),
    "a sibling package": ("sys.path.append('sibling')\nfrom package.sizes import hidden", "pass", "sibling/package/sizes.py"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_a_changed_model_is_captured_anew(schedcast, tmp_path, case):
    top, inside, file = CASES[case]

    def parameter_bytes(hidden: int) -> int:
        (tmp_path / "model.py").write_text(MODEL.format(top=top.format(hidden=hidden), inside=inside))
        if file is not None:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(str(hidden) if file.endswith("json") else f"hidden = {hidden}\n")
        job = ("--model", "model.py:make", "--batch", 2, "--strategy", "baseline", "--machine", "h100", "--json")
        done = schedcast.call("predict", *job, cwd=tmp_path, HIDDEN=str(hidden), PYTHONDONTWRITEBYTECODE="1")
        (peak,) = done.document["at_peak"]
        return peak["by_kind"]["parameter"]

    assert [parameter_bytes(hidden) for hidden in (32, 8192)] == [4 * (8 * hidden + hidden + 3 * hidden + 3) for hidden in (32, 8192)]
