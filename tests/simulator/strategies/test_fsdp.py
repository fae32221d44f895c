"""Sharded data parallelism: what is gathered when, the bytes that move and stay, exact small steps, and the numbers of plain PyTorch."""

from dataclasses import replace

import pytest

from executors.cpu.backend import CpuBackend
from simulator.engine.costs.cost import Cost
from simulator.engine.memory.over_time import carried_bytes
from simulator.engine.memory.release import releases
from simulator.engine.simulation import simulate
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.dependencies import Dependencies
from simulator.plan.task import COLLECTIVE, GRADIENT, PARAMETER, UPDATE
from simulator.strategies.fsdp import GATHER, REDUCE, TENSOR
from simulator.strategies.zero.units import unit_of
from tests.support import mlp
from tests.support.applicable import core_groups
from tests.support.folding import check_folded
from tests.support.jobs import MLP, planned
from tests.support.linked_gpus import gpus
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from traces.errors import Code

#: Three layers of one weight each: 20, 20 and 12 numbers.
UNBIASED = f"{mlp.__file__}:unbiased"

THOROUGH = pytest.mark.thorough
#: A decoder of two blocks whose layers four devices divide.
DECODER = Job("lm:form=llama,layers=2,d_model=16,heads=4,ffn=24,vocab=32", 4, image_size=6, precision="fp64", optimizer="adamw")


def test_a_unit_is_a_block_or_what_lies_outside_of_blocks():
    assert [unit_of(path) for path in ("layers.3.attention.query", "h.11.mlp.2", "head", "tokens.table", "0", "")] == [
        "layers.3", "h.11", "head", "tokens", "0", "root",
    ]  # fmt: skip


def test_each_unit_is_gathered_one_ahead_in_both_directions_and_its_gradients_are_scattered_at_once():
    """The last unit is still gathered when backward begins, and nothing in backward reads the first layer's weight."""
    plan = planned("fsdp:fold=on", Job(UNBIASED, 4), gpus())
    names = [task.name for task in plan.tasks if task.body.kind == "collective"]
    assert names == ["0/gather 0", "2/gather 1", "4/gather 2", "2/gather 3", "4/reduce", "2/reduce", "0/reduce"]
    order = [task.name for task in plan.tasks]
    assert order.index("4/gather 2") < order.index("2/mm") < order.index("2/gather 3") < order.index("4/mm")
    assert order.index("4/reduce") < order.index("2/mm.dW")
    kept = planned("fsdp:fold=on,reshard=off", Job(UNBIASED, 4), gpus())
    assert sum("gather" in task.name for task in kept.tasks if task.body.kind == "collective") == 3
    late = planned("fsdp:shard=1,fold=on", Job(UNBIASED, 4, accumulate=2), gpus())
    assert [task.name for task in late.tasks if "reduce" in task.name and task.body.kind == "collective"] == [
        "4/reduce 1", "2/reduce 1", "0/reduce 1",
    ]  # fmt: skip


def issued(text: str, part: str) -> list[str]:
    """The names of updates and of collectives, and of products whose name contains `part`, in the order of a plan."""
    plan = planned(text, Job(UNBIASED, 4), gpus())
    return [task.name for task in plan.tasks if task.body.kind == "collective" or task.body.is_update or part in task.name]


def test_backward_fusion_updates_a_units_shards_once_its_gradients_are_scattered_and_forward_fusion_before_they_are_gathered():
    """The tasks are those of the baseline, with an update for each unit where it is on one device."""
    assert issued("fsdp:fold=on,update=backward-fusion", ".dW")[4:] == [
        "4/mm.dW", "4/reduce", "4/update", "2/mm.dW", "2/reduce", "2/update", "0/mm.dW", "0/reduce", "0/update",
    ]  # fmt: skip
    assert issued("fsdp:fold=on,update=forward-fusion", "no product")[:6] == [
        "0/update", "0/gather 0", "2/update", "2/gather 1", "4/update", "4/gather 2",
    ]  # fmt: skip
    plan = planned("fsdp:fold=on,update=forward-fusion", Job(UNBIASED, 4), gpus())
    assert {(task.lag, task.stream) for task in plan.tasks if task.body.is_update} == {(1, GATHER)}


@pytest.mark.parametrize("shard", ["3", "2"])
def test_backward_fusion_holds_no_more_than_one_units_gradient(shard):
    """The stream of sums made a shard's gradient, updates the shard, and frees it before the next sum."""
    plans = [planned(f"fsdp:shard={shard},fold=on,update={update}", Job(UNBIASED, 4), gpus()) for update in ("backward-fusion", "baseline")]
    freed_after = []
    for plan in plans:
        sums = {plan.storage_of(task.writes[0]) for task in plan.tasks if task.body.kind == "collective" and "reduce" in task.name}
        rule = releases(plan, Dependencies(plan)).steady
        freed_after.append([(plan.tasks[at].name, age) for at, items in enumerate(rule) for storage, age in items if storage in sums])
    assert freed_after == [[("4/update", 0), ("2/update", 0), ("0/update", 0)], [("4/reduce/pack@g0", 1)] * 3]


def test_the_bytes_of_collectives_are_those_of_parameters_and_gradients_with_padding():
    """Rows of 5, 4 and 3 on two devices are 6, 4 and 4."""
    plan = planned("fsdp:fold=on", Job(UNBIASED, 4), gpus())
    moved = {task.name: task.body.payload_bytes(task) for task in plan.tasks if task.body.kind == "collective"}
    sizes = {"0": 4 * 6 * 4, "2": 4 * 4 * 5, "4": 4 * 4 * 4}
    assert moved == {name: sizes[name[0]] for name in moved}


def test_the_first_stage_gathers_and_sums_parameters_of_equal_parts_where_they_lie():
    """Of 5, 4 and 3 rows only the 4 divide between two devices. Nothing of theirs is copied, and the moved bytes are the same."""
    plan = planned("fsdp:shard=1,fold=on", Job(UNBIASED, 4), gpus())
    copied = {task.name.split("/")[0] for task in plan.tasks if "pack" in task.name}
    summed = {task.name: task for task in plan.tasks if task.body.kind == "collective" and "/reduce" in task.name}
    assert (copied, {name[0] for name, task in summed.items() if task.mutates}) == ({"0", "4"}, {"2"})
    assert {name[0]: task.body.payload_bytes(task) for name, task in summed.items()} == {"0": 4 * 6 * 4, "2": 4 * 4 * 5, "4": 4 * 4 * 4}
    (update,) = [task for task in plan.tasks if task.phase == UPDATE]
    of_second = next(operand for operand in update.reads if operand.value == summed["2/reduce"].mutates[0].value)
    assert of_second.shape == (2, 5), "the first device goes on with its two rows of the sum"


@pytest.mark.parametrize("devices", [2, 3])
def test_a_device_carries_its_rows_of_parameters_and_state_only(devices):
    machine = core_groups(devices)
    plan = planned("fsdp", Job(UNBIASED, 6, optimizer="adam"), machine)
    own = [carried_bytes(planned("baseline", Job(UNBIASED, 6, optimizer=o), machine))["cpu:0"] for o in ("adam", "sgd")]
    held = carried_bytes(plan)
    pieces = {2: 3 + 3, 3: 3 + 3 + 2}[devices]  # the third device has no row of four
    assert sum(held.values()) == own[0] + 4 * (pieces - 3)  # each piece has Adam's count of steps
    assert max(held.values()) <= {2: (3 + 2) / (5 + 4 + 3), 3: (2 + 2 + 1) / (5 + 4 + 3)}[devices] * own[0] + 3 * own[1]


#: Seconds of a product, of a gather or a sum of the equal layers below.
PRODUCT_S, MOVED_S = 1.0, 0.5


def seconds(text: str) -> float:
    """The time of one step of three layers of 8 by 8, forward and backward, on two GPUs, where only products and collectives take time."""
    machine = gpus(bytes_per_s=8 * 8 * 4 / 2 / MOVED_S)  # a device sends half of what is gathered
    plan = planned(text, Job(f"{mlp.__file__}:square", 4), machine)
    timed = [PRODUCT_S if task.body.op == "aten.mm.default" else 0.0 for task in plan.tasks]
    costs = [Cost(task.name, s, s) for task, s in zip(plan.tasks, timed, strict=True)]
    return simulate(plan, machine, costs, iterations=1).step_s


@pytest.mark.parametrize("fold", ["on", "off"])
@pytest.mark.parametrize(
    ("options", "exposed"),
    [
        ("", 2),  # the first unit's gather, and the sum of its gradient
        (",prefetch=0", 6),  # every gather: three in forward, one in backward, before which the last unit's sum has the links; and that sum
        (",prefetch=2", 2),
        (",reshard=off", 2),
        (",shard=2", 2),
        (",shard=1", 2),
    ],
)
def test_communication_hides_behind_the_block_before(options, exposed, fold):
    """Three products forward, and five backward, for nothing needs the gradient of the input."""
    assert seconds(f"fsdp:fetch=off,fold={fold}{options}") == pytest.approx(8 * PRODUCT_S + exposed * MOVED_S)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "job"),
    [
        *((text, Job(MLP, 8, accumulate=2)) for text in ("fsdp", "fsdp:hybrid=2", "fsdp:shard=1", "fsdp:reshard=off", "data-parallel")),
        *((f"fsdp:tp=2{more}", replace(DECODER, accumulate=2)) for more in ("", ",sp=off", ",shard=0", ",update=backward-fusion")),
        *((f"fsdp:update={update}", Job(MLP, 8, accumulate=2)) for update in ("forward-fusion", "backward-fusion", "asynchronous")),
        ("fsdp:tp=4", replace(DECODER, clip_norm=0.1)),
    ],
)
def test_one_device_stands_for_all(text, job):
    """A folded plan has the time of the whole plan, and its device the memory."""
    check_folded(text, job, lambda task: 1e-5)


def test_a_large_machine_is_folded_by_itself():
    machine = gpus(16)
    plan = planned("fsdp", Job(MLP, 16), machine)
    assert plan.devices == ("g0",)
    assert plan.semantics["folded"] == "g0 stands for 16 devices, which do the same"
    assert {len(task.body.devices) for task in plan.tasks if task.body.kind == "collective"} == {16}


@pytest.mark.thorough
def test_a_plan_says_what_differs_from_plain_training():
    assert planned("fsdp", Job(f"{mlp.__file__}:normalised", 4), gpus()).semantics["batch_norm"] == "statistics per device and microbatch"
    assert planned("fsdp", Job("gpt2", 2, image_size=8, checkpoint="full"), gpus()).semantics["checkpoint"].startswith("full")


def test_under_autocast_the_shards_are_cast_and_half_the_bytes_are_gathered():
    plan = planned("fsdp:fold=on", Job(UNBIASED, 4, precision="amp"), load_machine("2xgpu-pcie"))
    gathers = [task for task in plan.tasks if task.body.kind == "collective" and "gather" in task.name]
    assert {task.writes[0].dtype for task in gathers} == {"bfloat16"}
    sums = [task for task in plan.tasks if task.body.kind == "collective" and "reduce" in task.name]
    assert {task.reads[0].dtype for task in sums} == {"float32"}
    casts = [task for task in plan.tasks if task.phase != COLLECTIVE and task.body.op == "aten._to_copy.default"]
    assert not [task.name for task in casts if "weight" in task.reads[0].value]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("factory", ["make", "shared", "frozen", "dropout", "normalised"])
@pytest.mark.parametrize("text", ["fsdp", "fsdp:shard=1", "fsdp:reshard=off,prefetch=3", "fsdp:prefetch=0"])
def test_it_trains_as_plain_pytorch_does(text, factory):
    machine = core_groups()
    for accumulate in (1, 2):
        job = Job(f"{mlp.__file__}:{factory}", 8, precision="fp64", optimizer="adamw", accumulate=accumulate)
        assert largest_error(job, planned(text, job, machine), CpuBackend(machine)) <= 1e-10


def test_on_turbodls_streams_each_device_computes_the_critical_path_first():
    """dX stays on the compute stream, dW and the update of a unit run beside it with a lower priority, and gathers go first of all."""
    plan = planned("fsdp:fold=on,streams=turbodl", Job(UNBIASED, 4), load_machine("4xa100"))
    lane_of = {task.name: (task.stream, task.priority) for task in plan.tasks}
    assert lane_of["2/mm.dX"] == lane_of["0/mm"] == lane_of["0/mm.dW"] == lane_of["0/update"], "the next forward waits for the first unit"
    assert lane_of["2/mm.dW"] == lane_of["4/mm.dW"] == lane_of["2/update"] == lane_of["4/update"]
    assert lane_of["2/mm.dX"][0] == 0 not in (GATHER, REDUCE, lane_of["2/mm.dW"][0])
    assert lane_of["2/gather 1"][1] == lane_of["2/reduce"][1] < lane_of["2/mm.dX"][1] < lane_of["2/mm.dW"][1]
    assert [task.name for task in plan.tasks if task.body.is_update] == ["0/update", "2/update", "4/update"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("factory", ["make", "shared"])
@pytest.mark.parametrize("update", ["baseline", "forward-fusion", "backward-fusion", "asynchronous"])
@pytest.mark.parametrize("more", ["", ",shard=2", ",shard=1", ",shard=0", ",tp=2"])
def test_on_turbodls_streams_the_numbers_are_the_same(more, update, factory):
    machine = core_groups(4 if "tp" in more else 3)
    job = Job(f"{mlp.__file__}:{factory}", 6, precision="fp64", optimizer="adamw", accumulate=2)
    job = job if "tp" not in more else replace(DECODER, accumulate=2)
    plan = planned(f"fsdp:streams=turbodl,update={update}{more}", job, machine)
    assert largest_error(job, plan, CpuBackend(machine, cores=[0] * len(machine.devices))) <= 1e-10


#: When shards are updated, and what else the job asks for.
UPDATES = [
    ("backward-fusion", {"accumulate": 2}), ("backward-fusion", {"form": "for"}), ("forward-fusion", {"clip_norm": 0.1}),
    ("forward-fusion", {"accumulate": 2}), ("asynchronous", {"accumulate": 2, "clip_norm": 0.1}), ("asynchronous", {}),
]  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize("factory", ["make", "shared", "frozen", "dropout"])
@pytest.mark.parametrize("shard", ["3", "2", "1", "0"])
@pytest.mark.parametrize(("update", "fields"), UPDATES, ids=str)
def test_it_trains_as_plain_pytorch_does_whenever_shards_are_updated(update, fields, shard, factory):
    """Three devices hold uneven rows. Asynchronous: as with weights that lack one update."""
    machine = core_groups(3)
    job = Job(f"{mlp.__file__}:{factory}", 6, precision="fp64", optimizer="adamw", **fields)
    plan = planned(f"fsdp:shard={shard},update={update}", job, machine)
    assert plan.semantics["staleness"] == (update == "asynchronous")
    assert largest_error(job, plan, CpuBackend(machine, cores=[0] * 3)) <= 1e-10


@pytest.mark.parametrize(
    "options", ["", ",streams=turbodl", *(f",update={u}" for u in ("forward-fusion", "backward-fusion", "asynchronous"))]
)
def test_a_shard_is_copied_before_other_devices_gather_it_if_its_update_does_not_wait_for_all_of_their_backward(options):
    """Devices of one memory otherwise read it where it lies."""
    plan = planned(f"fsdp:shard=1{options}", Job(MLP, 6), core_groups(3))
    copies = [task for task in plan.tasks if task.body.is_copy and plan.values[task.reads[0].value].kind == PARAMETER]
    assert {task.body.aliases for task in copies} == {not options}


@pytest.mark.parametrize("shard", ["3", "2"])
def test_gradients_of_a_unit_are_freed_while_the_unit_after_it_computes(shard):
    """The stream that computes waits for the sum of the unit before, as in FSDP2; else all gradients would be held until the update."""
    plan = planned(f"fsdp:shard={shard},fold=on", Job(UNBIASED, 4, accumulate=2), gpus())
    gradients = {value.storage for value in plan.values.values() if value.kind == GRADIENT and value.shape in {(5, 4), (4, 5), (3, 4)}}
    rule = releases(plan, Dependencies(plan))
    freed = {storage: plan.tasks[at] for at, items in enumerate(rule.steady) for storage, age in items if not age}
    by_update = [storage for storage in gradients if freed[storage].phase == UPDATE]
    assert len(gradients) == 6
    assert len(by_update) <= 2, "of the last two units, after which nothing computes"


@pytest.mark.parametrize("text", ["fsdp", "fsdp:shard=1"])
def test_three_devices_hold_uneven_rows(text):
    """Three of the second layer's rows divide among them, and five of the first layer's do not."""
    machine = core_groups(3)
    job = Job(MLP, 6, precision="fp64", optimizer="momentum", form="for")
    assert largest_error(job, planned(text, job, machine), CpuBackend(machine, cores=[0] * 3)) <= 1e-10


@pytest.mark.parametrize("devices", [2, 3])
def test_gradients_are_clipped_by_the_norm_over_all_devices(devices):
    """On three devices, the third has no row of some parameters."""
    machine = core_groups(devices)
    for norm in (0.1, 100.0):
        job = Job(MLP, 6, precision="fp64", optimizer="sgd", clip_norm=norm)
        assert largest_error(job, planned("fsdp", job, machine), CpuBackend(machine, cores=[0] * devices)) <= 1e-10


def divided(more: str, devices: int = 4, **fields) -> float:
    """The largest error of a decoder whose layers two devices divide."""
    machine = core_groups(devices)
    job = replace(DECODER, **fields)
    job = replace(job, model=job.model.replace("layers=2", "layers=1"))
    return largest_error(job, planned(f"fsdp:tp=2{more}", job, machine), CpuBackend(machine, cores=[0] * devices), 2)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("shard", "between"), [("0", "on"), ("0", "off"), ("1", "off"), ("1", "on"), ("2", "on"), ("2", "off"), ("3", "off"), ("3", "on")]
)
def test_devices_that_divide_layers_train_as_plain_pytorch_does(shard, between):
    """Two replicas of two devices each: parameters are divided by layers, and what is left of them is sharded over the replicas."""
    assert divided(f",shard={shard},sp={between}") <= 1e-10


@pytest.mark.sampled(9)
@pytest.mark.parametrize("more", ["", ",shard=0,sp=off", ",update=asynchronous", ",shard=1,update=forward-fusion"])
@pytest.mark.parametrize(
    "fields",
    [
        {"accumulate": 2, "clip_norm": 0.05}, {"checkpoint": "full", "form": "foreach"}, {"accumulate": 2, "checkpoint": "selective"},
        {"clip_norm": 100.0, "form": "for"}, {"optimizer": "momentum", "form": "foreach"}, {"accumulate": 2},
        {"model": f"{DECODER.model},loss=fused", "accumulate": 2},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_job_asks_for_holds_of_divided_layers_too(fields, more):
    assert divided(more, **fields) <= 1e-10


@pytest.mark.parametrize(
    ("more", "devices"), [("", 2), pytest.param(",hybrid=1", 4, marks=THOROUGH), pytest.param(",hybrid=2", 8, marks=THOROUGH)]
)
def test_replicas_of_divided_layers_shard_within_groups(more, devices):
    """One replica has nothing to shard; four may hold two copies of two shards each."""
    assert divided(more, devices, clip_norm=0.05) <= 1e-10


def test_a_plan_says_how_layers_are_divided():
    plan = planned("fsdp:tp=2,fold=on", DECODER, gpus(4))
    assert (plan.semantics["replicas"], plan.semantics["shards"]) == (2, 2)
    assert plan.semantics["divided"] == "heads, hidden channels and vocabulary over 2 devices, and between products by tokens"
    odd = replace(DECODER, model=DECODER.model.replace("vocab=32", "vocab=31"))
    assert planned("fsdp:tp=2,sp=off,fold=on", odd, gpus(4)).semantics["divided"].endswith("devices; each of them runs all of some mm")


def test_the_devices_of_a_layer_are_neighbors():
    """They exchange more than the replicas, which gather parameters over the other links."""
    plan = planned("fsdp:tp=2,fetch=off,fold=off", DECODER, gpus(4))
    groups = {(task.stream, task.body.devices) for task in plan.tasks if task.body.kind == "collective"}
    within, across = {("g0", "g1"), ("g2", "g3")}, {("g0", "g2"), ("g1", "g3")}
    assert groups == {(TENSOR, names) for names in within} | {(stream, names) for stream in (GATHER, REDUCE) for names in across}


def test_what_it_cannot_do_is_refused():
    with refuses(Code.DEVICES):
        planned("fsdp", Job(MLP, 4), core_groups(1))
    with refuses(Code.BATCH):
        planned("fsdp", Job(MLP, 3), core_groups(2))
    with refuses(Code.REQUEST, "hybrid=3 does not divide 4 replicas; choose one of 1, 2, 4"):
        planned("fsdp:hybrid=3", Job(MLP, 4), gpus(4))
    with refuses(Code.REQUEST, "tp=3 does not divide 4 devices; choose one of 1, 2, 4"):
        planned("fsdp:tp=3", Job(MLP, 4), gpus(4))
    with refuses(Code.REQUEST, "hybrid=4 does not divide 2 replicas; choose one of 1, 2"):
        planned("fsdp:tp=2,hybrid=4", Job(MLP, 4), gpus(4))
    with refuses(Code.REQUEST, "tp is 0; expected at least 1"):
        planned("fsdp:tp=0", Job(MLP, 4), gpus(4))
    with refuses(Code.BATCH, "--batch 3 does not divide into 2 replicas; choose a multiple of 2"):
        planned("fsdp:tp=2", Job(MLP, 3), gpus(4))
    with refuses(Code.MODEL):
        planned("fsdp", Job("lenet5", 4, layout="nhwc"), gpus(2))
    with refuses(Code.MODEL, "it updates before all gradients are known; use update=forward-fusion"):
        planned("fsdp:update=backward-fusion", Job(MLP, 4, clip_norm=1.0), gpus(2))


def test_each_of_many_devices_has_a_part_of_queries_keys_and_values():
    """Of the projection that one product makes, four replicas of half a model hold an eighth, without padding, and train alike."""
    job = Job("lm:form=gpt,layers=1,d_model=16,heads=4,vocab=32", 4, 8, precision="fp64", optimizer="adamw")
    machine = core_groups(8)
    plan = planned("fsdp:tp=2", job, machine)
    held = [
        value for name, value in plan.values.items() if name.startswith("blocks.0.attention.project.weight") and value.kind == PARAMETER
    ]
    assert [value.shape for value in held] == [(3, 2, 16)] * 8
    assert largest_error(job, plan, CpuBackend(machine, cores=[0] * 8), 2) <= 1e-10
