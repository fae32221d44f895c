"""The picture of a divided network: where layers are, how they are cut, and that it can be drawn."""

import pytest

from traces.documents.reproduction import DividedLayer, DividedNetwork
from ui.present import reproductions_page as picture
from ui.present.reproductions_page import Place, color_of, divided_cells, division_picture, places_of, words


def layer(name, *inputs, degrees=(1, 1, 1, 1)):
    return DividedLayer(name=name, kind="convolution", shape=(8, 4, 4, 4), degrees=degrees, inputs=inputs)


#: A stem, branches of two layers, of one and of none, and what reads them all.
BRANCHES = (layer("stem"), layer("a1", 0), layer("a2", 1), layer("b", 0), layer("cat", 2, 3, 0), layer("last", 4))


def test_branches_lie_below_each_other_and_no_line_passes_a_layer():
    assert places_of(BRANCHES) == [Place(0, 0, 0), Place(0, 1, 1), Place(0, 2, 1), Place(0, 1, 2), Place(0, 3, 0), Place(0, 4, 0)]


def test_a_long_chain_continues_in_the_next_row(monkeypatch):
    monkeypatch.setattr(picture, "LAYER_COLUMNS", 3)
    chain = [layer("0"), *(layer(str(number), number - 1) for number in range(1, 5))]
    assert places_of(chain) == [Place(0, 0, 0), Place(0, 1, 0), Place(0, 2, 0), Place(1, 0, 0), Place(1, 1, 0)]


@pytest.mark.parametrize("degrees", [(16, 1, 1, 1), (1, 4, 1, 1), (1, 1, 2, 3), (2, 2, 2, 2), (1, 1, 1, 1)])
def test_every_worker_has_a_part_of_equal_size_that_no_other_has(degrees):
    parts = divided_cells(degrees, 12.0, 6.0)
    images, channels, rows, columns = degrees
    assert len(set(parts)) == len(parts) == images * channels * rows * columns
    assert len({(round(width, 9), round(height, 9)) for _, _, width, height in parts}) == 1
    assert all(x >= 0 and x + width <= 12.0 + 1e-9 and y >= 0 and y + height <= 6.0 + 1e-9 for x, y, width, height in parts)


def test_height_and_width_cut_without_a_gap_and_images_with_one():
    left, right = divided_cells((1, 1, 1, 2), 4.0, 2.0)
    assert left[0] + left[2] == right[0]
    first, second = divided_cells((2, 1, 1, 1), 4.0, 2.0)
    assert first[0] + first[2] < second[0]


def test_the_color_is_that_of_the_largest_degree():
    assert color_of((2, 4, 1, 1)) == picture.COLORS["channel"]
    assert color_of((1, 1, 1, 1)) == picture.WHOLE
    assert words((4, 1, 2, 1)) == "n=4 h=2"
    assert words((1, 1, 1, 1)) == "1 worker"


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_it_is_drawn(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(picture, "LAYER_COLUMNS", 2)
    layers = [each.model_copy(update={"degrees": (2, 1, 2, 1)}) for each in BRANCHES]
    path = division_picture(tmp_path / f"network.{kind}", DividedNetwork(name="net", title="A network", layers=tuple(layers)))
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if kind == "png" else b"<?xml")
    if kind == "svg":
        assert b"n=2 h=2" in content or len(content) > 5000
