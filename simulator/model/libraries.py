"""Models of libraries by name: `torchvision:NAME`, `timm:NAME`, and `hf:NAME` of transformers. Their weights are random: nothing is loaded.

Sizes and losses are those with which the library's own examples train the model; its batch holds random numbers.
"""

import hashlib
import importlib
import importlib.util
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulator.model.factory import Factory
from simulator.model.user_code import brief
from traces.errors import Code, SchedcastError, UnknownNameError
from traces.files import kind_at, read_text
from traces.process import interrupts_delayed, spec_of

#: What follows `hf:`, in words.
HF_NAMES = "a model type (hf:bert), a class (hf:BertForTokenClassification) or a config.json"
#: Kernels that are part of transformers. It fetches others from a hub, as owner/repository or by a name, if their package is missing.
_OWN_KERNELS = ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")
#: Bytes of a config.json at most.
_MOST_BYTES = 1 << 24
_FRAMES = 16
_TOKENS, _LABEL_TOKENS, _AUDIO_SAMPLES = 128, 16, 16_000
#: Tasks in whose list transformers looks up the class of a model type; the first that has the type counts.
_GENERATION_TASKS = ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ")
_TASKS = (
    "MASKED_LM", "CAUSAL_LM", "IMAGE_CLASSIFICATION", "CTC", "AUDIO_CLASSIFICATION", "VIDEO_CLASSIFICATION", "SEQUENCE_CLASSIFICATION",
    "ZERO_SHOT_IMAGE_CLASSIFICATION",
)  # fmt: skip
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def library_factory(spec: str, image_size: int | None) -> Factory:
    """Return the factory of `LIBRARY:NAME`. Raises SchedcastError if the library is not installed or has no such model."""
    library, _, name = spec.partition(":")
    package = "transformers" if library == "hf" else library
    if spec_of(package) is None:
        raise SchedcastError(f"{spec} needs {package}, which is not installed; install it (pip install {package}) or use a built-in model")
    make, settings = LIBRARIES[library](name, image_size)
    from importlib.metadata import version

    digest = hashlib.blake2b(repr((version(package), image_size, settings)).encode(), digest_size=12)
    for path in (Path(__file__), Path(__file__).with_name("default_loss.py")):
        digest.update(path.read_bytes())
    return Factory(spec, make, digest.hexdigest(), repeats=True)


def define_missing_operators() -> None:
    """Let torchvision be imported although its compiled operators do not load, as with a version of PyTorch that it was not built for.

    Its import stops at two operators that only detection uses. They get a schema here, and no kernel.
    """
    package = spec_of("torchvision")
    if package is None or not package.submodule_search_locations:
        return
    import torch

    library = next(Path(package.submodule_search_locations[0]).glob("_C*"), None)  # _C_stable.so since torchvision 0.29
    try:
        if library is not None:
            torch.ops.load_library(library)
    except OSError:
        library = None
    if library is None and not hasattr(torch.ops.torchvision, "nms"):
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", _SCHEMA)


def _import(name: str) -> Any:
    with interrupts_delayed():
        define_missing_operators()
        return importlib.import_module(name)


def _torchvision(name: str, image_size: int | None) -> tuple[Callable[[int], tuple], str]:
    models = _import("torchvision").models
    if name not in models.list_models():
        raise UnknownNameError("torchvision model", name, models.list_models())
    folder = models.get_model_builder(name).__module__.removeprefix("torchvision.models.").rpartition(".")[0]
    if folder not in ("", "segmentation", "video"):
        raise SchedcastError(f"torchvision:{name} is made for {folder}; expected one for classification, segmentation or video")
    transforms = models.get_model_weights(name).DEFAULT.transforms.keywords
    own = transforms.get("crop_size") or transforms.get("resize_size") or 224
    size = image_size or (own[0] if isinstance(own, list | tuple) else own)

    def make(batch: int) -> tuple:
        import torch

        from simulator.model.default_loss import default_loss

        shape = (batch, 3, _FRAMES, size, size) if folder == "video" else (batch, 3, size, size)
        options = {"weights_backbone": None, "aux_loss": True} if folder == "segmentation" else {}
        options |= {"init_weights": True} if name in ("googlenet", "inception_v3") else {}  # their default, which warns unless it is given
        target = torch.randint(21, (batch, size, size)) if folder == "segmentation" else torch.randint(400, (batch,))
        model = models.get_model(name, weights=None, **options)
        return model, torch.randn(shape), target, default_loss

    return make, ""


def _timm(name: str, image_size: int | None) -> tuple[Callable[[int], tuple], str]:
    timm = _import("timm")
    if not timm.is_model(name):
        raise UnknownNameError("timm model", name, timm.list_models())
    settings = timm.get_pretrained_cfg(name, allow_unregistered=True)
    channels, *sides = getattr(settings, "input_size", None) or (3, 224, 224)
    options = {}
    if image_size:
        sides = [image_size] * 2
        options = {"img_size": image_size} if getattr(settings, "fixed_input_size", False) else {}

    def make(batch: int) -> tuple:
        import torch

        from simulator.model.default_loss import default_loss

        model = timm.create_model(name, pretrained=False, **options)
        target = torch.randint(max(getattr(model, "num_classes", 1), 1), (batch,))
        return model, torch.randn(batch, channels, *sides), target, default_loss

    return make, ""


def _hugging_face(name: str, size: int | None) -> tuple[Callable[[int], tuple], str]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # some models would load a backbone
    transformers = _import("transformers")
    with _nothing_fetched(f"hf:{name}: its settings do not make a model"):
        model_class, config = _class_and_config(transformers, name)
        for part in (config, config.get_text_config()):
            if hasattr(part, "use_cache"):
                part.use_cache = False  # keys and values that only generation reads
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0  # as in T5's published settings
        digest = f"{model_class.__name__}: {config.to_json_string(use_diff=False)}"
    taken = inspect.signature(model_class.forward).parameters
    if "labels" not in taken and "start_positions" not in taken and "return_loss" not in taken:
        raise SchedcastError(f"hf:{name}: {model_class.__name__} computes no loss; expected a class with a head; name one (hf:CLASS)")

    def make(batch: int) -> tuple:
        with _nothing_fetched(f"hf:{name} is not made"):
            model = model_class(config)
        return model, _inputs(model_class.__name__, taken, config, batch, size), None, lambda output, _: output.loss

    return make, digest


@contextmanager
def _nothing_fetched(fault: str) -> Iterator[None]:
    """Nothing is fetched from a hub inside, neither kernels nor backbones, whatever the environment says.

    Raises SchedcastError, which begins with `fault`: transformers' own checks of settings raise errors of many types.
    """
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    except SchedcastError:
        raise
    except Exception as error:
        raise SchedcastError(f"{fault}: {brief(error)}; check the config.json") from error
    finally:
        constants.HF_HUB_OFFLINE = before


def config_file(name: str) -> Path | None:
    """The config.json that `hf:NAME` names, as a file or by its folder; None for the name of a model."""
    path = Path(name)
    return path / "config.json" if kind_at(name) == "folder" else path if path.suffix == ".json" else None


def _class_and_config(transformers: Any, name: str) -> tuple[Any, Any]:
    """The class that `hf:NAME` means, and its configuration: that of a file, otherwise the default of the model type or class."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    path = config_file(name)
    settings: dict[str, Any] = {}
    if path is not None:
        settings = _settings(path)
    elif hasattr(getattr(transformers, name, None), "config_class"):
        return getattr(transformers, name), getattr(transformers, name).config_class()
    kind = settings.get("model_type", name)
    if kind not in CONFIG_MAPPING_NAMES:
        raise SchedcastError(f"hf:{name[:80]} is unknown to transformers; expected {HF_NAMES}; nothing is loaded from a hub")
    for kernel in _kernels(settings):
        if kernel not in _OWN_KERNELS:
            raise SchedcastError(
                f"hf:{name} asks for the kernel {kernel!r}; expected one of {', '.join(_OWN_KERNELS)}: nothing is loaded from a hub;"
                " remove it from the config.json"
            )
    config = CONFIG_MAPPING[kind].from_dict(settings)
    tasks = (_GENERATION_TASKS if config.is_encoder_decoder else ()) + _TASKS
    offered = (getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").get(kind) for task in tasks)
    own = next(iter(settings.get("architectures") or ()), None)
    named = getattr(transformers, str(own), None)
    is_model = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)  # AutoModel makes others
    class_name = own if is_model else next((each for each in offered if each), None)
    if class_name is None:
        raise SchedcastError(f"hf:{name}: transformers has no {kind} with a loss for text, images or audio; name a class of it (hf:CLASS)")
    return getattr(transformers, class_name if isinstance(class_name, str) else class_name[0]), config


def _kernels(settings: Any) -> Iterator[str]:
    """The kernels of attention and of experts that settings, and those of parts of the model inside them, ask for."""
    for key, inner in settings.items() if isinstance(settings, dict) else ():
        if key.removeprefix("_").removesuffix("_internal") in ("attn_implementation", "experts_implementation") and inner is not None:
            yield from map(str, inner.values() if isinstance(inner, dict) else [inner])
        else:
            yield from _kernels(inner)


def _settings(path: Path) -> dict[str, Any]:
    text = read_text(path, "config.json", _MOST_BYTES)
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchedcastError(
            f"cannot read {path}: {error}; expected the config.json of a transformers model; check --model", Code.FILE
        ) from error
    if not isinstance(settings, dict) or not isinstance(settings.get("model_type"), str):
        raise SchedcastError(f"{path} names no model_type; expected the config.json of a transformers model; check --model", Code.FILE)
    return settings


def _inputs(class_name: str, taken: Mapping[str, Any], config: Any, batch: int, size: int | None) -> dict[str, Any]:
    """A batch for `forward`, which takes the arguments `taken`: tokens, images or audio, and labels."""
    import torch

    text = config.get_text_config()
    vision = getattr(config, "vision_config", config)
    tokens = size or min(_TOKENS, getattr(text, "max_position_embeddings", None) or _TOKENS)
    inputs: dict[str, Any] = {}
    if "input_ids" in taken:
        inputs["input_ids"] = torch.randint(text.vocab_size, (batch, tokens))
        inputs |= {"attention_mask": torch.ones(batch, tokens, dtype=torch.long)} if "attention_mask" in taken else {}
    if "pixel_values" in taken:
        side = size if size and "input_ids" not in taken else getattr(vision, "image_size", 224)
        sides = side if isinstance(side, list | tuple) else (side, side)
        inputs["pixel_values"] = torch.randn(batch, getattr(vision, "num_channels", 3), *sides)
    if "input_values" in taken:
        inputs["input_values"] = torch.randn(batch, size or _AUDIO_SAMPLES)
    if "input_features" in taken:
        inputs["input_features"] = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)
    if class_name.endswith("ForQuestionAnswering"):
        inputs |= {name: torch.randint(tokens, (batch,)) for name in ("start_positions", "end_positions")}
    elif class_name.endswith("ForTokenClassification"):
        inputs["labels"] = torch.randint(config.num_labels, (batch, tokens))
    elif class_name.endswith("Classification"):
        inputs["labels"] = torch.randint(config.num_labels, (batch,))
    elif "labels" in taken:
        length = tokens if "input_ids" in taken and not config.is_encoder_decoder else min(_LABEL_TOKENS, tokens)
        inputs["labels"] = torch.randint(1, text.vocab_size, (batch, length))
    else:
        inputs["return_loss"] = True
    return inputs


#: Library -> what makes a factory's callable, and the settings that decide its model, of a name and a size.
LIBRARIES: dict[str, Callable[[str, int | None], tuple[Callable[[int], tuple], str]]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "hf": _hugging_face,
}
