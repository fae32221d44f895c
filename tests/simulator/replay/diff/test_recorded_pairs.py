"""Differences of public recordings. A missing folder skips these tests."""

from dataclasses import replace
from math import fsum

import pytest

from simulator.predict.waterfall import COMMUNICATION
from simulator.replay.diff.diff import NOT_REPLAYED, difference
from simulator.replay.diff.run import KERNELS, PYTHON, run_of_replay
from simulator.replay.diff.traces import compare_traces
from simulator.replay.nodes import GAP, short_name
from simulator.replay.replay import simulate_replay
from simulator.replay.whatif.edit import device_work, launches, with_durations
from simulator.replay.whatif.replayed import Replayed, replayed
from tests.support.refusals import refuses
from tests.support.shared_data import shared_folder
from traces.errors import Code

FOLDER = shared_folder("kineto")
pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="no shared/data/kineto beside the repository; SCHEDCAST_SHARED may name another place"
)
RESNET, CNN = "v100_resnet50_bs32_1gpu_oldschema.json.gz", "v100_cnn_1gpu.json.gz"


def terms(diff):
    assert fsum(term.seconds for term in diff.terms) == pytest.approx(diff.difference_s, abs=1e-15)
    return {term.part: term.seconds for term in diff.terms}


def runs(replay, seconds):
    """The recording, with the times that its own replay gives, and as it would have been with other durations of some tasks."""
    pair = (replay, with_durations(replay, seconds))
    simulated = [replace(each, recorded=simulate_replay(each)) for each in pair]
    return [
        run_of_replay(Replayed(each, None, None), name, len(each.steps)) for each, name in zip(simulated, ("beside", "inside"), strict=True)
    ]


def test_resnet50_with_data_loading_in_the_process():
    """Recorded with its data loading beside the process. In the process, it would take 12 ms before the first launch of each step."""
    replay = replayed([FOLDER / RESNET]).replay
    tasks = replay.plan.tasks
    position = {task.name: index for index, task in enumerate(tasks)}
    launch_of = launches(tasks)
    loading = {}
    for step in replay.steps[1:]:  # the first begins with a launch
        gaps = [task for task in tasks[: position[launch_of[step.first_task]]] if task.device == "host" and task.body.label == GAP]
        loading[gaps[-1].name] = gaps[-1].body.duration_s + 12e-3
    diff = difference(*runs(replay, loading), "traces", NOT_REPLAYED)
    parts = terms(diff)
    assert 9e-3 < diff.difference_s < 12.1e-3  # what the GPU still has to do when the loading begins hides some of it
    assert parts[PYTHON] == pytest.approx(diff.difference_s, rel=0.05)
    python = next(term for term in diff.terms if term.part == PYTHON)
    assert python.contributions[0].label == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert python.contributions[0].seconds == pytest.approx(diff.difference_s, rel=0.05)


def test_a_slower_kind_of_kernel_of_a_real_recording():
    """The GPU of this recording is never idle for its host, so that all of it counts."""
    replay = replayed([FOLDER / CNN]).replay
    of_name = {}
    for task in device_work(replay):
        if task.body.category == "kernel":
            of_name.setdefault(short_name(task.body.name), []).append(task)
    name, longest = max(of_name.items(), key=lambda item: sum(task.body.duration_s for task in item[1]))
    diff = difference(*runs(replay, {task.name: 1.3 * task.body.duration_s for task in longest}), "traces", NOT_REPLAYED)
    assert terms(diff)[KERNELS] == pytest.approx(diff.difference_s, rel=0.05)
    kernels = next(term for term in diff.terms if term.part == KERNELS)
    assert fsum(row.seconds for row in kernels.contributions if row.label.startswith(name)) == pytest.approx(diff.difference_s, rel=0.05)


def test_two_ranks_of_one_job_differ_in_how_long_they_wait_for_the_others():
    diff = compare_traces(FOLDER / "v100_dlrm_rank0of8.json.gz", FOLDER / "v100_dlrm_rank1of8.json.gz").diff
    assert terms(diff)[COMMUNICATION] == pytest.approx(diff.difference_s, rel=0.05)
    assert diff.aligned_share > 0.98


@pytest.mark.parametrize("other", [RESNET, "v100_dlrm_rank0of8.json.gz", "h100_vgg13_bs512_adam_one_step.json.gz"])
def test_recordings_of_different_models_are_refused(other):
    with refuses(Code.REQUEST):
        compare_traces(FOLDER / CNN, FOLDER / other)
