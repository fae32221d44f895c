"""Models of libraries go by name, with random weights and without a network; what a library does not have is refused in one line."""

import json
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from simulator.model import libraries
from simulator.model.job import Job
from tests.support.refusals import refuses
from tests.support.same_numbers import assert_trains_alike
from traces.errors import Code, SchedcastError

TINY_BERT = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 50,
    "max_position_embeddings": 16,
}  # fmt: skip


def needs(library: str) -> None:
    """Skip the test without the library. It is not imported: the factory first defines what its import may lack."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


@pytest.mark.thorough
def test_a_model_of_transformers_from_its_settings(tmp_path, two_cores, backend):
    needs("transformers")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY_BERT))
    job = Job(f"hf:{path}", 2, image_size=8, optimizer="sgd", precision="fp64")
    assert job.graph().values["input:input_ids"].shape == (2, 8)
    assert set(job.graph().inputs) == {"input:input_ids", "input:attention_mask", "input:labels"}
    assert_trains_alike(job, two_cores, backend)


def test_a_vision_transformer_of_timm(two_cores, backend):
    needs("timm")
    assert_trains_alike(Job("timm:test_vit", 2, image_size=32, optimizer="sgd", precision="fp64"), two_cores, backend)


def test_a_model_of_torchvision(two_cores, backend):
    needs("torchvision")
    assert_trains_alike(Job("torchvision:squeezenet1_1", 2, image_size=32, optimizer="sgd", precision="fp64"), two_cores, backend)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("torchvision:fasterrcnn_resnet50_fpn", "is made for detection; expected one for classification"),
        ("timm:no_such_model", "unknown timm model 'no_such_model'"),
        ("hf:no_such_model", "expected a model type .hf:bert., a class .* or a config.json; nothing is loaded from a hub"),
        ("hf:BertModel", "BertModel computes no loss; expected a class with a head"),
    ],
)
def test_what_a_library_does_not_have_is_refused(model, words):
    library = {"hf": "transformers"}.get(model.partition(":")[0], model.partition(":")[0])
    needs(library)
    with pytest.raises(SchedcastError, match=words):
        _ = Job(model, 2).factory


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("{", Code.FILE, "cannot read"),
        ("[]", Code.FILE, "names no model_type"),
        ('{"model_type": "falcon", "head_dim": 32}', Code.REQUEST, "its settings do not make a model: AttributeError: .*head_dim"),
        ('{"model_type": "bert", "architectures": 7}', Code.REQUEST, "its settings do not make a model: TypeError"),
        ('{"model_type": ' + "[" * 100_000, Code.FILE, "cannot read .*; expected the config.json"),
        ('{"model_type": ' + "9" * 5000, Code.FILE, "cannot read .*; expected the config.json"),
    ],
)
def test_settings_that_are_damaged_or_not_taken_are_refused(tmp_path, text, code, words):
    needs("transformers")
    (tmp_path / "config.json").write_text(text)
    with refuses(code, words):
        _ = Job(f"hf:{tmp_path}", 2).factory


@pytest.mark.parametrize(
    "kernel",
    [
        {"_attn_implementation": "owner/repo"}, {"attn_implementation": "flash_attention_2"}, {"part": {"_attn_implementation": "o/r"}},
        {"_attn_implementation": {"": "sdpa", "text_config": "owner/repo"}},
    ],
)  # fmt: skip
def test_no_kernel_is_fetched(tmp_path, kernel):
    needs("transformers")
    (tmp_path / "config.json").write_text(json.dumps(TINY_BERT | kernel))
    with refuses(Code.REQUEST, "asks for the kernel .*; expected one of eager, sdpa, .*: nothing is loaded from a hub"):
        _ = Job(f"hf:{tmp_path}", 2).factory


def test_transformers_is_offline_while_it_makes_a_model(tmp_path, monkeypatch):
    needs("transformers")
    from huggingface_hub import constants
    from transformers import BertForMaskedLM

    def made(config):
        raise RuntimeError(f"offline: {constants.HF_HUB_OFFLINE}")

    (tmp_path / "config.json").write_text(json.dumps(TINY_BERT))
    call = Job(f"hf:{tmp_path}", 2).factory.call
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(BertForMaskedLM, "__init__", lambda self, config: made(config))
    with pytest.raises(SchedcastError, match="offline: True"):
        call(2)
    assert constants.HF_HUB_OFFLINE is False


def test_settings_of_a_class_that_makes_others_mean_the_usual_class(tmp_path):
    needs("transformers")
    (tmp_path / "config.json").write_text(json.dumps(TINY_BERT | {"architectures": ["AutoModel"]}))
    assert type(Job(f"hf:{tmp_path}", 2).factory.call(2)[0]).__name__ == "BertForMaskedLM"


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(libraries, "spec_of", lambda name: None)
    with refuses(Code.REQUEST, "timm:vit needs timm, which is not installed"):
        _ = Job("timm:vit", 2).factory


def test_operators_of_a_torchvision_that_was_built_for_another_pytorch_get_a_schema(monkeypatch, tmp_path):
    (tmp_path / "_C.so").write_bytes(b"no library")
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    libraries.define_missing_operators()
    assert "float iou_threshold" in str(torch.ops.torchvision.nms.default._schema)
    libraries.define_missing_operators()  # a second time it finds them


def test_finding_a_built_in_model_loads_no_library():
    before = set(sys.modules)
    _ = Job("lenet5", 2).factory
    assert not {"timm", "transformers", "torchvision"} & (set(sys.modules) - before)
