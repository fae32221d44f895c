"""Costs: measured if the profile has the key, else fitted on the profile, else from the committed table."""

import math
from dataclasses import replace

import pytest

from simulator.engine.costs import efficiencies
from simulator.engine.costs.cost import DATASHEET, FITTED, MEASURED, Cost
from simulator.engine.costs.fresh_memory import MAPPED_BYTES, SHARE, SHARE_ERROR, Fresh, added, fresh_bytes
from simulator.engine.costs.model import CostModel
from simulator.engine.costs.ratios import TABLE
from simulator.engine.hosts import issue_seconds
from simulator.machine.machine import Device, Machine, Memory
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.bodies.host import Host
from simulator.plan.bodies.opcall import ListedOp, OpCall, OpList
from simulator.plan.bodies.update import Update
from simulator.plan.keys import cost_key
from simulator.plan.task import ACTIVATION, BACKWARD, FORWARD, Task
from simulator.predict.forecast import answer
from simulator.predict.intervals import Z_90
from simulator.predict.target import Target
from tests.support.jobs import MLP, planned
from tests.support.own_profiles import profile_with
from tests.support.small_plans import G1, W1, H, X, Y, copied, forward_fused, machine, mm, plan_of, sgd, value
from traces.documents.profile import Identity, KeyCost, Profile, Stats

GPU = Identity(kind="gpu", gpu="toy", sms=10)
CPU = Identity(kind="cpu", cpu="toy", cores=2)


def measured(seconds: float, op_class="", flops=0.0, moved=0.0, cold: float | None = None, **more) -> KeyCost:
    """A key measured without noise."""
    stats = [Stats(s, s, s, s, 9) if s is not None else None for s in (seconds, cold)]
    return KeyCost(stats[0], stats[1], op_class, flops, moved, **more)


def multiply(rows: int, columns: int, inner: int = 64) -> Task:
    """A matrix product of the given size."""
    return mm("mm", value("a", (rows, inner), "input"), value("b", (inner, columns), "parameter"), value("c", (rows, columns), ACTIVATION))


def test_a_measured_key_costs_what_was_measured():
    task = mm("forward", X, W1, H)
    key = cost_key(task, machine())
    measured = KeyCost(Stats(2e-5, 9e-5, 1.5e-5, 2.5e-5, 9), Stats(4e-5, 9e-5, 3.9e-5, 4.1e-5, 9), grid=12, blocks_per_sm=3)
    cost = CostModel(machine(), Profile(identity=GPU, costs={key: measured})).cost(task)
    assert (cost.warm_s, cost.cold_s, cost.source) == (2e-5, 4e-5, MEASURED)
    assert (cost.grid, cost.blocks_per_sm, cost.error) == (12, 3, 0.0)
    assert cost.spread == pytest.approx(0.25)
    flops, moved = 2 * 32 * 64 * 128, 4 * (32 * 64 + 64 * 128 + 32 * 128)
    assert cost.compute_share == pytest.approx(flops / (1e12 * 2e-5))
    assert cost.memory_share == pytest.approx(moved / (1e11 * 4e-5))


def test_a_cpu_costs_its_median_and_is_one_wave_on_one_core():
    cpu = Machine("cpu", (Device("cuda:0", "cpu", 2, {"fp32": 1e11}, "m"),), (Memory("m", 2**34, 2e10, 2**25),))
    task = mm("forward", X, W1, H)
    profile = Profile(identity=CPU, costs={cost_key(task, cpu): KeyCost(Stats(2e-5, 3e-5, 2e-5, 2e-5, 9), grid=7, blocks_per_sm=7)})
    cost = CostModel(cpu, profile).cost(task)
    assert (cost.warm_s, cost.cold_s, cost.grid, cost.blocks_per_sm) == (2e-5, 2e-5, 1, 1)


def test_slower_warm_samples_count_as_samples_of_the_same_time():
    task = mm("forward", X, W1, H)
    cost = CostModel(machine(), Profile(identity=GPU, costs={cost_key(task, machine()): measured(5e-5, cold=3e-5)})).cost(task)
    assert (cost.warm_s, cost.cold_s) == (4e-5, 4e-5)


def test_without_a_profile_the_table_guesses():
    plan = forward_fused()
    model = CostModel(machine())
    costs = model.resolve(plan)
    assert [c.source for c in costs] == [DATASHEET] * 6
    assert all(0 < c.warm_s <= c.cold_s < 1e-3 and c.error > 0 for c in costs)
    assert model.shares(plan, costs) == {"measured": 0.0, "fitted": 0.0, "guessed": 1.0}


def test_a_large_product_is_guessed_at_a_share_of_the_peak_its_precision_has():
    fast = Device("cuda:0", "gpu", 10, {"fp32": 1e12, "tf32": 8e12, "fp64": 5e11, "bf16": 1.6e13}, "memory:0")
    box = replace(machine(), devices=(fast,))
    task = multiply(8192, 8192, 8192)
    table = efficiencies.table()["gpu"].row("matmul").compute
    fp32, tf32 = (CostModel(box, precision=p).cost(task).cold_s for p in ("fp32", "tf32"))
    assert fp32 == pytest.approx(2 * 8192**3 / (1e12 * table["fp32"].value), rel=0.02)
    assert tf32 < fp32 / 3
    double = replace(task, reads=tuple(replace(o, dtype="float64") for o in task.reads))
    assert CostModel(box, precision="tf32").cost(double).cold_s > fp32


def test_the_profile_says_whether_products_run_in_tf32():
    assert CostModel(machine(), Profile(identity=Identity(kind="gpu", tf32=True))).precision == "tf32"
    assert CostModel(machine(), Profile(identity=GPU)).precision == "fp32"


def test_half_a_gpu_takes_twice_as_long():
    def halves(sms: int) -> Machine:
        device = machine().devices[0]
        parts = tuple(replace(device, name=f"cuda:{i}", sms=sms, peak_flops={"fp32": 1e11 * sms}) for i in range(10 // sms))
        return replace(machine(), devices=parts)

    whole, half = (CostModel(halves(sms)).cost(multiply(8192, 8192, 8192)).cold_s for sms in (10, 5))
    assert half == pytest.approx(2 * whole, rel=0.02)


def products_as_slow_as(factor: float, *rows: int) -> Profile:
    """Products that take `factor` times as long as the table says."""
    costs, model = {}, CostModel(machine())
    for task in (multiply(each, 512) for each in rows):
        work, table = task.body.work(task), model.cost(task)
        costs[cost_key(task, machine())] = measured(factor * table.warm_s, "matmul", work.flops, work.bytes, cold=factor * table.cold_s)
    return Profile(identity=GPU, costs=costs)


def test_an_unmeasured_key_of_a_gpu_is_corrected_like_measured_ones_of_its_class():
    """Each of them counts about as much as a third of the table, and takes twice as long as that says."""
    task = multiply(700, 333)
    for count in (2, 200):
        table, cost = (CostModel(machine(), profile).cost(task) for profile in (None, products_as_slow_as(2, *range(600, 600 + count))))
        ratio = 2 ** (count / (count + TABLE))
        assert (cost.warm_s, cost.cold_s) == pytest.approx((ratio * table.warm_s, ratio * table.cold_s), rel=0.02)
        assert (cost.error < table.error, cost.source) == ((False, DATASHEET) if count < TABLE else (True, FITTED))


def test_a_class_that_a_gpu_did_not_measure_is_as_the_table_says():
    relu = Task("relu", OpCall("aten.relu.default"), "cuda:0", reads=(H.operand(),), writes=(H.operand(),))
    table, cost = (CostModel(machine(), profile).cost(relu) for profile in (None, products_as_slow_as(3, 64, 128, 256, 512)))
    assert cost == table
    assert cost.source == DATASHEET


def test_a_partition_is_fitted_on_its_own_keys_first():
    costs = {}
    for sms, slow in ((10, 1.0), (5, 4.0)):
        for rows in (64, 128, 256, 512):
            task = multiply(rows, 512)
            work = task.body.work(task)
            costs[f"{task.body.key(task)}@{sms}"] = measured(slow * work.flops / 1e11, "matmul", work.flops, work.bytes)
    cost = CostModel(machine(), Profile(identity=GPU, costs=costs)).cost(multiply(300, 512))
    assert cost.cold_s == pytest.approx(2 * 300 * 64 * 512 / 1e11, rel=0.1)


def test_copies_are_left_to_the_links_and_host_tasks_cost_their_duration():
    model = CostModel(machine(devices=2))
    assert [c.cold_s > 0 for c in model.resolve(copied())] == [True, False, True]
    wait = model.cost(Task("wait", Host(0.5), "cuda:0"))
    assert (wait.warm_s, wait.cold_s, wait.source) == (0.5, 0.5, MEASURED)


def test_missing_keys_are_those_calibration_has_not_tried():
    plan = copied()
    box = machine(devices=2)
    first, _, third = (cost_key(t, box) for t in plan.tasks)
    assert list(CostModel(box).missing(plan)) == [first, third]
    profile = Profile(identity=GPU, costs={first: measured(1e-5)}, failures={third: "out of memory"})
    assert CostModel(box, profile).missing(plan) == {}


def test_shares_are_of_seconds():
    plan = plan_of([mm("a", X, W1, H), sgd("b", W1, G1)], [X, W1, H, G1])
    model = CostModel(machine())
    guess = model.cost(plan.tasks[1]).cold_s
    costs = {cost_key(plan.tasks[0], machine()): measured(3 * guess)}
    model = CostModel(machine(), Profile(identity=GPU, costs=costs))
    assert model.shares(plan, model.resolve(plan)) == {"measured": pytest.approx(0.75), "fitted": 0.0, "guessed": pytest.approx(0.25)}


def test_forms_of_an_update_differ_in_passes_and_launches():
    parameters = [value(f"p{i}", (512, 512), "parameter") for i in range(4)]

    def update(form: str) -> float:
        body = Update("momentum", form, tuple(p.name for p in parameters))
        operands = tuple(p.operand() for p in parameters)
        task = Task("u", body, "cuda:0", reads=operands, mutates=tuple(o for o in operands for _ in range(2)))
        return CostModel(machine()).cost(task).cold_s

    assert update("fused") < update("foreach") < update("for")


def test_an_unmeasured_op_list_costs_the_sum_of_its_ops():
    box = machine()
    ops = [mm("a", X, W1, H), mm("b", H, value("w", (128, 10), "parameter"), Y)]
    steps = tuple(ListedOp(t.body, t.reads, t.writes) for t in ops)
    stage = Task("stage", OpList(steps, "stage"), "cuda:0", reads=(X.operand(),), writes=(Y.operand(),))
    costs = {cost_key(t, box): measured(s) for t, s in zip(ops, (1e-5, 2e-5), strict=True)}
    cost = CostModel(box, Profile(identity=GPU, costs=costs)).cost(stage)
    assert (cost.warm_s, cost.source, cost.launches) == (pytest.approx(3e-5), FITTED, 2)
    half = CostModel(box, Profile(identity=GPU, costs=dict(list(costs.items())[:1]))).cost(stage)
    assert half.source == DATASHEET
    exact = Profile(identity=GPU, costs={**costs, cost_key(stage, box): measured(2.5e-5)})
    assert CostModel(box, exact).cost(stage).warm_s == 2.5e-5


def test_tasks_of_one_key_share_one_cost():
    task = mm("a", X, W1, H)
    plan = replace(plan_of([task], [X, W1, H]), tasks=(task, replace(task, name="b", priority=-1)))
    first, second = CostModel(machine()).resolve(plan)
    assert first is second


def issuing(costs: dict[str, KeyCost], *tasks: Task) -> list[float | None]:
    """The issue time of each task under a GPU profile with `costs`."""
    return [cost.issue_s for cost in CostModel(machine(), Profile(identity=GPU, costs=costs)).resolve(plan_of(list(tasks), [X, W1, H, G1]))]


def test_a_measured_key_launches_as_many_kernels_as_the_profiler_counted():
    task = mm("a", X, W1, H)
    key, cost = cost_key(task, machine()), measured(1e-5, "matmul", issue_s=7e-6)
    for kernels, launches in ((None, 1), (3, 3)):
        profile = Profile(identity=GPU, costs={key: cost._replace(kernels=kernels)})
        assert CostModel(machine(), profile).cost(task).launches == launches


def test_issuing_a_measured_key_takes_what_was_measured():
    task = mm("a", X, W1, H)
    costs = {
        cost_key(task, machine()): measured(1e-5, "matmul", issue_s=7e-6),
        "aten.mm.default|f32[1]|[]@10": measured(1e-5, "matmul", issue_s=1e-6),
    }
    assert issuing(costs, task) == [7e-6]


def test_issuing_an_unmeasured_key_takes_the_median_of_related_keys():
    product, update = mm("a", X, W1, H), sgd("b", W1, G1)
    other = f"{product.body.key(multiply(8, 8))}@10"
    costs = {
        "aten.bmm.default|[]@10": measured(1e-5, "matmul", issue_s=3e-6),
        "update.adam:fused|f|lr@10": measured(1e-5, "update.adam:fused", issue_s=9e-6),
    }
    assert issuing(costs, product, update) == [3e-6, 6e-6], "by its class; a class without measured keys, by all keys"
    costs |= {other: measured(1e-5, "matmul", issue_s=5e-6)}
    assert issuing(costs, product, update) == [5e-6, 5e-6], "its family comes first"
    costs |= {cost_key(product, machine()): measured(1e-5, "matmul")}
    assert issuing(costs, product) == [5e-6], "also for a key that was measured without an issue time"
    assert issuing({key: cost._replace(issue_s=None) for key, cost in costs.items()}, product) == [None]
    assert CostModel(machine()).cost(product).issue_s is None


def test_issuing_a_copy_takes_as_long_as_a_typical_op():
    box, plan = machine(devices=2), copied()
    costs = {cost_key(plan.tasks[0], box): measured(1e-5, "matmul", issue_s=4e-6)}
    assert [cost.issue_s for cost in CostModel(box, Profile(identity=GPU, costs=costs)).resolve(plan)] == [4e-6] * 3


def test_issuing_an_op_list_takes_the_sum_of_its_ops():
    box = machine()
    ops = [mm("a", X, W1, H), mm("b", H, value("w", (128, 10), "parameter"), Y)]
    steps = tuple(ListedOp(t.body, t.reads, t.writes) for t in ops)
    stage = Task("stage", OpList(steps, "stage"), "cuda:0", reads=(X.operand(),), writes=(Y.operand(),))
    costs = {cost_key(t, box): measured(1e-5, "matmul", issue_s=s) for t, s in zip(ops, (2e-6, 3e-6), strict=True)}
    assert issuing(costs, stage) == [pytest.approx(5e-6)]
    costs[cost_key(stage, box)] = measured(1e-5, "matmul", issue_s=4.5e-6)
    assert issuing(costs, stage) == [4.5e-6]


def test_fp16_has_the_peak_of_bf16_unless_it_has_one_of_its_own():
    """A V100 has tensor cores for fp16 alone; those of an A100 are as fast in both."""
    task = multiply(8192, 8192, 8192)
    halves = {t: replace(task, reads=tuple(replace(o, dtype=t) for o in task.reads)) for t in ("float16", "bfloat16")}

    def seconds(peaks):
        model = CostModel(replace(machine(), devices=(Device("cuda:0", "gpu", 10, peaks, "memory:0"),)))
        return tuple(model.cost(each).cold_s for each in halves.values())

    fp16_s, bf16_s = seconds({"fp32": 1e12, "fp16": 8e12})
    assert fp16_s < bf16_s / 4
    fp16_s, bf16_s = seconds({"fp32": 1e12, "bf16": 8e12})
    assert fp16_s == bf16_s


# Launches, rounds and blocks of a scan's tasks: one kernel each on CUDA, op calls on a CPU.


def tasks_of(strategy: str, machine: str, model: str = "rnn_bitstream", steps: int = 40) -> list:
    """The tasks of a scan and of its Jacobians for 4 samples."""
    plan = planned(strategy, Job(model, 4, image_size=steps), load_machine(machine))
    return [task for task in plan.tasks if task.body.kind in ("scan-level", "jacobian-values")]


@pytest.fixture
def gpu() -> CostModel:
    return CostModel(load_machine("h200"))


def test_every_task_of_a_scan_is_one_launch(gpu):
    for strategy in ("bppsa:scan=blelloch", "bppsa:scan=linear"):
        assert {gpu.cost(task).launches for task in tasks_of(strategy, "h200")} == {1}


def test_a_linear_level_takes_as_long_as_it_has_rounds(gpu):
    """A block per sample; a kernel's start counts once."""
    short, long = (tasks_of("bppsa:scan=linear", "h200", steps=steps)[-1] for steps in (40, 80))
    rounds = [task.body.loop_length for task in (short, long)]
    row = efficiencies.table()["gpu"].row("scan.linear")
    seconds = [gpu.cost(task).cold_s for task in (short, long)]
    assert seconds[1] - seconds[0] == pytest.approx((rounds[1] - rounds[0]) * row.least_s.value, rel=0.1)
    assert seconds[0] > row.cold_start_s.value
    assert gpu.cost(short).grid == 4


@pytest.mark.parametrize(("model", "op"), [("rnn_bitstream", "rnn"), ("gru_features", "gru")])
def test_a_recurrent_layer_is_one_call_of_the_host_with_a_time_for_each_step(model, op):
    """Of 40 steps' kernels, those of the last step are not over when the host has issued them all."""
    machine, row = load_machine("v100"), efficiencies.table()["gpu"].row("recurrent")
    host = machine.hosts[0]
    for target, step_s in ((op, host.forward_step_s), (f"{op}_backward", host.backward_step_s)):
        tasks = planned("baseline", Job(model, 4, image_size=40), machine).tasks
        (task,) = (task for task in tasks if getattr(task.body, "target", "") == f"schedcast.{target}.default")
        cost = CostModel(machine).cost(task)
        assert (cost.launches, cost.issue_s) == (1, pytest.approx(40 * step_s))
        assert cost.cold_s == pytest.approx(40 * 2 * row.least_s.value, rel=0.05)
        assert cost.warm_s - cost.fed_s == pytest.approx(cost.warm_s / 40)
        listed = Task("list", OpList((ListedOp(task.body, task.reads, task.writes),) * 2), task.device)
        both = CostModel(machine).cost(listed)
        assert (both.launches, both.issue_s, both.fed_s) == (2, pytest.approx(2 * cost.issue_s + host.dispatch_s), 2 * cost.fed_s)


def test_jacobians_are_one_kernel_on_a_gpu_and_many_ops_on_a_cpu():
    jacobians = tasks_of("bppsa:scan=blelloch", "h200", "gru_features")[0]
    assert (jacobians.body.least_kernels("gpu"), jacobians.body.least_kernels("cpu")) == (1, 15)


def test_issuing_a_longer_linear_level_takes_the_same_time(gpu):
    """The measured level had 40 rounds in one launch; a level with more rounds is one launch as well."""
    task, other = (tasks_of("bppsa:scan=linear", "h200", steps=steps)[-1] for steps in (40, 80))
    work = task.body.work(task)
    measured = KeyCost(
        Stats(1e-5, 1e-5, 1e-5, 1e-5, 9),
        op_class=work.op_class,
        flops=work.flops,
        bytes=work.bytes,
        issue_s=2e-5,
        launches=task.body.loop_length,
    )
    profile = Profile(identity=Identity(kind="gpu"), costs={cost_key(task, gpu.machine): measured})
    assert CostModel(gpu.machine, profile).cost(other).issue_s == pytest.approx(2e-5)


# Memory that a step of plain PyTorch takes from the system: mappings of their own, and a share of the rest.


INPUT = value("x", (32, 64), "input")
W, G = value("w", (64, 64), "parameter"), value("g", (64, 64), "gradient")
A, B, C = (value(name, (32, 64), "activation") for name in "abc")
SMALL, WEIGHTS = 4 * 32 * 64, 4 * 64 * 64


def test_a_step_holds_two_of_three_activations_at_a_time():
    """a is freed when b is there, and b when c is there; the input and the weights are not allocated by the step."""
    plan = plan_of([mm("a", INPUT, W, A), mm("b", A, W, B), mm("c", B, W, C)], [INPUT, W, A, B, C])
    each = SHARE * 2 * SMALL / 3
    assert fresh_bytes(plan) == tuple([Fresh(0, pytest.approx(each))] * 3)


def test_a_large_tensor_is_fresh_in_every_step():
    rows = MAPPED_BYTES // (4 * 64)
    wide = value("wide", (rows, 64), "activation")
    plan = plan_of([mm("a", value("x", (rows, 64), "input"), W, wide)], [value("x", (rows, 64), "input"), W, wide])
    assert fresh_bytes(plan) == (Fresh(MAPPED_BYTES, 0.0),)


def add(name: str, left, right, out) -> Task:
    reads = (left.operand(), right.operand())
    return Task(name, OpCall("aten.add.Tensor", '[{"$":0},{"$":1}]'), out.device, reads=reads, writes=(out.operand(),), phase=BACKWARD)


def test_a_sum_of_gradients_takes_the_place_of_the_first_unless_that_is_needed_later():
    """As autograd does where a tensor is read twice. `also` reads the first gradient after the sum."""
    first, second, total, other = (value(name, (32, 64), "gradient") for name in ("first", "second", "total", "other"))
    sums = add("sum", first, second, total)
    also = add("also", first, total, other)
    made = [mm("a", INPUT, W, first), mm("b", INPUT, W, second)]
    values = [INPUT, W, first, second, total, other]

    def allocated(*tasks):
        return [fresh.heap > 0 for fresh in fresh_bytes(plan_of([*made, *tasks], values))]

    assert allocated(sums) == [True, True, False]
    assert allocated(sums, also) == [True, True, True, False]


def update(optimizer: str, form: str, **hyper: float):
    """An update of two weights of one size, as bytes of the tensors that it makes for itself."""
    task = replace(sgd("update", W, G), reads=(G.operand(), G.operand()))
    return replace(task, body=Update(optimizer, form, ("w", "v"), tuple(hyper.items()))).body.made(task)


def test_what_an_update_makes_for_itself():
    assert update("sgd", "foreach") == []
    assert update("momentum", "foreach") == [WEIGHTS, WEIGHTS], "the gradients with weight decay"
    assert update("momentum", "for") == [WEIGHTS], "one at a time"
    assert update("momentum", "foreach", weight_decay=0.0) == []
    assert update("adam", "foreach") == [WEIGHTS] * 4
    assert update("adamw", "foreach") == [WEIGHTS] * 2, "its decay needs no tensor"
    assert update("adam", "fused") == []


def test_it_takes_time_of_the_task_that_allocates():
    plan = plan_of([mm("a", INPUT, W, A), mm("b", A, W, B)], [INPUT, W, A, B])
    costs = [Cost("key", 1.0, 1.0, overhead_s=0.5)] * 2
    assert added(plan, costs, 0.0) == costs
    priced = added(plan, costs, 1e-3)
    assert [cost.overhead_s for cost in priced] == [pytest.approx(0.5 + 1e-3 * SHARE * SMALL)] * 2
    assert [cost.fresh_error for cost in priced] == [SHARE_ERROR] * 2


def test_only_plain_pytorch_has_it_and_all_of_it_is_wrong_together():
    job = Job(MLP, 6)
    profile = profile_with(1.0, job)
    machine = this_cpu(profile)
    seconds, intervals = {}, {}
    for s_per_byte in (0.0, 1.0):
        profile.loop = profile.loop.model_copy(update={"fresh_s_per_byte": s_per_byte})
        for name in ("pytorch", "baseline"):
            seen = answer(job, name, Target.of(CostModel(machine, profile)))
            seconds[name, s_per_byte], intervals[name, s_per_byte] = seen.timeline.step_s, seen.interval_s
    assert seconds["baseline", 1.0] == seconds["baseline", 0.0]
    plan = answer(job, "pytorch", Target.of(CostModel(machine, profile))).plan
    assert seconds["pytorch", 1.0] - seconds["pytorch", 0.0] == pytest.approx(sum(sum(each) for each in fresh_bytes(plan)))
    low_s, high_s = intervals["pytorch", 1.0]
    assert high_s / low_s >= math.exp(2 * Z_90 * SHARE_ERROR) * 0.95, "nearly all of this step is fresh memory"


def test_a_cast_of_autocast_takes_a_launch_of_the_host_and_no_python():
    """Other ops take what modules and autograd cost besides, and so do casts in backward, which are nodes of autograd."""
    job, gpu = Job(MLP, 8, precision="amp"), load_machine("h100")
    forecast = answer(job, "pytorch", Target.of(CostModel(gpu)))
    host = gpu.hosts[0]
    taken = {
        (task.phase, task.body.target == "aten._to_copy.default"): issue_seconds(host, cost.launches, cost.issue_s)
        for task, cost in zip(forecast.plan.tasks, forecast.costs, strict=True)
        if task.body.kind == "op"
    }
    python = host.dispatch_s + host.loop_s
    assert taken == {(FORWARD, True): host.dispatch_s, (FORWARD, False): python, (BACKWARD, True): python, (BACKWARD, False): python}
