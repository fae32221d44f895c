"""The built-in models. A new one is a line of `MODELS`, and a class in `networks` if its network is new.

This module imports no torch, and `networks` only inside functions, so that listing the models does not need torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from simulator.model.workloads.data import Batches, audio_clips, bit_streams, digits
from simulator.model.workloads.language_models import NAMED, PREFIX, USUAL_LENGTH, LanguageModel, listed_name, read
from traces.errors import UnknownNameError

#: Samples per step of a model for which nothing else is usual.
USUAL_BATCH = 32
#: Classes of the whole of ImageNet.
_IMAGENET_22K = 21_841


@dataclass(frozen=True, slots=True)
class Workload:
    """A built-in model.

    `build(batch, image_size)` returns `(module, inputs, target)` or `(module, inputs, target, loss)`: the module in training mode and
    `inputs` as a tuple of tensors; the default loss is cross-entropy. It makes tensors with plain torch factory functions only and never
    reads one, so that it also runs under fake tensors. `image_size` is the default; a language model takes it as its sequence length.
    `parameters` is the published number of trainable scalars. Images smaller than `least_size` leave nothing to pool; longer sequences than
    `most_size` have no positions.
    `data(batch, image_size, seed)` returns the batches of a data set to train on; without it, training repeats the batch that `build` made.
    `batch` is a usual number of samples per step.
    """

    name: str
    image_size: int
    parameters: int
    about: str
    build: Callable[[int, int], tuple]
    least_size: int = 1
    most_size: int | None = None
    data: Callable[[int, int, int], Batches] | None = None
    batch: int = USUAL_BATCH


def _network(name: str) -> Any:
    """Return the class or function MODULE.NAME of `networks`."""
    module, _, item = name.partition(".")
    return getattr(import_module(f"{__package__}.networks.{module}"), item)


def _images(
    network: str, *arguments: Any, classes: int = 1000, channels: int = 3, sized: bool = False, loss: str | None = None, **options: Any
) -> Callable[[int, int], tuple]:
    """Return a function that builds an image classifier for random images [batch, channels, image_size, image_size].

    `network`: its class, which takes the arguments, `classes` and the options, and `image_size` if it is `sized`. `loss`: default
    cross-entropy.
    """

    def build(batch: int, image_size: int) -> tuple:
        import torch

        size = {"image_size": image_size} if sized else {}
        module = _network(network)(*arguments, classes=classes, **size, **options).train()
        images, labels = torch.randn(batch, channels, image_size, image_size), torch.randint(classes, (batch,))
        return (module, (images,), labels) if loss is None else (module, (images,), labels, _network(loss))

    return build


def _sequences(function: str, *arguments: Any) -> Callable[[int, int], tuple]:
    """Return a function that builds what `function` of `networks` returns for a batch, a length and the arguments."""
    return lambda batch, length: _network(function)(batch, length, *arguments)


def decoder_of(model: LanguageModel) -> Callable[[int, int], tuple]:
    """Return a function that builds a language model for a batch and a length."""
    return _sequences("decoders.decoder", model)


def _language_model(name: str, model: LanguageModel, length: int, about: str) -> "Workload":
    """Return a decoder, for one sequence of `length` tokens unless a job says more."""
    return Workload(name, length, model.parameters(length), about, decoder_of(model), most_size=model.context or None, batch=1)


_ONE_TOWER = "Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks"
_BERT = "Devlin et al. 2018, BERT: Pre-training of deep bidirectional transformers"
_BPPSA = "Wang et al. 2020, BPPSA, section"
_DENSENET = "Huang et al. 2016, Densely connected convolutional networks"
_GPT2 = "Radford et al. 2019, Language models are unsupervised multitask learners"
_INCEPTION = "Szegedy et al. 2016, Rethinking the Inception architecture"
_RESNET = "He et al. 2015, Deep residual learning for image recognition"
_RESNEXT = "Xie et al. 2016, Aggregated residual transformations for deep neural networks"
_STALE = "Zhang and Abdelrahman 2021, Pipelined training with stale weights"
_VGG = "Simonyan and Zisserman 2014, Very deep convolutional networks"
#: Handwritten digits as colored images.
_DIGITS = partial(digits, 3)
#: What the models for CIFAR's small images train with; the batch is the papers'.
_for_cifar = partial(Workload, data=_DIGITS, batch=128)
_BASE, _LARGE = (768, 12, 12), (1024, 16, 24)

#: Name, default image size, parameters, what it is, how it is built; then the fields that differ from the defaults of `Workload`.
MODELS = (
    Workload("lenet5", 32, 61_706, "LeNet-5: LeCun et al. 1998, Gradient-based learning applied to document recognition",
             _images("chains.LeNet5", sized=True, channels=1, classes=10), least_size=16, data=partial(digits, 1), batch=64),

    Workload("alexnet", 224, 61_100_840, f"AlexNet, one tower: {_ONE_TOWER}", _images("chains.AlexNet", sized=True), least_size=31),
    Workload("alexnet_22k", 224, 61_100_840 + 20_841 * 4_097, f"AlexNet, one tower, for ImageNet-22K: {_ONE_TOWER}",
             _images("chains.AlexNet", sized=True, classes=_IMAGENET_22K), least_size=31),
    _for_cifar("alexnet_cifar", 32, 23_272_266, f"AlexNet for CIFAR, with 3x3 convolutions: {_ONE_TOWER}",
             _images("chains.SmallAlexNet", classes=10), least_size=15),
    Workload("alexnet_grouped", 224, 60_965_224,
             "AlexNet, two towers: Krizhevsky et al. 2012, ImageNet classification with deep convolutional neural networks",
             _images("chains.TwoTowerAlexNet", sized=True), least_size=31),
    Workload("caffenet", 224, 60_965_224,
             "CaffeNet, pools before it normalizes: Jia et al. 2014, Caffe: Convolutional architecture for fast feature embedding",
             _images("chains.TwoTowerAlexNet", sized=True, pool_first=True), least_size=31),

    Workload("vgg11", 224, 132_863_336, f"VGG-11 (A): {_VGG}", _images("chains.VGG", (1, 1, 2, 2, 2)), least_size=32, data=_DIGITS),
    Workload("vgg13", 224, 133_047_848, f"VGG-13 (B): {_VGG}", _images("chains.VGG", (2, 2, 2, 2, 2)), least_size=32),
    Workload("vgg16", 224, 138_357_544, f"VGG-16 (D): {_VGG}", _images("chains.VGG", (2, 2, 3, 3, 3)), least_size=32),
    Workload("vgg16_22k", 224, 138_357_544 + 20_841 * 4_097, f"VGG-16 (D) for ImageNet-22K: {_VGG}",
             _images("chains.VGG", (2, 2, 3, 3, 3), classes=_IMAGENET_22K), least_size=32),
    _for_cifar("vgg16_cifar", 32, 15_245_130, f"VGG-16 (D) for CIFAR, with linear layers of 512: {_VGG}",
             _images("chains.VGG", (2, 2, 3, 3, 3), classes=10, pooled=1, hidden=512), least_size=32),
    Workload("vgg19", 224, 143_667_240, f"VGG-19 (E): {_VGG}", _images("chains.VGG", (2, 2, 4, 4, 4)), least_size=32),
    Workload("vgg19_bn", 224, 143_678_248, f"VGG-19 (E) with batch-norm: {_VGG}",
             _images("chains.VGG", (2, 2, 4, 4, 4), batch_norm=True), least_size=32),
    Workload("vgg11_pruned", 32, 9_750_922,
             f"VGG-11 for CIFAR-10; a fixed random mask keeps 3 % of every weight: {_BPPSA} 4.3 (pruned by magnitude)",
             _images("chains.PrunedVGG11", sized=True, classes=10), least_size=32, data=_DIGITS),

    Workload("resnet18", 224, 11_689_512, f"ResNet-18: {_RESNET}", _images("shortcuts.ResNet", (2, 2, 2, 2), bottleneck=False)),
    Workload("resnet34", 224, 21_797_672, f"ResNet-34: {_RESNET}", _images("shortcuts.ResNet", (3, 4, 6, 3), bottleneck=False)),
    Workload("resnet50", 224, 25_557_032, f"ResNet-50: {_RESNET}", _images("shortcuts.ResNet", (3, 4, 6, 3))),
    Workload("resnet101", 224, 44_549_160, f"ResNet-101: {_RESNET}", _images("shortcuts.ResNet", (3, 4, 23, 3))),
    Workload("resnet152", 224, 60_192_808, f"ResNet-152: {_RESNET}", _images("shortcuts.ResNet", (3, 8, 36, 3))),
    Workload("resnet50_v1", 224, 25_557_032, f"ResNet-50 with the strides of the paper: {_RESNET}",
             _images("shortcuts.ResNet", (3, 4, 6, 3), strided_first=True)),
    Workload("resnet152_v1", 224, 60_192_808, f"ResNet-152 with the strides of the paper: {_RESNET}",
             _images("shortcuts.ResNet", (3, 8, 36, 3), strided_first=True)),
    Workload("resnext50_32x4d", 224, 25_028_904, f"ResNeXt-50 32x4d: {_RESNEXT}",
             _images("shortcuts.ResNet", (3, 4, 6, 3), groups=32, inner_share=2)),
    Workload("resnext101_32x4d", 224, 44_177_704, f"ResNeXt-101 32x4d: {_RESNEXT}",
             _images("shortcuts.ResNet", (3, 4, 23, 3), groups=32, inner_share=2)),

    _for_cifar("resnet20", 32, 269_722, f"ResNet-20 for CIFAR: {_RESNET}", _images("shortcuts.SmallResNet", 3, classes=10)),
    _for_cifar("resnet56", 32, 853_018, f"ResNet-56 for CIFAR: {_RESNET}", _images("shortcuts.SmallResNet", 9, classes=10)),
    _for_cifar("resnet110", 32, 1_727_962, f"ResNet-110 for CIFAR: {_RESNET}", _images("shortcuts.SmallResNet", 18, classes=10)),
    _for_cifar("resnet224", 32, 3_575_066, f"ResNet-224 for CIFAR: {_STALE}", _images("shortcuts.SmallResNet", 37, classes=10)),
    _for_cifar("resnet362", 32, 5_811_034, f"ResNet-362 for CIFAR: {_STALE}", _images("shortcuts.SmallResNet", 60, classes=10)),

    Workload("mobilenet_v2", 224, 3_504_872, "MobileNetV2: Sandler et al. 2018, Inverted residuals and linear bottlenecks",
             _images("shortcuts.MobileNetV2")),
    Workload("densenet121", 224, 7_978_856, f"DenseNet-121: {_DENSENET}", _images("shortcuts.DenseNet", (6, 12, 24, 16)), least_size=29),
    Workload("densenet161", 224, 28_681_000, f"DenseNet-161, which grows by 48: {_DENSENET}",
             _images("shortcuts.DenseNet", (6, 12, 36, 24), growth=48), least_size=29),
    Workload("densenet201", 224, 20_013_928, f"DenseNet-201: {_DENSENET}", _images("shortcuts.DenseNet", (6, 12, 48, 32)), least_size=29),

    Workload("googlenet", 224, 6_624_904,
             "GoogLeNet with batch-norm, no auxiliary heads: Szegedy et al. 2014, Going deeper with convolutions",
             _images("branches.GoogLeNet"), least_size=15),
    Workload("inception_v3", 299, 27_161_264, f"Inception-v3 with its auxiliary head: {_INCEPTION}",
             _images("branches.Inception3", loss="branches.total_loss"), least_size=75),
    Workload("inception_v3_no_aux", 299, 23_834_568, f"Inception-v3 without its auxiliary head: {_INCEPTION}",
             _images("branches.Inception3", auxiliary=False), least_size=75),
    Workload("inception_v3_no_aux_22k", 299, 23_834_568 + 20_841 * 2_049,
             f"Inception-v3 for ImageNet-22K, without its auxiliary head: {_INCEPTION}",
             _images("branches.Inception3", auxiliary=False, classes=_IMAGENET_22K), least_size=75),

    Workload("transformer_base", 64, 63_045_632, "Transformer base, 37,000 shared tokens: Vaswani et al. 2017, Attention is all you need",
             _sequences("sequences.translation")),
    Workload("bert_base", 512, 109_514_298, f"BERT base, masked language model: {_BERT}",
             _sequences("language.masked_tokens", *_BASE), most_size=512, batch=4),
    Workload("bert_large", 512, 335_174_458, f"BERT large, masked language model: {_BERT}",
             _sequences("language.masked_tokens", *_LARGE), most_size=512, batch=4),
    Workload("bert_base_qa", 384, 108_893_186, f"BERT base, question answering: {_BERT}",
             _sequences("language.answers", *_BASE), most_size=512, batch=16),
    Workload("bert_large_qa", 384, 334_094_338, f"BERT large, question answering: {_BERT}",
             _sequences("language.answers", *_LARGE), most_size=512, batch=8),
    Workload("gpt2", 1024, 124_439_808, f"GPT-2, the smallest: {_GPT2}",
             _sequences("language.next_tokens", *_BASE), most_size=1024, batch=4),
    Workload("gpt2_large", 1024, 774_030_080, f"GPT-2 large: {_GPT2}",
             _sequences("language.next_tokens", 1280, 20, 36), most_size=1024, batch=1),

    Workload("rnn_bitstream", 1000, 670, f"RNN on bit streams: {_BPPSA} 4.1",
             _sequences("sequences.bits"), data=bit_streams, batch=16),
    Workload("gru_features", 259, 3_831, f"GRU on audio features: {_BPPSA} 4.2 (S; --image-size 517 is M, 1034 is L)",
             _sequences("sequences.clips"), data=audio_clips, batch=16),
    *(_language_model(name, each.model, each.length, each.about) for name, each in NAMED.items()),
)  # fmt: skip
_BY_NAME = {model.name: model for model in MODELS}


def names() -> tuple[str, ...]:
    """Return the name of every built-in model, in alphabetical order."""
    return tuple(sorted(_BY_NAME))


def is_built_in(name: str) -> bool:
    """Whether a model is built in, so that it is not a user's code: one that is listed, or a form (`language_models`)."""
    return listed_name(name) in _BY_NAME or name.startswith(PREFIX)


def is_language_model(name: str) -> bool:
    """Whether a built-in model predicts the next token: one with its size behind a colon, or a form."""
    return is_built_in(name) and ":" in listed_name(name)


def language_model(name: str) -> LanguageModel | None:
    """The form of a built-in language model; None for any other model."""
    if name.startswith(PREFIX):
        return read(name)
    return NAMED[known].model if (known := listed_name(name)) in NAMED else None


def get(name: str) -> Workload:
    """Return the built-in model called `name`. Raises UnknownNameError, and SchedcastError for a form that is unusable."""
    if name.startswith(PREFIX):
        return _language_model(name, read(name), USUAL_LENGTH, "a decoder of the form that its name says")
    known = listed_name(name)
    if known not in _BY_NAME:
        others = "a language model of other sizes is lm:form=llama,layers=..., and with transformers hf:NAME"
        raise UnknownNameError("model", name, names(), f"`schedcast models` lists them; {others}")
    return _BY_NAME[known]
