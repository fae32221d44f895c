"""The CSV of torch.distributed.pipelining, out and in; files that lie."""

import csv
import gzip

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from simulator.model.job import Job
from simulator.strategies import interleaved_1f1b
from simulator.strategies.pipeline import grid_csv, orders
from simulator.strategies.pipeline.grid_csv import schedule_of
from simulator.strategies.pipeline.schedule import Action, ScheduleError
from tests.support.applicable import core_groups
from tests.support.jobs import MLP, planned
from tests.support.pipelines import OURS
from tests.support.places import SUPPORT
from tests.support.processes import begin, end, require_gloo
from tests.support.refusals import refuses
from tests.support.torch_orders import NAMES, SIZES, as_schedule, runtime, simulated, torch_order
from traces.errors import Code

# The schedule that a plan follows: it is the one that the plan was made of.


ORDERS = {
    "gpipe": orders.gpipe_order(2, 4),
    "1f1b": orders.one_f_one_b_order(2, 4),
    "interleaved-1f1b:per_device=1": interleaved_1f1b.order(2, 4, 1),
}


def in_two_groups(spec: str, model: str = MLP):
    return planned(spec, Job(model, 8), core_groups())


@pytest.mark.parametrize("spec", ORDERS)
def test_every_action_is_found_again(spec):
    assert schedule_of(in_two_groups(spec)) == ORDERS[spec]


@pytest.mark.parametrize("fold", ["on", "off"])
def test_replicas_follow_one_schedule(fold):
    plan = planned(f"1f1b:replicas=2,microbatches=4,fold={fold}", Job(MLP, 8), core_groups(4))
    assert schedule_of(plan) == ORDERS["1f1b"]


@pytest.mark.parametrize("spec", ["gpipe", "1f1b", "interleaved-1f1b:per_device=1", "zero-bubble", "zero-bubble:memory=free"])
def test_torchs_runtime_loads_what_is_written(tmp_path, spec):
    schedule = schedule_of(in_two_groups(spec))
    path = tmp_path / "schedule.csv"
    path.write_text(grid_csv.write(schedule))
    loaded = runtime(schedule)
    loaded._load_csv(str(path), format="compute_only")
    assert simulated(loaded), "torch's own check of sends and receives"


def test_a_first_layer_has_no_gradient_by_its_input_but_a_place_in_the_schedule():
    """What stage 0 computes in its backward is all by its weights; torch's runtime expects both halves."""
    plan = in_two_groups("zero-bubble:microbatches=2,placement=1", f"{SUPPORT / 'mlp.py'}:wide")
    assert "0I0" not in {task.action for task in plan.tasks}
    assert [str(action) for action in schedule_of(plan).ranks[0]] == ["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"]


def test_plans_that_follow_no_schedule():
    with refuses(Code.REQUEST):
        schedule_of(in_two_groups("pipedream"))
    with refuses(Code.REQUEST):
        schedule_of(in_two_groups("baseline"))


# torch's pipeline runtime in two processes: with our schedules' files it computes the gradients of the whole model.


@pytest.mark.thorough
def test_the_gradients_are_those_of_the_whole_model(tmp_path):
    require_gloo()
    paths = [tmp_path / f"{place}.csv" for place in range(len(OURS))]
    for path, order in zip(paths, OURS.values(), strict=True):
        path.write_text(grid_csv.write(order(2, 4)))
    for ended in end(begin(2, ["-m", "tests.support.pipeline_process", *map(str, paths)], tmp_path)):
        assert ended.status == 0, ended.err
        errors = [float(line.split()[1]) for line in ended.out.splitlines() if line.startswith("error ")]  # gloo prints, too
        assert len(errors) == len(OURS)
        assert max(errors) < 1e-12


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (3, 5), (4, 8)])
def test_our_schedules_are_the_same_out_and_in(tmp_path, name, ranks, microbatches):
    order = OURS[name](ranks, microbatches)
    path = tmp_path / "schedule.csv"
    path.write_text(grid_csv.write(order))
    assert grid_csv.read(path) == order
    assert grid_csv.write(grid_csv.read(path)) == path.read_text()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
def test_torchs_dumps_are_the_same_in_and_out(tmp_path, name, ranks, microbatches):
    rows = get_schedule_ops(name, ranks, microbatches)
    dump, ours = tmp_path / "torch.csv", tmp_path / "ours.csv"
    with dump.open("w", newline="") as file:  # as _PipelineScheduleRuntime._dump_csv does
        csv.writer(file).writerows(rows)
    order = grid_csv.read(dump)
    assert order == as_schedule(rows)
    ours.write_text(grid_csv.write(order))
    assert grid_csv.read(ours) == order


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (3, 5), (4, 8)])
def test_torchs_runtime_loads_our_files(tmp_path, name, ranks, microbatches):
    order = OURS[name](ranks, microbatches)
    path = tmp_path / "schedule.csv"
    path.write_text(grid_csv.write(order))
    loaded = runtime(order)
    loaded._load_csv(str(path))
    assert as_schedule(loaded.pipeline_order.values()) == order
    assert loaded.stage_index_to_group_rank == order.rank_of
    assert simulated(loaded)


def test_torchs_runtime_loads_overlapped_pairs(tmp_path):
    order = torch_order("DualPipeV", 2, 4)
    path = tmp_path / "schedule.csv"
    path.write_text(grid_csv.write(order))
    assert order.overlapped
    loaded = runtime(order)
    loaded._load_csv(str(path))
    assert as_schedule(loaded.pipeline_order.values()) == order


def test_cells_are_steps():
    text = grid_csv.write(OURS["1f1b"](2, 2))
    assert text == "0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n"


def test_pairs_take_one_cell(tmp_path):
    path = tmp_path / "schedule.csv"
    path.write_text("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n")
    order = grid_csv.read(path)
    assert order.overlapped == {Action(0, "F", 1)}
    assert grid_csv.write(order) == path.read_text()


@pytest.mark.parametrize("text", ["\ufeff0F0,0B0\n", " 0F0 , 0B0 \r\n", "0F0,0B0", "0F0,,,0B0,,\n\n\n", "0F0,0B0,0REDUCE_GRAD"])
def test_what_spreadsheets_and_torch_add_is_read(tmp_path, text):
    path = tmp_path / "schedule.csv"
    path.write_text(text)
    assert grid_csv.write(grid_csv.read(path)) == "0F0,0B0\n"


def test_a_packed_file_is_read(tmp_path):
    path = tmp_path / "schedule.csv.gz"
    path.write_bytes(gzip.compress(b"0F0,0B0\n"))
    assert grid_csv.read(path).stages == 1


LIES = {
    "garbage": ("0F0,hello", "line 1, cell 2: 'hello' is no action; expected a stage, F, I, W or B, and a microbatch, such as 0F3"),
    "a negative stage": ("0F0,0B0\n-1F0", "line 2, cell 1: '-1F0' is no action"),
    "a negative microbatch": ("0F-1", "line 1, cell 1: '0F-1' is no action"),
    "no microbatch": ("0F", "line 1, cell 1: '0F' is no action"),
    "an endless number": ("0F" + "9" * 5000, "is no action"),
    "another digit": ("0F\u0663", "is no action"),
    "a NUL": ("0F0,\x000B0", r"'\x000B0' is no action"),
    "quotes": ('"0F0","0B0"', "is no action"),
    "sends": ("0F0,0SEND_F0", "line 1, cell 2: '0SEND_F0' is communication; expected a compute-only file"),
    "a pair of forwards": ("(0F0;0F1)OVERLAP_F_B", "overlaps 0F0 and 0F1; expected a forward and a backward"),
    "three in a pair": ("(0F0;0B0;0F1)OVERLAP_F_B", "is no action"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_is_no_schedule_is_refused_in_one_line(tmp_path, lie):
    text, message = LIES[lie]
    path = tmp_path / "schedule.csv"
    path.write_text(text)
    with refuses(Code.FILE) as caught:
        grid_csv.read(path)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no actions"),
        ("\n\n", "has no actions"),
        ("0F0,0B0\n\n1F0,1B0\n", "rank 1 has no actions"),
        ("0F0,0B0\n1F0,1B0\n,,\n2F0,2B0", "rank 2 has no actions"),
        ("0F999999,0B999999", "rank 0 does not run 0F0"),
        ("999999F0,999999B0", "no rank runs stage 0"),
        ("(0F0;0B0)OVERLAP_F_B,0F0", "rank 0 runs 0F0 twice"),
        ("(0F0;0B0)OVERLAP_F_B\n1F0,1B0", "deadlock: rank 0 waits at 0F0 for 1B0, rank 1 waits at 1F0 for 0F0"),
        ("0F0,0B0\n1B0,1F0", "rank 1 runs 1B0 without 1F0 before it"),
    ],
)
def test_a_schedule_that_cannot_run_is_refused_with_the_files_name(tmp_path, text, message):
    path = tmp_path / "schedule.csv"
    path.write_text(text)
    with pytest.raises(ScheduleError) as caught:
        grid_csv.read(path)
    assert str(caught.value).startswith(f"schedule {path}: ")
    assert message in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "schedule.csv"
    path.write_bytes(b"0F0,\xff\xfe")
    with refuses(Code.FILE):
        grid_csv.read(path)


def test_large_files_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "schedule.csv"
    path.write_bytes(b"0F0," * 500_000)
    with refuses(Code.FILE):
        grid_csv.read(path)
    path.write_bytes(gzip.compress(b"," * (1 << 24)))
    with refuses(Code.FILE):
        grid_csv.read(path)


@pytest.mark.parametrize("name", ["missing.csv", "", "a\0b.csv", "/dev/zero"])
def test_paths_that_are_no_files_are_refused(tmp_path, name):
    with refuses(Code.FILE):
        grid_csv.read(tmp_path / name)
