"""`schedcast judge` for steps: tables of measured steps, and how accurate the predictions are."""

import json

import pytest

from tests.support.refusals import refused, refuses
from traces import files
from traces.documents.profile import Dispatch, Identity, Profile
from traces.documents.scoreboard import Scoreboard
from traces.errors import Code
from ui.commands import scoring

ROWS = """gpu,model,batch,value_ms,optimizer
v100,lenet5,64,1.5,none
NVIDIA H100 80GB HBM3,lenet5,64,1.0,adam:fused
this-cpu,lenet5,64,12,
v100,nobody,64,1.5,
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.csv").write_text(ROWS)
    return tmp_path


@pytest.mark.thorough
def test_own_rows_are_scored(schedcast, folder, tmp_path):
    done = schedcast.call("judge", folder, "--json", "--out", tmp_path / "scores.json", SCHEDCAST_CACHE=str(tmp_path / "cache"))
    assert (done.status, done.err) == (0, "")
    document = Scoreboard.load(tmp_path / "scores.json")
    assert done.document == document.document() == json.loads((tmp_path / "scores.json").read_text())
    assert document.total.rows == 3
    assert {*document.by_gpu} == {"v100", "h100", "this-cpu"}
    assert [(item.why, item.rows) for item in document.unpredicted] == [("no workload for nobody", 1)]
    assert [step.measured_s for step in document.steps] == [0.0015, 0.001, 0.012]
    shown = schedcast.call("judge", folder, SCHEDCAST_CACHE=str(tmp_path / "cache"))
    assert shown.status == 0
    assert "3 measured steps: half of the predictions err by" in shown.out
    assert "no workload for nobody" in shown.out


def test_a_row_of_this_gpu_needs_its_calibration(schedcast, folder):
    (folder / "own.csv").write_text("gpu,model,batch,value_ms\nthis-gpu,lenet5,8,1\n")
    (row,) = schedcast.call("judge", folder, "--json").document["unpredicted"]
    assert "no calibrated NVIDIA GPU" in row["why"]


@pytest.mark.thorough
def test_the_rows_of_a_profile_are_predicted_with_its_figures(schedcast, folder, tmp_path):
    (folder / "own.csv").write_text("gpu,model,batch,value_ms\nv100,vgg11,32,150\nl4,vgg11,32,150\n")
    """A host that takes 5 ms for each task takes longer than the GPU."""
    slow = Profile(identity=Identity(kind="gpu", gpu="Tesla V100-SXM2-16GB", sms=80), dispatch=Dispatch(dispatch_s=5e-3))
    place = slow.save(tmp_path / "v100.json")
    preset, measured = (
        [step["predicted_s"] for step in schedcast.call("judge", folder, *options, "--json").document["steps"]]
        for options in ((), ("--profile", place))
    )
    assert measured[0] > 2 * preset[0]
    assert measured[1] == preset[1]


def test_what_is_no_table_is_refused(schedcast, tmp_path):
    refused(schedcast.call("scoreboard", tmp_path / "absent"), "absent is no folder")
    refused(schedcast.call("judge", tmp_path / "absent"), "no table at", "absent; check the name")
    refused(schedcast.call("judge", "/dev/null"), "/dev/null is a device or a pipe")
    (tmp_path / "else.csv").write_text("name,age\nx,1\n")
    refused(schedcast.call("judge", tmp_path / "else.csv"), "no table of steps or pairs", "gpu, model, batch, value_ms", "change, before")
    refused(schedcast.call("judge", tmp_path), "has no table of measured steps")
    refused(schedcast.call("judge", tmp_path, "--sample", 0), "--sample is 0; expected at least 1")


def test_a_table_is_judged_as_what_it_is(schedcast, folder, tmp_path):
    """Steps, by the file or by its folder, and by the command's earlier name; pairs; both together are refused."""
    (folder / "own.csv").write_text("gpu,model,batch,value_ms\nv100,lenet5,64,1.5\n")
    pairs = tmp_path / "pairs" / "mine.csv"
    pairs.parent.mkdir()
    pairs.write_text("change,before,after,model,batch,machine\nprecision=amp,2,1,lenet5,8,h100\n")
    steps = [schedcast.call(*asked, "--json").document for asked in (("judge", folder / "own.csv"), ("scoreboard", folder))]
    assert steps[0] == steps[1]
    assert schedcast.call("judge", pairs, "--json").document == schedcast.call("rules", pairs, "--json").document
    refused(schedcast.call("judge", pairs, folder), "mine.csv has pairs, and", "has steps; judge one after the other")
    refused(schedcast.call("judge", pairs, "--sample", 9), "--sample 9 is for tables of measured steps")


def test_a_table_is_read_once(tmp_path, monkeypatch):
    reads, read_text = [], files.read_text
    monkeypatch.setattr(files, "read_text", lambda path, *more: reads.append(path) or read_text(path, *more))
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with refuses(Code.FILE, "other.csv is no table of steps or pairs"):
        scoring.judge([tmp_path / "other.csv"], profile=None, sample=None, processes=None, out=None, as_json=True)
    assert reads == [tmp_path / "other.csv"]
