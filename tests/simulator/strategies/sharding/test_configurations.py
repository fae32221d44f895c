"""Configurations from a file: what they mean, and what is refused in one line."""

import json

import pytest

from simulator.model.job import Job
from simulator.strategies import registry as strategies
from simulator.strategies.sharding.configuration import Configuration
from simulator.strategies.sharding.configurations import SCHEMA, read_configurations
from simulator.strategies.sharding.network import Network
from tests.support.applicable import core_groups
from tests.support.refusals import refuses
from traces.errors import Code, SchedcastError

MACHINE = core_groups(4)


@pytest.fixture(scope="module")
def alexnet():
    return Network(Job("alexnet", 8, image_size=63).graph())


def read(network, folder, layers, **more):
    path = folder / "configurations.json"
    path.write_text(json.dumps({"schema": SCHEMA, "layers": layers, **more}))
    return read_configurations(str(path), network, MACHINE)


def test_layers_by_name_and_a_default_for_the_others(alexnet, tmp_path):
    placed = read(alexnet, tmp_path, {"features.0": {"c": 2, "devices": [3, 1]}}, default={"n": 4})
    by_name = {layer.name: each for layer, each in zip(alexnet.layers, placed, strict=True)}
    assert by_name["features.0"].configuration == Configuration(c=2)
    assert by_name["features.0"].devices == ("cpu:3", "cpu:1")
    assert by_name["classifier.6"].configuration == Configuration(n=4)
    assert by_name["classifier.6"].devices == ("cpu:0", "cpu:1", "cpu:2", "cpu:3")


def test_a_default_that_does_not_fit_a_layer_is_reduced(alexnet, tmp_path):
    placed = read(alexnet, tmp_path, {}, default={"c": 4})
    assert placed[-1].configuration == Configuration()  # the loss
    assert placed[0].configuration == Configuration(c=4)


REFUSED = {
    "an unknown layer": ({"features.1": {"n": 2}}, "unknown layer 'features.1'"),
    "an unknown dimension": ({"features.0": {"d": 2}}, "unusable entry"),
    "a degree of text": ({"features.0": {"n": "2"}}, "unusable entry"),
    "a degree that does not divide": ({"features.0": {"n": 3}}, "cannot be divided into n=3: its degrees are n: 1, 2, 4; c: 1, 2, 4"),
    "a dimension that is whole": ({"loss": {"c": 2}}, "layer loss (8) cannot be divided into c=2: its degrees are n: 1, 2, 4, for"),
    "too many workers": ({"features.0": {"n": 8}}, "h: 1, 3; w: 1, 3, for at most 4 workers"),
    "too few devices": ({"features.0": {"n": 2, "devices": [0]}}, "no place for 2 workers"),
    "one device twice": ({"features.0": {"n": 2, "devices": [1, 1]}}, "no place for 2 workers"),
    "an unknown device": ({"features.0": {"n": 2, "devices": [0, 4]}}, "different numbers from 0 to 3"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, alexnet, tmp_path):
    layers, message = REFUSED[case]
    with pytest.raises(SchedcastError) as refused:
        read(alexnet, tmp_path, layers)
    assert message in str(refused.value)


@pytest.mark.parametrize("name", ["owt", "deepa"])
def test_jobs_that_shards_cannot_run_are_refused(name):
    strategy, options = strategies.parse(name)
    with refuses(Code.DEVICES):
        strategy.plan(Job("lenet5", 4), core_groups(1), None, options)
    with refuses(Code.REQUEST):
        strategy.plan(Job("lenet5", 4, accumulate=2), MACHINE, None, options)
    with refuses(Code.MODEL):
        strategy.plan(Job("lenet5", 4, clip_norm=1.0), MACHINE, None, options)


def test_owt_divides_linear_layers_by_channel_and_all_others_by_image(alexnet):
    from simulator.strategies.owt import configurations

    chosen = {layer.name: each for layer, each in zip(alexnet.layers, configurations(alexnet, 4), strict=True)}
    assert {name for name, each in chosen.items() if each == Configuration(c=4)} == {"classifier.1", "classifier.4", "classifier.6"}
    assert {each for name, each in chosen.items() if not name.startswith("classifier.")} == {Configuration(n=4)}
