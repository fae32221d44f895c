"""Ranks as a launcher such as torchrun states them in environment variables."""

import pytest

from executors.distributed.ranks import Ranks, launched
from traces.errors import StepcastError


def test_the_launcher_sets_rank_and_world():
    environment = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert launched(environment) == Ranks(3, 4, 1, 2)
    assert not launched(environment).one_node
    assert launched({}) is None
    assert launched({"RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [({"LOCAL_RANK": None}, "LOCAL_RANK is not set"), ({"RANK": "one"}, "expected whole numbers"), ({"RANK": "4"}, "which cannot be")],
)
def test_impossible_variables_are_refused(change, message):
    environment = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"} | change
    with pytest.raises(StepcastError, match=message):
        launched({name: value for name, value in environment.items() if value is not None})
