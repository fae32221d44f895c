"""The batch of a job whose batch is not given."""

import pytest

from simulator.model.usual_batch import source_file, usual_batch

FILE = """
raise SystemExit("reading a default runs nothing")
def usual(batch_size=24): ...
def required(batch_size): ...
def odd(batch_size=None, other=3): ...
def second(batch_size, other=3): ...
def computed(batch_size=2 * 8): ...
def flag(batch_size=True): ...
def positional(batch_size=12, /): ...
"""


def test_built_in_models_have_one():
    assert [usual_batch(model) for model in ("resnet18", "lenet5", "rnn_bitstream", "torchvision:resnet18")] == [32, 64, 16, 32]
    assert [usual_batch("resnet18", devices) for devices in (1, 8, 3, 64)] == [32, 32, 33, 64], "every device gets as much"


@pytest.mark.parametrize(
    ("name", "batch"),
    [("usual", 24), ("positional", 12), ("required", 32), ("odd", 32), ("second", 32), ("computed", 32), ("flag", 32), ("absent", 32)],
)
def test_a_factory_says_it_as_the_default_of_its_argument(tmp_path, monkeypatch, name, batch):
    (tmp_path / "m.py").write_text(FILE)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__init__.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    assert [usual_batch(f"{source}:{name}") for source in (tmp_path / "m.py", "m.py", "m", "folder")] == [batch] * 4


def test_a_file_that_cannot_be_read_has_none(tmp_path):
    (tmp_path / "broken.py").write_text("def make(:")
    assert [usual_batch(f"{tmp_path / name}:make") for name in ("broken.py", "absent.py")] == [32, 32]
    assert usual_batch(":") == 32


def test_the_file_of_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").touch()
    assert [str(source_file(spec)) for spec in ("m.py:make", "m:make", "nosuch:make", "lenet5")] == ["m.py", "m.py", "None", "None"]
