"""Input regions by brute force: which elements of the input have a gradient, if all weights are one?"""

import json
import random

import pytest
import torch
from torch import nn

from executors.binding import apply_views
from simulator.model.job import Job
from simulator.plan.task import Operand, ViewStep
from simulator.plan.views import NotABoxError
from simulator.strategies.sharding.boxes import behind_views, overlap, parts, shape_of, whole
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.network import Network

# The boxes behind views: the elements that torch's own views show.


VIEWS = {
    "a flattened image": ((4, 6, 2, 2), [("view", [[4, 24]])]),
    "a sequence as rows": ((4, 3, 8), [("view", [[12, 8]])]),
    "rows as a sequence": ((12, 8), [("view", [[4, 3, 8]])]),
    "heads": ((4, 3, 8), [("view", [[4, 3, 2, 4]]), ("transpose", [1, 2])]),
    "a transposed matrix": ((4, 6), [("t", [])]),
    "permuted": ((2, 4, 6), [("permute", [[2, 0, 1]])]),
    "channels cut out": ((4, 8, 2), [("slice", [1, 2, 6])]),
    "every second row": ((4, 9, 2), [("slice", [1, 0, 9223372036854775807, 2])]),
    "expanded": ((4, 1, 2), [("unsqueeze", [0]), ("expand", [[3, 4, 6, 2]])]),
    "trailing ones": ((4, 8, 1, 1), [("view", [[4, 8]])]),
}
OVERLOADS = {"slice": "Tensor", "transpose": "int"}


def viewed(shape, steps):
    """An operand with the view steps, and the tensor that it views: its elements are numbered."""
    views = tuple(ViewStep(f"aten.{name}.{OVERLOADS.get(name, 'default')}", json.dumps(arguments)) for name, arguments in steps)
    tensor = torch.arange(torch.Size(shape).numel()).view(shape)
    seen = apply_views(tensor, Operand("x", (), (), "int64", views))
    return Operand("x", tuple(seen.shape), seen.stride(), "int64", views), tensor, seen


def cut(tensor, box):
    return tensor[tuple(slice(*part) for part in box)]


@pytest.mark.parametrize("name", VIEWS)
def test_behind_a_box_of_a_view_lies_the_box_with_its_elements(name):
    shape, steps = VIEWS[name]
    operand, tensor, seen = viewed(shape, steps)
    tried = 0
    for dim, extent in enumerate(seen.shape):
        for degree in (d for d in range(1, extent + 1) if extent % d == 0):
            for box in parts(operand.shape, tuple(degree if d == dim else 1 for d in range(seen.dim()))):
                try:
                    behind, local = behind_views(operand, shape, box)
                except NotABoxError:
                    continue
                again = apply_views(cut(tensor, behind).contiguous(), Operand("x", shape_of(box), (), "int64", local))
                assert torch.equal(again, cut(seen, box)), (box, behind)
                tried += 1
    assert tried > seen.dim()


def test_features_of_a_flattened_image_are_no_box_of_it_unless_they_are_whole_channels():
    operand, _, _ = viewed(*VIEWS["a flattened image"])
    assert behind_views(operand, (4, 6, 2, 2), ((0, 4), (8, 16)))[0] == ((0, 4), (2, 4), (0, 2), (0, 2))
    with pytest.raises(NotABoxError):
        behind_views(operand, (4, 6, 2, 2), ((0, 4), (0, 6)))


FACTORY = """
import torch
from torch import nn
def make(batch_size):
    layer = {layer}
    model = nn.Sequential(nn.Conv2d(3, {channels}, 1), layer, nn.Flatten(), nn.LazyLinear(2))
    x = torch.rand(batch_size, 3, {height}, {width})
    model(x)
    return model, (x,), torch.zeros(batch_size, dtype=torch.long)
"""


def layer_network(tmp_path, layer, channels=4, height=10, width=8, batch=2):
    path = tmp_path / "model.py"
    path.write_text(FACTORY.format(layer=layer, channels=channels, height=height, width=width))
    return Network(Job(f"{path}:make", batch, precision="fp64").graph())


def read_by(layer, inputs, box):
    """The smallest box of the input that the box of the output reads; None if it reads padding alone."""
    x = torch.rand(inputs, dtype=torch.float64, requires_grad=True)
    layer = layer.double()
    for parameter in layer.parameters():
        nn.init.constant_(parameter, 1.0)
    layer(x)[tuple(slice(*part) for part in box)].sum().backward()
    read = x.grad.nonzero()
    return tuple((int(low), int(high) + 1) for low, high in zip(read.min(0).values, read.max(0).values, strict=True)) if len(read) else None


def random_layer(draw):
    """The text of a layer, and whether its windows leave no gaps, so that it reads all of its region."""
    kernel, stride = draw.randint(1, 4), draw.randint(1, 3)
    if draw.random() < 0.3:
        return f"nn.AvgPool2d({kernel}, {stride}, {draw.randint(0, kernel // 2)})", stride <= kernel
    padding, dilation, groups = (draw.randint(0, 3), draw.randint(0, 3)), draw.randint(1, 2), draw.choice([1, 2, 4])
    text = f"nn.Conv2d(4, {draw.choice([4, 8])}, {kernel}, {stride}, {padding}, {dilation}, {groups})"
    return text, stride <= kernel and (dilation == 1 or kernel == 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(12))
def test_regions_hold_what_outputs_read_and_no_more(seed, tmp_path):
    text, without_gaps = random_layer(random.Random(seed))
    network = layer_network(tmp_path, text)
    for configuration in network.legal(1, 8):
        for box in network.boxes(1, configuration):
            region = overlap(network.needed(network.layers[1].main, box)[0], whole((2, 4, 10, 8)))
            read = read_by(eval(text), (2, 4, 10, 8), box)
            if read is not None:
                assert overlap(region, read) == read
            assert region == read or not without_gaps


def test_halos_of_ten_rows_with_kernel_2_and_stride_1_over_3_workers(tmp_path):
    network = layer_network(tmp_path, "nn.Conv2d(4, 4, 2, 1)")
    rows = [network.needed(network.layers[1].main, box)[0][2] for box in network.boxes(1, Configuration(h=3))]
    assert rows == [(0, 4), (3, 7), (6, 10)]


def test_padding_lies_beyond_the_input(tmp_path):
    network = layer_network(tmp_path, "nn.Conv2d(4, 4, 3, 1, 1)")
    rows = [network.needed(network.layers[1].main, box)[0][2] for box in network.boxes(1, Configuration(h=2))]
    assert rows == [(-1, 6), (4, 11)]


def test_a_group_of_channels_needs_its_own_inputs_only(tmp_path):
    network = layer_network(tmp_path, "nn.Conv2d(4, 8, 1, groups=2)")
    channels = [network.needed(network.layers[1].main, box)[0][1] for box in network.boxes(1, Configuration(c=4))]
    assert channels == [(0, 2), (0, 2), (2, 4), (2, 4)]
