"""An output never destroys an input, another output, or a folder of someone else."""

import os
from pathlib import Path

import pytest

from traces.errors import SchedcastError
from traces.outputs import FolderKind, OutputFolder, check_outputs

KIND = FolderKind("report.json", "schedcast.report", ("index.html", "report.json"))


@pytest.fixture
def trace(tmp_path) -> Path:
    """An input."""
    path = tmp_path / "t.json"
    path.write_text("{}")
    return path


def refused(message: str, outputs: dict, inputs=()) -> None:
    with pytest.raises(SchedcastError, match=message):
        check_outputs(outputs, inputs)


def test_an_input_by_any_of_its_names(trace, tmp_path, monkeypatch):
    inputs = [("--profile", None), ("the trace", trace)]
    (tmp_path / "link.json").symlink_to(trace)
    os.link(trace, tmp_path / "second.json")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in (trace, tmp_path / "link.json", tmp_path / "second.json", Path("t.json"), Path("folder/../t.json")):
        refused(r"--perfetto would overwrite .*, the file of the trace; choose another place", {"--perfetto": name}, inputs)
    check_outputs({"--perfetto": tmp_path / "new.json", "--timeline": None}, inputs)
    assert trace.read_text() == "{}"


def test_two_outputs_in_one_file(tmp_path):
    refused(r"--timeline would overwrite .*, the file of --metrics", {"--metrics": tmp_path / "a", "--timeline": tmp_path / "." / "a"})
    folder = OutputFolder(tmp_path / "page", KIND)
    refused(
        r"--out would overwrite .*report.json, the file of --metrics", {"--metrics": tmp_path / "page" / "report.json", "--out": folder}
    )
    check_outputs({"--metrics": tmp_path / "page" / "metrics.json", "--out": folder})


def test_devices_take_several_outputs():
    check_outputs({"--metrics": Path("/dev/null"), "--timeline": Path("/dev/null")}, [("--profile", Path("/dev/null"))])


def test_a_folder_of_someone_else(tmp_path):
    def write(name: str, content: str) -> dict:
        (tmp_path / "site").mkdir(exist_ok=True)
        (tmp_path / "site" / name).write_text(content)
        return {"--out": OutputFolder(tmp_path / "site", KIND)}

    check_outputs({"--out": OutputFolder(tmp_path / "site", KIND)})
    check_outputs(write(".hidden", ""))
    outputs = write("index.html", "mine")
    refused(r"site has files \(index\.html\) but no report of this command \(a report\.json with schema schedcast\.report\)", outputs)
    for foreign in ("{", "[]", '{"schema": 7}', '{"schema": "schedcast.run/1"}', '{"schema": "schedcast.reporter/1"}'):
        refused("but no report of this command", write("report.json", foreign))
    check_outputs(write("report.json", '{"schema": "schedcast.report/1"}'))
    assert (tmp_path / "site" / "index.html").read_text() == "mine"


def test_an_input_inside_an_earlier_report(tmp_path):
    place = tmp_path / "report.json"
    place.write_text('{"schema": "schedcast.report/1"}')
    refused(r"--out would overwrite .*report.json, the file of --profile", {"--out": OutputFolder(tmp_path, KIND)}, [("--profile", place)])
