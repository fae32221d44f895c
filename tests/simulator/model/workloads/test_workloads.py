"""The built-in models: published sizes, small images, fake tensors, and one real step."""

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from calibrate.numerics import Expected, compare
from simulator.model.find import find_factory
from simulator.model.job import Job
from simulator.model.workloads import registry as workloads
from simulator.model.workloads.networks.chains import TwoTowerAlexNet
from simulator.model.workloads.networks.sequences import Transformer
from simulator.model.workloads.networks.shortcuts import padded_shortcut
from tests.support.jobs import planned
from traces.errors import SchedcastError, UnknownNameError

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


@pytest.mark.parametrize("name", workloads.names())
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


@pytest.mark.parametrize("name", [name for name in workloads.names() if workloads.get(name).least_size > 1])
def test_the_least_size_is_the_least_that_runs(name):
    least = workloads.get(name).least_size
    with pytest.raises(SchedcastError, match=f"--image-size is {least - 1}; {name} takes {least} or more"):
        find_factory(name, least - 1)
    with FakeTensorMode():
        module, inputs, *_ = workloads.get(name).build(2, least)
        assert len(module(*inputs)) == 2
        with pytest.raises(RuntimeError, match=r"too small|Kernel size can't be greater"):
            module(*(x[:, :, 1:, 1:] for x in inputs))


@pytest.mark.parametrize("name", workloads.names())
def test_sizes_of_small_images_and_by_default(name):
    """Those that no test above has built already."""
    model = workloads.get(name)
    with FakeTensorMode():
        for size in {max(32, model.least_size), model.image_size} - {max(SIZE, model.least_size)}:
            assert loss_of(*model.build(2, size)).shape == ()


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


@pytest.mark.parametrize("strategy", ["baseline", "backward-fusion"])
@pytest.mark.parametrize("factory", ["googlenet", "small", "paper", "caffe"])
def test_branches_and_grouped_convolutions_train_as_in_plain_pytorch(factory, strategy, tmp_path, two_cores, backend):
    (tmp_path / "few_classes.py").write_text(FEW_CLASSES)
    job = Job(f"{tmp_path / 'few_classes.py'}:{factory}", 2, precision="fp64")
    built = job.build()
    error = compare(job, built, planned(strategy, job, two_cores), backend, Expected.of(job, built))
    assert max(error.max_grad_error, error.max_param_error) <= 1e-10


def test_an_unknown_model_is_refused_by_name():
    with pytest.raises(UnknownNameError, match=r"unknown model 'alexnett'.*did you mean 'alexnet'"):
        workloads.get("alexnett")


def test_no_two_models_have_one_name():
    assert len(workloads.names()) == len(workloads.MODELS)
