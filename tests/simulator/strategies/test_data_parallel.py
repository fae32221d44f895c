"""Data parallelism: golden issue orders, the bytes that move, and the numbers of plain PyTorch."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from calibrate.numerics import Expected, compare
from executors.cpu.backend import CpuBackend
from simulator.engine.memory.over_time import carried_bytes
from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.task import COLLECTIVE, TRANSFER, UPDATE
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from tests.support import mlp
from tests.support.applicable import core_groups
from tests.support.jobs import MLP, mlp_plan, planned
from tests.support.places import USER_MODELS
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from traces.errors import Code

MODELS = USER_MODELS
LIMIT = 1e-10


#: The plan of a strategy for 8 samples.
of_8_samples = partial(mlp_plan, batch=8)


@pytest.fixture(scope="module")
def two_groups():
    machine = core_groups()
    return machine, CpuBackend(machine)


def names(plan) -> list[str]:
    return [f"{task.name} {task.device[-1]}/{task.stream}" for task in plan.tasks]


def test_gradients_are_reduced_while_backward_runs():
    """With one bucket per gradient, the last layer's sums are issued before the first layer's backward."""
    order = names(of_8_samples("data-parallel:bucket=0,fetch=off", core_groups()))
    backward = order.index("0/mm.dW 0/0")
    assert order.index("reduce 0/0/cpu:1>cpu:0 0/1") < order.index("reduce 1/1/cpu:0>cpu:1 1/1") < backward
    assert order[-2:] == ["update 0/0", "update@cpu:1 1/0"]


def test_without_overlap_gradients_are_reduced_after_backward_on_the_compute_lane():
    plan = of_8_samples("data-parallel:overlap=off", core_groups())
    phases = [task.phase for task in plan.tasks]
    assert phases.index(COLLECTIVE) > max(i for i, phase in enumerate(phases) if phase == "backward")
    assert {task.stream for task in plan.tasks} == {0}


def test_one_bucket_holds_all_small_gradients_and_every_gradient_can_have_its_own_bucket():
    sums = {}
    for bucket in (25, 0):
        plan = of_8_samples(f"data-parallel:bucket={bucket}", core_groups())
        sums[bucket] = {task.name.partition("/")[0] for task in plan.tasks if task.phase == COLLECTIVE}
    assert sums[25] == {"reduce 0"}
    assert sums[0] == {f"reduce {i}" for i in range(4)}


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("bucket", [0, 25])
@pytest.mark.parametrize("devices", [2, 4])
def test_bytes_moved_are_those_of_the_algorithm(devices, bucket, algorithm):
    """In total 2 (n − 1) times the gradients, whatever the buckets."""
    plan = of_8_samples(f"data-parallel:bucket={bucket},algorithm={algorithm}", core_groups(devices))
    gradients = sum(operand.bytes for operand in plan.gradients.values())
    moved = sum(operand.bytes for task in plan.tasks if task.phase == COLLECTIVE for operand in task.reads)
    assert moved == 2 * (devices - 1) * gradients


def test_a_parameter_server_at_the_host_receives_and_sends_all_gradients_of_every_device():
    plan = of_8_samples("data-parallel:server=host", core_groups())
    gradients = sum(operand.bytes for operand in plan.gradients.values())
    to_host = [task for task in plan.tasks if task.phase == COLLECTIVE and task.body.target == HOST]
    assert sum(o.bytes for task in to_host for o in task.reads) == 2 * gradients
    assert [task.body.add for task in to_host] == [False, True]


def test_the_first_device_as_the_server_receives_all_other_gradients_and_sends_the_sum_back():
    plan = of_8_samples("data-parallel:server=first,overlap=off", core_groups(4))
    ends = [(task.body.source, task.body.target, task.body.add) for task in plan.tasks if task.phase == COLLECTIVE]
    first, *others = (device.name for device in core_groups(4).devices)
    assert ends == [*((other, first, True) for other in others), *((first, other, False) for other in others)]


def test_each_device_fetches_its_shard_of_the_batch():
    plan = of_8_samples("data-parallel", core_groups())
    fetched = [task for task in plan.tasks if task.phase == TRANSFER]
    assert [(task.name, task.device) for task in fetched] == [
        ("fetch input:0", "cpu:0"), ("fetch input:0@1", "cpu:1"), ("fetch target:0", "cpu:0"), ("fetch target:0@1", "cpu:1"),
    ]  # fmt: skip
    views = [plan.values[task.reads[0].value].source.views[0].args for task in fetched]
    assert views == ["[0, 0, 4]", "[0, 4, 8]"] * 2
    assert {plan.values[task.reads[0].value].device for task in fetched} == {HOST}


def test_a_delayed_update_follows_its_reduction_and_precedes_its_layer():
    plan = of_8_samples("data-parallel:update=forward-fusion,fetch=off", core_groups())
    updates = [task for task in plan.tasks if task.phase == UPDATE]
    assert {task.lag for task in updates} == {1}
    assert names(plan)[:4] == ["0/update 0/0", "0/addmm 0/0", "0/update@cpu:1 1/0", "0/addmm@1 1/0"]


def test_early_updates_have_a_separate_stream_so_that_backward_continues():
    plan = of_8_samples("data-parallel:update=backward-fusion,bucket=0", core_groups())
    updates = [task for task in plan.tasks if task.phase == UPDATE]
    assert {task.stream for task in updates}.isdisjoint({task.stream for task in plan.tasks if task.phase != UPDATE})
    assert names(plan).index("2/update 0/5") < names(plan).index("0/mm.dW 0/0")


def test_gradients_of_the_first_layer_are_transferred_most_urgently():
    plan = of_8_samples("data-parallel:bucket=0,priorities=on", core_groups())
    first, last = ({t.priority for t in plan.tasks if t.phase == COLLECTIVE and any(o.value == name for o in t.mutates)}
                   for name in (plan.gradients["0.weight"].value, plan.gradients["2.weight"].value))  # fmt: skip
    assert max(first) < min(last) < 0
    assert len({task.stream for task in plan.tasks if task.phase == COLLECTIVE}) == 2


@cache
def plain_pytorch(path: Path):
    """A job, its model, and what plain PyTorch computes from two halves of its batch."""
    job = Job(f"{path}:make", 4, precision="fp64", optimizer="adam")
    built = job.build()
    return job, built, Expected.of(job, built, trained=[(2, (), (), (0,))])


@pytest.mark.sampled(9)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "options",
    ["", "overlap=off", "bucket=0", "update=forward-fusion", "update=backward-fusion,bucket=0", "update=backward-fusion,overlap=off",
     "algorithm=tree", "server=distributed,bucket=0.001", "server=host", "server=first,overlap=off", "priorities=on,bucket=0,fetch=off"],
)  # fmt: skip
def test_five_steps_equal_plain_pytorch(options, path, two_groups):
    """In float64, for models with batch-norm, shared weights, attention and frozen parameters; one microbatch per device."""
    machine, backend = two_groups
    job, built, expected = plain_pytorch(path)
    numerics = compare(job, built, planned(f"data-parallel:{options}", job, machine), backend, expected)
    assert max(numerics.max_grad_error, numerics.max_param_error) <= LIMIT


def test_with_microbatches_clipping_and_dropout(two_groups):
    machine, backend = two_groups
    for options, fields in (
        ("", {"clip_norm": 0.05}),
        ("bucket=0,update=forward-fusion", {"clip_norm": 0.05}),
        ("update=backward-fusion", {}),
        ("update=asynchronous", {"clip_norm": 0.05}),
    ):
        job = Job(f"{mlp.__file__}:dropout", 8, precision="fp64", accumulate=2, **fields)
        plan = planned(f"data-parallel:{options}", job, machine)
        assert len(plan.losses) == 4
        assert largest_error(job, plan, backend) <= LIMIT, options


@pytest.mark.thorough
@pytest.mark.parametrize("options", ["bucket=0", "overlap=off", "priorities=on,bucket=0,algorithm=tree"])
def test_asynchronous_updates_lack_one_update(options, two_groups):
    """Batch-norm, shared weights, attention and frozen parameters, with weights that lack one update; sums never hold up computation."""
    machine, backend = two_groups
    for path in MODELS:
        job = Job(f"{path}:make", 4, precision="fp64", optimizer="adam")
        plan = planned(f"data-parallel:update=asynchronous,{options}", job, machine)
        assert plan.semantics["staleness"] == 1
        assert all(task.stream for task in plan.tasks if task.phase == COLLECTIVE)
        assert largest_error(job, plan, backend) <= LIMIT, path.stem


TURBODL = "data-parallel:streams=turbodl,bucket=0,priorities=on"


def test_each_replica_computes_on_turbodls_streams():
    """The urgent path stays on stream 0. dW and dB, and each layer's update, are beside the transfers, on lanes of one priority each."""
    machine = load_machine("p100x4")
    plan = planned(TURBODL, Job("lenet5", 8), machine)
    own = [task for task in plan.tasks if task.device == "cuda:1" and task.phase != COLLECTIVE]
    transfers = {task.stream for task in plan.tasks if task.phase == COLLECTIVE}
    by_role = {role: {task.stream for task in own if task.name.partition("@")[0].endswith(f".{role}")} for role in ("dX", "dW", "dB")}
    first = next(task for task in own if task.phase == "forward")
    assert by_role["dX"] == {first.stream} == {0}
    assert not (by_role["dW"] | by_role["dB"]) & transfers
    assert 0 in by_role["dW"], "the first layer's are urgent: the next iteration waits for them at once"
    updates = [task for task in own if task.phase == UPDATE]
    assert [task.layer for task in updates] == ["features.0", "features.3", "classifier.0", "classifier.2", "classifier.4"], (
        "in the order of the next forward, which waits layer by layer"
    )
    lanes = {}
    for task in plan.tasks:
        lanes.setdefault(task.lane, set()).add(task.priority)
    assert all(len(priorities) == 1 for priorities in lanes.values()), "a CUDA stream has one priority"


@pytest.mark.thorough
@pytest.mark.parametrize("options", ["", ",overlap=off", ",update=forward-fusion", ",update=backward-fusion", ",update=asynchronous"])
def test_on_turbodls_streams_the_numbers_are_the_same(options, two_groups):
    machine, backend = two_groups
    for path in MODELS:
        job = Job(f"{path}:make", 4, precision="fp64", optimizer="adam", accumulate=1)
        assert largest_error(job, planned(f"data-parallel:streams=turbodl{options}", job, machine), backend) <= LIMIT, path.stem


def test_over_links_at_a_stated_rate_the_numbers_are_the_same():
    machine = core_groups(link_bytes_per_s=1e6)
    backend = CpuBackend(machine)
    job = Job(MLP, 8, precision="fp64")
    for options in ("", "server=host", "update=backward-fusion,bucket=0"):
        assert largest_error(job, planned(f"data-parallel:{options}", job, machine), backend) <= LIMIT, options


def test_every_replica_has_all_carried_storages():
    plan = of_8_samples("data-parallel", core_groups(), optimizer="adam")
    alone = of_8_samples("baseline", core_groups(), optimizer="adam")
    assert set(carried_bytes(plan).values()) == set(carried_bytes(alone).values())


def test_refusals():
    with refuses(Code.DEVICES, r"needs at least 2 devices, there is 1; (use --devices 2|split the GPU with --partition 2)"):
        of_8_samples("data-parallel", core_groups(1))
    with refuses(Code.BATCH, "--batch 8 does not divide into 3 devices; choose a multiple of 3"):
        of_8_samples("data-parallel", core_groups(3))
    with refuses(Code.MODEL):
        of_8_samples("data-parallel:update=backward-fusion", core_groups(), clip_norm=1.0)
    with refuses(Code.REQUEST):
        of_8_samples("data-parallel:bucket=-1", core_groups())


def test_with_a_collective_library_each_sum_is_one_task():
    machine = load_machine("p100x4")
    plan = of_8_samples("data-parallel:bucket=0", machine)
    sums = [task for task in plan.tasks if task.body.kind == "collective"]
    assert [len(task.mutates) for task in sums] == [4] * 4
    assert {task.body.devices for task in sums} == {tuple(f"cuda:{i}" for i in range(4))}


@pytest.mark.parametrize("fold", ["on", "off"])
def test_a_plan_says_of_what_batch_norm_takes_statistics_whether_or_not_one_device_stands_for_all(fold):
    plan = planned(f"data-parallel:fold={fold}", Job(f"{mlp.__file__}:normalised", 4), load_machine("2xh100"))
    assert ("folded" in plan.semantics) == (fold == "on")
    assert plan.semantics["batch_norm"] == "statistics per device and microbatch"


class FixedCosts:
    """Every backward product takes a second; other ops take no time, and copies only their time on the link."""

    def resolve(self, plan):
        from simulator.engine.costs.cost import Cost

        seconds = [1.0 if task.phase == "backward" and "mm" in task.name else 0.0 for task in plan.tasks]
        return [Cost("stated", s, s) for s in seconds]


def test_overlap_hides_all_but_the_last_reduction():
    """Two layers of 20 and 15 weights: the second's gradients are transferred while the first's are computed."""
    step_s = {}
    for overlap in ("on", "off"):
        machine = replace(core_groups(link_bytes_per_s=40.0), devices=tuple(replace(d, wake_s=0.0) for d in core_groups().devices))
        plan = of_8_samples(f"data-parallel:bucket=0,fetch=off,overlap={overlap}", machine)
        timeline = simulate(plan, machine, FixedCosts().resolve(plan), iterations=1)
        step_s[overlap] = timeline.step_s
    assert step_s == {
        "on": pytest.approx(6.9),
        "off": pytest.approx(7.9),
    }  # a second of the first layer's dW hides a second of transfers


def test_a_forecast_of_four_p100():
    """By data sheets, four GPUs are faster than one, but less than four times as fast."""
    from simulator.engine.costs.model import CostModel

    machine = load_machine("p100x4")
    job = Job("resnet18", 128)
    forecasts = {}
    for text in ("baseline", "data-parallel"):
        forecasts[text] = forecast(planned(text, job, machine), Target.of(CostModel(machine)))
    speedup = forecasts["baseline"].timeline.step_s / forecasts["data-parallel"].timeline.step_s
    assert 1.5 < speedup < 4.0
