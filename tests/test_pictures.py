"""Static pictures: written whole, in the size a README needs, also for odd input."""

import xml.etree.ElementTree as ElementTree

import pytest
from matplotlib.image import imread
from page_samples import skipped, two_lanes, validation
from sample_runs import comparisons, sample_validation

from ui import pictures


@pytest.fixture(scope="module")
def runs():
    return comparisons()


def test_timelines_as_png_and_svg(tmp_path, runs):
    both = runs[2]
    png = pictures.timelines_picture(tmp_path / "t.png", both.predicted, both.measured, title="resnet50, 1f1b")
    image = imread(png)
    assert image.shape[1] == 2400
    assert len({tuple(pixel) for pixel in image[::40, ::40].reshape(-1, image.shape[2])}) > 4, "several colours are drawn"
    svg = pictures.timelines_picture(tmp_path / "t.svg", both.predicted, both.measured)
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.png", "t.svg"]


def test_a_prediction_alone_and_names_with_markup(tmp_path):
    assert pictures.timelines_picture(tmp_path / "alone.png", two_lanes(), title="$\\frac$ <b> $x_1").stat().st_size > 5000


def test_validation_summary(tmp_path, runs):
    rows = [run.result for run in runs]
    full = pictures.validation_picture(tmp_path / "v.png", sample_validation([*rows, skipped()]))
    empty = pictures.validation_picture(tmp_path / "e.svg", validation(skipped()))
    assert full.stat().st_size > empty.stat().st_size > 1000
