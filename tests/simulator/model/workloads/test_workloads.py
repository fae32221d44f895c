"""The built-in models: published sizes, small images, fake tensors, and one real step."""

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from simulator.model.find import find_factory
from simulator.model.job import Job
from simulator.model.workloads import registry as workloads
from simulator.model.workloads.data import Batches, cluttered_digits, digits
from simulator.model.workloads.language_models import NAMED
from simulator.model.workloads.networks.chains import TwoTowerAlexNet
from simulator.model.workloads.networks.sequences import Transformer
from simulator.model.workloads.networks.shortcuts import padded_shortcut
from tests.support.jobs import planned
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from traces.errors import Code, UnknownNameError

#: What a pretrained-weights page or the paper prints. The Transformer's 65 million is rounded, and counts its vocabulary as about 37,000.
PUBLISHED = {
    "lenet5": 61_706,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnext50_32x4d": 25_028_904,
    "resnext101_32x4d": 44_177_704,
    "resnet20": 269_722,  # 0.27, 0.85 and 1.7 million, as He et al. print those of CIFAR
    "resnet56": 853_018,
    "resnet110": 1_727_962,
    "mobilenet_v2": 3_504_872,
    "vgg11": 132_863_336,
    "vgg11_pruned": 9_750_922,  # 9,220,480 in convolutions, the rest in 512-512-512-10
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "vgg19_bn": 143_678_248,
    "alexnet": 61_100_840,
    "alexnet_grouped": 60_965_224,  # both as Caffe's model zoo has them
    "caffenet": 60_965_224,
    "alexnet_cifar": 23_272_266,  # 88.8 MiB; 88.87 in the paper on pipelined training with stale weights
    "vgg16_cifar": 15_245_130,  # 58.16 MiB, as that paper prints
    "densenet121": 7_978_856,
    "densenet161": 28_681_000,
    "densenet201": 20_013_928,
    "googlenet": 6_624_904,
    "inception_v3": 27_161_264,
    "inception_v3_no_aux": 23_834_568,
    "bert_base": 109_514_298,  # without the pooler, which these heads do not use
    "bert_large": 335_174_458,
    "bert_base_qa": 108_893_186,
    "bert_large_qa": 334_094_338,
    "gpt2": 124_439_808,
    "gpt2_large": 774_030_080,
}


def loss_of(module, inputs, target, loss=F.cross_entropy):
    """The scalar that a built job minimises."""
    return loss(module(*inputs), target)


def test_every_published_model_is_there():
    assert set(PUBLISHED) | {"transformer_base"} <= set(workloads.names())
    for name, parameters in PUBLISHED.items():
        assert workloads.get(name).parameters == parameters


#: The size at which every model is built with a backward pass.
SIZE = 64
#: All but the language models of `language_models`, which have tests of their own.
NAMES = [name for name in workloads.names() if name not in NAMED]


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_builds_under_fake_tensors_and_gives_every_parameter_a_gradient(name):
    model = workloads.get(name)
    with FakeTensorMode():
        built = model.build(2, max(SIZE, model.least_size))
        module, inputs, target, *_ = built
        parameters = list(module.parameters())
        gradients = torch.autograd.grad(loss_of(*built), parameters)
    assert sum(p.numel() for p in parameters) == model.parameters
    assert [g.shape for g in gradients] == [p.shape for p in parameters]
    assert module.training
    assert all(t.shape[0] == 2 for t in (*inputs, target))
    assert model.about


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [name for name in workloads.names() if workloads.get(name).least_size > 1])
def test_the_least_size_is_the_least_that_runs(name):
    least = workloads.get(name).least_size
    with refuses(Code.REQUEST, f"--image-size is {least - 1}; {name} takes {least} or more"):
        find_factory(name, least - 1)
    with FakeTensorMode():
        module, inputs, *_ = workloads.get(name).build(2, least)
        assert len(module(*inputs)) == 2
        with pytest.raises(RuntimeError, match=r"too small|Kernel size can't be greater"):
            module(*(x[:, :, 1:, 1:] for x in inputs))


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_sizes_of_small_images_and_by_default(name):
    """Those that no test above has built already."""
    model = workloads.get(name)
    with FakeTensorMode():
        for size in {max(32, model.least_size), model.image_size} - {max(SIZE, model.least_size)}:
            assert loss_of(*model.build(2, size)).shape == ()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "n"), [("resnet20", 3), ("resnet56", 9), ("resnet110", 18), ("resnet224", 37), ("resnet362", 60)])
def test_resnets_for_small_images_have_six_n_plus_two_layers(name, n):
    """A stem, 2n convolutions in each of three groups and a linear layer; shortcuts have no parameters."""
    with FakeTensorMode():
        module, inputs, _ = workloads.get(name).build(2, 32)
        maps = {group: dict(module.named_children())[group] for group in ("layer1", "layer2", "layer3")}
        shapes, x = [], module.relu(module.bn1(module.conv1(*inputs)))
        for group in maps.values():
            x = group(x)
            shapes.append(tuple(x.shape[1:]))
    layers = [m for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 6 * n + 2 == int(name.removeprefix("resnet"))
    assert shapes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]
    convolutions = 3 * 16 + 16 * 16 * 2 * n + 16 * 32 + 32 * 32 * (2 * n - 1) + 32 * 64 + 64 * 64 * (2 * n - 1)
    norms = 2 * (16 + 2 * n * (16 + 32 + 64))
    assert workloads.get(name).parameters == 9 * convolutions + norms + 64 * 10 + 10


def test_a_shortcut_that_changes_the_shape_takes_every_second_pixel_between_channels_of_zeros():
    shortcut = padded_shortcut(16, 32, 2)
    x = torch.rand(2, 16, 8, 8)
    out = shortcut(x)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()


@pytest.mark.parametrize("name", ["lenet5", "resnet18", "resnet20"])
def test_trains_in_float64(name):
    torch.manual_seed(0)
    module, (images,), labels = workloads.get(name).build(4, 32)
    module.double()
    loss = loss_of(module, (images.double(),), labels)
    loss.backward()
    assert loss.dtype == torch.float64
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in module.parameters())


def test_the_transformer_does_not_look_ahead():
    torch.manual_seed(0)
    module = Transformer(vocabulary=50, length=8, width=16, heads=2, hidden=32, depth=2).double().eval()
    source, target = torch.randint(50, (1, 8)), torch.randint(50, (1, 8))
    changed = target.clone()
    changed[0, 5] = (target[0, 5] + 1) % 50
    before, after = module(source, target), module(source, changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


@pytest.mark.thorough
def test_torchvision_module_paths():
    with FakeTensorMode():
        paths = {name: dict(workloads.get(name).build(2, 75)[0].named_modules()) for name in PUBLISHED}
    assert "layer1.0.conv1" in paths["resnet50"]
    assert "layer4.2.downsample" not in paths["resnet50"]
    assert "features.17.conv.1.0" in paths["mobilenet_v2"]
    assert "features.denseblock4.denselayer32.conv2" in paths["densenet201"]
    assert "classifier.6" in paths["vgg16"]
    assert "classifier.1" in paths["alexnet"]
    assert "inception4e.branch3.1.conv" in paths["googlenet"]
    assert "Mixed_7b.branch3x3dbl_3b.conv" in paths["inception_v3"]
    assert "AuxLogits.conv1.bn" in paths["inception_v3"]
    assert not any(path.startswith("AuxLogits.") for path in paths["inception_v3_no_aux"])


def test_two_towers_meet_where_the_paper_says():
    with FakeTensorMode():
        layers = {name: list(workloads.get(name).build(2, 224)[0].features) for name in ("alexnet_grouped", "caffenet")}
    for found in layers.values():
        assert [m.groups for m in found if isinstance(m, nn.Conv2d)] == [1, 2, 1, 2, 2]
    order = {name: [type(m) for m in found if not isinstance(m, nn.Conv2d | nn.ReLU)] for name, found in layers.items()}
    pool, norm = nn.MaxPool2d, nn.LocalResponseNorm
    assert order == {"alexnet_grouped": [norm, pool, norm, pool, pool], "caffenet": [pool, norm, pool, norm, pool]}


@pytest.mark.parametrize(("pool_first", "k", "alpha"), [(False, 2.0, 1e-4), (True, 1.0, 1e-4 / 5)], ids=["paper", "caffe"])
def test_local_response_normalisation_is_the_formula_of_the_paper(pool_first, k, alpha):
    norm = next(m for m in TwoTowerAlexNet(64, pool_first, hidden=4).features if isinstance(m, nn.LocalResponseNorm))
    torch.manual_seed(0)
    x = 30 * torch.randn(2, 9, 3, 3, dtype=torch.float64)
    squares = torch.stack([x[:, max(0, i - 2) : i + 3].square().sum(1) for i in range(9)], 1)
    torch.testing.assert_close(norm(x), x / (k + alpha * squares) ** 0.75, rtol=1e-12, atol=0)


FEW_CLASSES = """
import torch
from simulator.model.workloads.networks.branches import GoogLeNet
from simulator.model.workloads.networks.chains import TwoTowerAlexNet
from simulator.model.workloads.networks.shortcuts import SmallResNet


def classification(module, batch, size):
    return module, torch.randn(batch, 3, size, size), torch.randint(10, (batch,))


def googlenet(batch):
    return classification(GoogLeNet(classes=10), batch, 32)


def small(batch):
    return classification(SmallResNet(1), batch, 16)


def paper(batch):
    return classification(TwoTowerAlexNet(64, hidden=16, classes=10), batch, 64)


def caffe(batch):
    return classification(TwoTowerAlexNet(32, pool_first=True, hidden=16, classes=10), batch, 32)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["baseline", "backward-fusion"])
@pytest.mark.parametrize("factory", ["googlenet", "small", "paper", "caffe"])
def test_branches_and_grouped_convolutions_train_as_in_plain_pytorch(factory, strategy, tmp_path, two_cores, backend):
    (tmp_path / "few_classes.py").write_text(FEW_CLASSES)
    job = Job(f"{tmp_path / 'few_classes.py'}:{factory}", 2, precision="fp64")
    assert largest_error(job, planned(strategy, job, two_cores), backend) <= 1e-10


def test_an_unknown_model_is_refused_by_name():
    with pytest.raises(UnknownNameError, match=r"unknown model 'alexnett'.*did you mean 'alexnet'"):
        workloads.get("alexnett")


def test_no_two_models_have_one_name():
    assert len(workloads.names()) == len(workloads.MODELS)


# The data sets of built-in models: batches by iteration, epochs of all samples, and samples that a class can be told from.


#: (model, image size) and a batch's shapes and classes.
SETS = {
    ("rnn_bitstream", 12): ((6, 12, 1), 10), ("gru_features", 20): ((6, 20, 38), 11), ("lenet5", 32): ((6, 1, 32, 32), 10),
    ("vgg11", 32): ((6, 3, 32, 32), 10), ("resnet20", 32): ((6, 3, 32, 32), 10), ("alexnet_cifar", 32): ((6, 3, 32, 32), 10),
    ("vgg16_cifar", 32): ((6, 3, 32, 32), 10),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("job", SETS, ids=lambda job: job[0])
def test_a_batch_looks_like_the_one_the_model_was_built_with(job):
    shape, classes = SETS[job]
    made = Job(job[0], 6, job[1])
    built, ((inputs,), target) = made.build(), made.data()[0]
    assert inputs.shape == built.inputs[0].shape == shape
    assert inputs.dtype == built.inputs[0].dtype
    assert (target.shape, target.dtype) == (built.target.shape, built.target.dtype)
    labels = torch.cat([made.data()[i][1] for i in range(40)])
    assert labels.unique().tolist() == list(range(classes))


@pytest.mark.parametrize("job", SETS, ids=lambda job: job[0])
def test_a_batch_depends_on_seed_and_iteration_alone(job):
    data = Job(job[0], 6, job[1], seed=1).data()
    again = Job(job[0], 6, job[1], seed=1).data()
    other = Job(job[0], 6, job[1], seed=2).data()
    last = data[3]
    assert torch.equal(last[0][0], again[3][0][0])
    assert torch.equal(last[1], again[3][1])
    assert not torch.equal(last[0][0], data[4][0][0])
    assert not torch.equal(last[0][0], other[3][0][0])


@pytest.mark.parametrize(("precision", "dtype"), [("fp64", torch.float64), ("bf16", torch.bfloat16)])
def test_batches_are_in_the_jobs_precision_and_layout(precision, dtype):
    (images,), labels = Job("lenet5", 4, precision=precision, layout="nhwc").data()[0]
    assert images.dtype == dtype
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64


@pytest.mark.parametrize("job", SETS, ids=lambda job: job[0])
def test_held_out_samples_are_in_no_batch(job):
    data = Job(job[0], 50, job[1]).data()
    trained = {int(number) for iteration in range(-(-data.samples // 50)) for number in data.numbers(iteration)}
    assert trained == set(range(data.samples))
    held_out = range(data.samples, data.samples + data.held_out)
    parts = list(data.parts(held_out[:120], 50))
    assert [len(target) for _, target in parts] == [50, 50, 20]
    assert parts[0][0][0].shape[1:] == data[0][0][0].shape[1:]
    assert len(torch.cat([target for _, target in parts]).unique()) == SETS[job][1]


def test_the_same_digits_are_held_out_for_every_seed():
    first, other = (Job("lenet5", 50, 16, seed=seed).data() for seed in (0, 1))
    assert (first.samples, first.held_out) == (1438, 359)
    held_out = range(first.samples, first.samples + 50)
    ((((a,), _),), (((b,), _),)) = (list(data.parts(held_out, 50)) for data in (first, other))
    assert torch.equal(a, b)


def test_a_model_without_a_data_set_has_none():
    assert Job("resnet18", 2).data() is None


def numbers_of(numbers: np.ndarray) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Samples that are their numbers."""
    return (torch.from_numpy(numbers),), torch.from_numpy(numbers)


def test_every_epoch_has_every_sample_once_in_an_order_of_its_own():
    data = Batches("numbers", samples=10, batch=4, seed=0, make=numbers_of)
    seen = torch.cat([data[i][1] for i in range(5)]).tolist()  # the third batch ends one epoch and begins the next
    first, second = seen[:10], seen[10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_a_batch_may_be_larger_than_the_data_set():
    data = Batches("numbers", samples=3, batch=7, seed=0, make=numbers_of)
    assert sorted(data.numbers(0).tolist()) in ([0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2, 2])
    with pytest.raises(IndexError, match="iteration is -1"):
        data[-1]


def test_bits_of_class_c_are_1_with_probability_a_twentieth_plus_a_tenth_of_c():
    (bits,), labels = workloads.get("rnn_bitstream").data(400, 100, 0)[0]
    assert bits.unique().tolist() == [0.0, 1.0]
    for label in range(10):
        assert bits[labels == label].mean().item() == pytest.approx(0.05 + 0.1 * label, abs=0.04)


def test_clips_of_a_class_have_its_means():
    """The nearest class mean, learnt from one batch, tells the clips of another apart."""
    data = workloads.get("gru_features").data(300, 30, 0)
    (seen,), known = data[0]
    (new,), wanted = data[1]
    centres = torch.stack([seen[known == label].mean((0, 1)) for label in range(11)])
    found = torch.cdist(new.mean(1), centres).argmin(1)
    assert (found == wanted).float().mean() > 0.9
    assert seen.std().item() == pytest.approx(1.2, abs=0.15)


def test_digits_are_enlarged_alike_in_every_channel():
    (images,), labels = workloads.get("vgg11").data(5, 40, 0)[0]
    (grey,), same = workloads.get("lenet5").data(5, 40, 0)[0]
    assert images.shape == (5, 3, 40, 40)
    assert torch.equal(labels, same)
    assert all(torch.equal(images[:, channel], grey[:, 0]) for channel in range(3))


def test_cluttered_digits_are_made_from_their_numbers():
    data, other = cluttered_digits(3, 8, 16, 0), cluttered_digits(3, 8, 16, 1)
    (images,), labels = data.make(np.arange(5, 9))
    (same,), _ = other.make(np.array([2, 7]))
    assert torch.equal(images[2], same[1])
    assert images.shape == (4, 3, 16, 16)
    pictures = digits(1, 8, 16, 0)
    assert torch.equal(labels, pictures.make(np.arange(5, 9))[1])
    (again,), of_the_same = data.make(np.arange(5, 9) + pictures.samples)
    assert torch.equal(of_the_same, labels)
    assert not torch.equal(again, images)  # the picture is elsewhere, in another color


def test_held_out_cluttered_digits_are_held_out_pictures():
    data, pictures = cluttered_digits(1, 8, 16, 0), digits(1, 8, 16, 0)
    assert data.samples % pictures.samples == data.held_out % pictures.held_out == 0
    assert torch.equal(data.make(data.samples + np.arange(20))[1], pictures.make(pictures.samples + np.arange(20))[1])
