"""Static pictures are written completely, in the size that a README needs, also for unusual input."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from matplotlib.image import imread

from tests.support.page_samples import skipped, two_lanes, validation
from tests.support.sample_runs import comparisons, sample_validation
from ui.present.memory import memory_picture
from ui.present.timeline_picture import timelines_picture
from ui.present.validations_page import validation_picture


@pytest.fixture(scope="module")
def runs():
    return comparisons()


def test_timelines_as_png_and_svg(tmp_path, runs):
    both = runs[2]
    png = timelines_picture(tmp_path / "t.png", both.predicted, both.measured, title="resnet50, 1f1b")
    image = imread(png)
    assert image.shape[1] == 2400
    assert len({tuple(pixel) for pixel in image[::40, ::40].reshape(-1, image.shape[2])}) > 4, "several colors are drawn"
    svg = timelines_picture(tmp_path / "t.svg", both.predicted, both.measured)
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.png", "t.svg"]


def test_memory_per_device_with_a_limit_that_is_near(tmp_path, runs):
    both = runs[2]
    place = memory_picture(tmp_path / "m.png", both.predicted, both.measured, "resnet50, 1f1b $x_1")
    assert imread(place).shape[1] == 2400
    limit = {tuple(round(255 * part) for part in pixel[:3]) for pixel in imread(place)[:, 1000]}
    assert (0xB0, 0x2A, 0x37) in limit
    far = replace(both.predicted, limits_bytes=dict.fromkeys(both.predicted.limits_bytes, 10**12))
    picture = memory_picture(tmp_path / "far.svg", far)
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_timelines_without_kinds_of_memory_have_no_picture_of_it(tmp_path):
    assert memory_picture(tmp_path / "m.png", two_lanes(), two_lanes("measured")) is None
    assert list(tmp_path.iterdir()) == []


def test_a_prediction_alone_and_names_with_markup(tmp_path):
    assert timelines_picture(tmp_path / "alone.png", two_lanes(), title="$\\frac$ <b> $x_1").stat().st_size > 5000


def test_validation_summary(tmp_path, runs):
    rows = [run.result for run in runs]
    full = validation_picture(tmp_path / "v.png", sample_validation([*rows, skipped()]))
    empty = validation_picture(tmp_path / "e.svg", validation(skipped()))
    assert full.stat().st_size > empty.stat().st_size > 1000
