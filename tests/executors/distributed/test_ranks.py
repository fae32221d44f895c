"""Ranks as a launcher such as torchrun states them in environment variables."""

import pytest

from executors.cuda import torch_driver
from executors.distributed.loaded_plans import check_distinct, own_gpu
from executors.distributed.ranks import Ranks, launched
from traces.errors import SchedcastError


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
    with pytest.raises(SchedcastError, match=message):
        launched({name: value for name, value in environment.items() if value is not None})


@pytest.mark.parametrize(
    ("local_rank", "visible", "index"),
    [(0, 4, 0), (3, 4, 3), (0, 1, 0), (3, 1, 0), (2, 0, 2)],
    ids=["torchrun", "torchrun, last", "own GPU only", "own GPU only, last", "no GPU: opening it says why"],
)
def test_the_gpu_of_a_process_under_launchers_of_both_kinds(local_rank, visible, index):
    assert Ranks(local_rank, 4, local_rank, 4).device_index(visible) == index


def test_too_few_gpus_are_refused():
    with pytest.raises(SchedcastError, match="process 3 has local rank 3 and sees 2 GPUs; start at most 2 processes per node"):
        Ranks(3, 4, 3, 4).device_index(2)


def test_the_gpu_is_opened_by_its_visible_number(monkeypatch):
    monkeypatch.setattr(torch_driver, "gpu", lambda index=0: f"GPU {index}")
    monkeypatch.setattr(torch_driver, "visible_gpus", lambda: 1)
    assert own_gpu(Ranks(1, 2, 1, 2)) == "GPU 0"


def test_two_processes_on_one_gpu_are_refused_in_one_line():
    check_distinct(["node GPU-1", "node GPU-2", "other GPU-1", "", ""])
    with pytest.raises(
        SchedcastError, match=r"^processes 1 and 2 have the same GPU \(GPU-2\): start one process per GPU, or split one GPU"
    ):
        check_distinct(["node GPU-1", "node GPU-2", "node GPU-2"])
