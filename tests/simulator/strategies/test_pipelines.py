"""Pipelines compute what plain training computes, or a trainer whose weights are as stale; and they take the time that they should."""

from dataclasses import replace

import pytest
import torch

from calibrate.numerics import References, reference
from executors.cpu.backend import CpuBackend
from executors.cpu.cores import available_cores
from executors.distributed.backend import require_own_values
from executors.tensors import job_tensors
from simulator.engine.collectives.local import local_plan
from simulator.engine.costs.model import CostModel
from simulator.engine.simulation import simulate
from simulator.machine.machine import HOST, NETWORK, Device, Link, Machine, Memory
from simulator.machine.presets import load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.plan.check import PlanError
from simulator.plan.dependencies import Dependencies
from simulator.plan.json import dump, load
from simulator.plan.messages import between_devices
from simulator.plan.task import BACKWARD, TRANSFER, UPDATE
from simulator.plan.task import FORWARD as FORWARD_PHASE
from simulator.predict.answers import prediction
from simulator.predict.forecast import forecast, plan_of
from simulator.predict.target import Target
from simulator.strategies import baseline, data_parallel
from simulator.strategies.data_parallel import Options
from simulator.strategies.pipeline import orders
from simulator.strategies.pipeline.schedule import FORWARD, Action, timed
from simulator.strategies.pipeline.staleness import staleness
from simulator.strategies.registry import with_options
from simulator.strategies.runs import run_of
from tests.support import models
from tests.support.jobs import job_of, planned
from tests.support.pipeline_plans import costs, devices, plan_pipeline
from tests.support.pipelines import makespan_s
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from traces.errors import Code, SchedcastError

# Plans that follow one after the other share what lives as long as the job, and nothing else.


JOB = Job(f"{models.__file__}:chain", 8)


def test_a_later_plan_has_primes_but_for_what_is_carried():
    stale, plain = planned("stale-pipeline:placement=4", JOB, devices(2)), planned("gpipe:placement=4", JOB, devices(2))
    plan = run_of("both", [(stale, 2), (plain, 3)], {}, {})
    plan.validate(devices(2))
    assert [own.iterations for own in plan.sequence] == [2, 3]
    assert [task.name for task in plan.tasks] == [f"{task.name}'" for task in plain.tasks]
    assert plan.carried == stale.carried == plain.carried
    first, second = plan.sequence
    assert (first.tasks, first.values, first.losses) == (stale.tasks, stale.values, stale.losses)
    assert set(first.values) & set(second.values) == {name for name, value in second.values.items() if value.storage in plan.carried}
    assert load(dump(plan)) == plan


def test_plans_that_carry_a_parameter_on_two_devices_cannot_follow_each_other():
    with refuses(Code.PLAN, "cannot go from gpipe to gpipe: .* is on .*:1 and on .*:0"):
        run_of("both", [(planned("gpipe:placement=2", JOB, devices(2)), 1), (planned("gpipe:placement=6", JOB, devices(2)), 1)], {}, {})


# Values that go through the host's memory.


def over_the_host(count: int, bytes_per_s: float) -> Machine:
    """GPUs whose only links are those to the host, and which need no time to launch."""
    names = [f"cuda:{number}" for number in range(count)]
    gpus = tuple(Device(name, "gpu", 1, {"fp32": 1e9, "fp64": 1e9}, f"memory of {name}", priority_levels=2) for name in names)
    memories = tuple(Memory(f"memory of {name}", 1 << 40, 1e15, 1) for name in names)
    links = tuple(Link(*ends, 1e-5, bytes_per_s) for name in names for ends in ((name, "host"), ("host", name)))
    return Machine("made up", gpus, memories, (), links)


def test_staged_sends_take_turns_with_the_computations_of_both_devices():
    """The busiest device computes and copies, one after the other. Sent directly, the same values move beside computation."""
    machine = over_the_host(3, 1e7)
    model = CostModel(machine)
    direct, staged = (
        forecast(planned(f"stale-pipeline:placement=3-6{more}", JOB, machine), Target(machine, model)) for more in ("", ",sends=staged")
    )
    tasks = {task.name: task for task in staged.plan.tasks}
    sends = [task for task in direct.plan.tasks if task.body.is_copy]
    for task in sends:
        there, back = tasks[task.name], tasks[task.name.replace("send", "receive")]
        assert (there.body.ends, back.body.ends) == ((task.device, "host"), ("host", task.body.target))
        assert {tasks[f"{copy.name}/wait"].body.kind for copy in (there, back)} == {"synchronize"}
        assert (there.device, back.device) == (task.device, task.body.target)
        assert there.stream == back.stream == 0
    copies_s = dict.fromkeys(staged.plan.devices, 0.0)
    for task in staged.plan.tasks:
        if task.body.is_copy:
            copies_s[task.device] += 1e-5 + task.body.moved_bytes(task) / 1e7
    computing_s = dict.fromkeys(staged.plan.devices, 0.0)
    for task, cost in zip(direct.plan.tasks, model.resolve(direct.plan), strict=True):
        computing_s[task.device] += 0.0 if task.body.is_copy else cost.cold_s
    assert staged.timeline.step_s == pytest.approx(max(computing_s[device] + copies_s[device] for device in copies_s), rel=0.01)
    assert direct.timeline.step_s < staged.timeline.step_s
    assert staged.plan.semantics == direct.plan.semantics
    require_own_values(direct.plan)
    with refuses(Code.DEVICES, "sends=staged is predicted only"):
        require_own_values(staged.plan)


@pytest.mark.parametrize("stages", [1_000_000_000, "1" * 30])
def test_one_device_simulates_no_more_stages_than_a_model_has_layers(stages):
    with refuses(Code.REQUEST, "at most"):
        planned(f"stale-pipeline:on=simulated,stages={stages}", Job("lenet5", 8), load_machine("h100"))


def test_devices_that_share_the_hosts_memory_stage_nothing():
    plans = [planned(f"stale-pipeline:placement=4{more}", JOB, devices(2)) for more in ("", ",sends=staged")]
    assert plans[0].tasks == plans[1].tasks


FUSED = ("model-parallel", "gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "zero-bubble:shape=v")
UPDATES = ("update=forward-fusion", "update=backward-fusion", "update=asynchronous")
SYNCHRONOUS = (*FUSED, "zero-bubble:memory=free", *(with_options(text, update) for text in FUSED for update in UPDATES))
STALE = (
    "pipedream", "pipedream-2bw", "stale-pipeline", "stale-pipeline:first=backward", "stale-pipeline:backward_weights=stashed",
    "stale-pipeline:on=simulated,stages=4", "stale-pipeline:on=simulated,stages=3,backward_weights=stashed",
    "hybrid-pipeline", "hybrid-pipeline:then=gpipe,backward_weights=stashed", "hybrid-pipeline:on=simulated,stages=3,then=1f1b",
)  # fmt: skip


def job(name: str, batch: int = 8, **fields) -> Job:
    return job_of(name, batch, **fields)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("strategy", SYNCHRONOUS + STALE)
@pytest.mark.parametrize("training", [job("residual", optimizer="adam"), job("chain", form="for")], ids=["residual", "chain"])
def test_numbers_are_those_of_the_reference_trainer(strategy, training):
    """That is plain PyTorch with as many microbatches, or one mini-batch after another with old weights put into the module."""
    machine = this_cpu(devices=2)
    assert largest_error(training, plan_pipeline(strategy, training, machine), CpuBackend(machine), 6) == 0.0


@pytest.mark.parametrize("options", ["", ",backward_weights=stashed"])
def test_batch_norm_trains_with_its_backward_on_another_device(options):
    """In training, backward needs the statistics of the batch, not the running ones, which stay with the forward."""
    training, machine = job_of("batch_norm"), devices(3)
    plan = plan_pipeline(f"stale-pipeline:on=unfolded,placement=1{options}", training, machine)
    backend = CpuBackend(machine, cores=3 * available_cores())
    of_norm = {task.phase: task.device for task in plan.tasks if "batch_norm" in task.name and not task.body.is_copy}
    assert of_norm[FORWARD_PHASE] != of_norm[BACKWARD]
    assert largest_error(training, plan, backend, 6) == 0.0
    built = training.build()
    program = backend.load(plan, job_tensors(training, built, training.graph()))
    program.run(5)
    newest = {name: torch.zeros_like(tensor) for name, tensor in built.module.state_dict().items() if "running" in name}
    program.copy_current(newest)
    trainer = reference(training, built, False, stale=staleness(plan))
    for _ in range(5):  # the first stage's forward has had five mini-batches
        trainer.step()
    for name, tensor in newest.items():
        torch.testing.assert_close(tensor, built.module.state_dict()[name], rtol=1e-9, atol=1e-12)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("strategy", FUSED)
def test_backward_fusion_updates_each_layer_during_the_last_backward_of_its_stage(strategy):
    """Each layer's update comes right after the last task that uses its gradients or parameters, and most come before a stage's last op."""
    training, machine = job("chain"), devices(2)
    plan = plan_pipeline(with_options(strategy, "update=backward-fusion"), training, machine)
    order = {task.name: number for number, task in enumerate(plan.tasks)}
    updates = [task for task in plan.tasks if task.phase == UPDATE]
    assert sorted(name for task in updates for name in task.body.parameters) == sorted(training.graph().parameters)
    for update in updates:
        used = {plan.storage_of(operand) for operand in (*update.reads, *update.mutates)}
        users = [task for task in plan.tasks if task is not update and used & {plan.storage_of(o) for o in (*task.inputs, *task.writes)}]
        assert order[update.name] == max(order[task.name] for task in users) + 1
    last = {task.device: order[task.name] for task in plan.tasks if task.phase == BACKWARD}
    early = [task for task in updates if order[task.name] < last[task.device]]
    assert {task.device for task in early} == set(last), "every stage updates some layer before its backward ends"


def test_the_reference_with_stale_weights_is_not_plain_training():
    """Otherwise the test above would prove nothing."""
    training, machine = job("chain", lr=0.3), this_cpu(devices=2)
    built, backend = training.build(), CpuBackend(machine)
    references = References(training, built, 6, backend)
    stale, stashed, plain = (
        references.of(plan_pipeline(text, training, machine)).parameters
        for text in ("stale-pipeline", "stale-pipeline:backward_weights=stashed", "gpipe:microbatches=1")
    )
    for one, other in ((stale, plain), (stale, stashed), (stashed, plain)):
        assert any(not torch.equal(one[name], other[name]) for name in plain)


def test_tied_weights_train_across_a_cut_but_not_in_two_versions():
    training, machine = job("tied"), this_cpu(devices=2)
    assert largest_error(training, plan_pipeline("gpipe:placement=1", training, machine), CpuBackend(machine)) < 1e-12
    with refuses(Code.MODEL, r"two stages use table\.weight.*tied weights must be on one stage"):
        plan_pipeline("stale-pipeline:placement=1", training, machine)


@pytest.mark.parametrize(("pairs", "staleness"), [(1, [2, 0]), (2, [4, 2, 0]), (3, [6, 4, 2, 0])])
@pytest.mark.parametrize("where", ["folded", "unfolded", "simulated"])
def test_staleness_is_that_of_the_paper(pairs, staleness, where):
    """Forward of stage i of K + 1 reads weights 2(K - i + 1) updates old, backward the current ones, wherever the stages are."""
    plan = plan_pipeline(f"stale-pipeline:on={where},stages={pairs + 1}", job("chain", 2), devices(2 * pairs + 1))
    assert plan.semantics["staleness_by_stage"] == staleness
    backward = plan.semantics["backward_staleness_by_stage"]
    assert backward == [0] * (pairs + 1)
    assert plan.semantics["versions_by_stage"] == [1] * (pairs + 1)
    assert len(plan.devices) == {"folded": pairs + 1, "unfolded": 2 * pairs + 1, "simulated": 1}[where]


def test_other_pipelines_state_theirs():
    machine, training = devices(4), job("chain", 16)
    stale = {
        text: plan_pipeline(text, training, machine).semantics for text in ("pipedream", "pipedream-2bw", "stale-pipeline:first=backward")
    }
    assert stale["pipedream"]["staleness_by_stage"] == stale["pipedream"]["backward_staleness_by_stage"] == [3, 2, 1, 0]
    assert stale["pipedream"]["versions_by_stage"] == [4, 3, 2, 1]
    assert stale["pipedream-2bw"]["staleness_by_stage"] == stale["pipedream-2bw"]["backward_staleness_by_stage"] == [1] * 4
    assert stale["pipedream-2bw"]["versions_by_stage"] == [2] * 4
    assert stale["stale-pipeline:first=backward"]["staleness_by_stage"] == [5, 3, 1, 0], "one less, but for the last stage"
    assert plan_pipeline("gpipe", training, machine).semantics["staleness"] == 0
    assert stale["pipedream"]["placement"] == "3-5-7", "of 8 equal layers, only the last one is not stale"
    assert stale["pipedream"]["stale_weights"] == 7 / 8


@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_a_mini_batch_takes_as_many_cycles_as_the_table_says(pairs):
    """M mini-batches take M + 2K cycles: the last tasks of the first one run 2K periods after it went in."""
    plan = plan_pipeline(f"stale-pipeline:on=simulated,stages={pairs + 1}", job("chain", 2), devices(1))
    assert max(task.lag for task in plan.tasks) == 2 * pairs
    assert {task.lag for task in plan.tasks if task.phase == UPDATE} == {2 * pairs - stage for stage in range(pairs + 1)}


@pytest.mark.parametrize(("strategy", "order"), [("gpipe", orders.gpipe_order), ("1f1b", orders.one_f_one_b_order)])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 4), (4, 8)])
def test_the_engine_takes_the_time_that_the_schedule_takes(strategy, order, stages, microbatches):
    """The oracle runs each rank's actions in order, with the summed seconds of their ops, as an independent few lines."""
    machine = devices(stages)
    plan = plan_pipeline(f"{strategy}:microbatches={microbatches}", job("chain", 16), machine)
    model = costs(plan, machine)
    seconds = [cost.cold_s for cost in model.resolve(plan)]

    def of(action: Action) -> float:
        phase = "forward" if action.kind == FORWARD else "backward"
        place = (f"cpu:{action.stage}", phase, action.microbatch)
        return sum(s for task, s in zip(plan.tasks, seconds, strict=True) if (task.device, task.phase, task.microbatch) == place)

    update_s = max(s for task, s in zip(plan.tasks, seconds, strict=True) if task.phase == UPDATE)
    expected = makespan_s(timed(order(stages, microbatches), of))
    step_s = simulate(plan, machine, model.resolve(plan)).step_s
    assert expected - 1e-12 <= step_s <= expected + update_s + 1e-12
    assert all(task.body.means == "alias" for task in plan.tasks if task.phase == TRANSFER)


def test_a_pipeline_with_fewer_bubbles_is_predicted_to_be_faster():
    machine = load_machine("p100x4")
    model = CostModel(machine)
    training = Job("vgg16", 64)
    step_s = {
        text: forecast(plan_of(training, text, Target(machine, model)), Target(machine, model)).timeline.step_s
        for text in ("model-parallel", "gpipe:microbatches=8", "zero-bubble:microbatches=8,memory=free", "stale-pipeline")
    }
    assert step_s["stale-pipeline"] < step_s["zero-bubble:microbatches=8,memory=free"] < step_s["gpipe:microbatches=8"]
    assert step_s["gpipe:microbatches=8"] < step_s["model-parallel"]


@pytest.mark.parametrize(
    ("strategy", "fields", "said"),
    [
        ("gpipe:stages=3", {}, "needs 3 devices, there are 2"),
        ("gpipe:microbatches=3", {}, "--batch 8 does not divide into 3 microbatches; choose one of 1, 2, 4, 8"),
        ("gpipe:placement=9", {}, "out of range"),
        ("gpipe:placement=a-b", {}, "expected the layers before each cut, such as 3-5-7"),
        ("gpipe:placement=2-4,stages=2", {}, "makes 3 stages, but stages is 2"),
        ("gpipe:stages=-1", {}, "expected at least 1, or 0 for the default"),
        ("gpipe:microbatches=4", {"accumulate": 2}, "give one of the two"),
        ("gpipe", {"clip_norm": 1.0}, "cannot clip by the global norm"),
        ("model-parallel:microbatches=2", {}, "use gpipe for several"),
        ("interleaved-1f1b:stages=5", {}, "5 stages do not divide among devices that take 2 each"),
        ("interleaved-1f1b:per_device=0", {}, "expected at least 1"),
        ("interleaved-1f1b:per_device=5", {}, "cannot cut 8 units into 10 stages"),
        ("zero-bubble:shape=v,stages=3", {}, "choose an even number"),
        ("stale-pipeline", {"accumulate": 2}, "use pipedream-2bw"),
        ("stale-pipeline:on=unfolded", {}, "needs an odd number of devices"),
        ("pipedream-2bw:microbatches=1", {}, "at least as many microbatches as stages"),
        ("hybrid-pipeline:pipelined=1", {}, "pipelined is 1; expected a share of the iterations between 0 and 1"),
        ("hybrid-pipeline:pipelined=nan", {}, "expected a share of the iterations between 0 and 1"),
        ("hybrid-pipeline:iterations=1", {}, "hybrid-pipeline has two parts, iterations is 1"),
        ("hybrid-pipeline:microbatches=2", {}, "microbatches=2 goes with then=gpipe or 1f1b, and then is model-parallel"),
        ("hybrid-pipeline:then=gpipe,microbatches=3", {}, "--batch 8 does not divide into 3 microbatches"),
        ("hybrid-pipeline", {"accumulate": 2}, "hybrid-pipeline updates after each mini-batch"),
    ],
)
def test_unusable_options_are_one_line(strategy, fields, said):
    with pytest.raises(SchedcastError, match=said.replace("(", r"\(")):
        plan_pipeline(strategy, job("chain", **fields), this_cpu(devices=2))


# Pipelines over links whose receives block: none of them deadlocks, unless receives are issued late.


def chain() -> Job:
    """A chain of eight equal layers."""
    return job_of("chain", 16)


def linked(count: int, receives: str) -> Machine:
    """Devices with a link between any two of them."""
    names = [f"cpu:{number}" for number in range(count)]
    each = tuple(Device(name, "cpu", 1, {"fp32": 1e12, "fp64": 1e12}, "ram", priority_levels=2) for name in names)
    links = tuple(Link(a, b, 1e-6, 1e9) for a in names for b in names if a != b)
    return Machine("made up", each, (Memory("ram", 1 << 40, 1e15, 1),), links=links, receives=receives)


PIPELINES = ("model-parallel", "gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "zero-bubble:memory=free", "zero-bubble:shape=v")


@pytest.mark.sampled(12)
@pytest.mark.parametrize("strategy", [*PIPELINES, "stale-pipeline", "pipedream", "pipedream-2bw"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_no_pipeline_deadlocks_if_receives_are_issued_in_the_order_of_the_plan(strategy, ranks):
    machine = linked(ranks, "blocking")
    for microbatches in (4, 8) if strategy in PIPELINES[1:] or strategy == "pipedream-2bw" else (1,):
        name, _, options = strategy.partition(":")
        options = ",".join(filter(None, (options, f"microbatches={microbatches}" if microbatches > 1 else "")))
        plan = plan_pipeline(f"{name}:{options}" if options else name, chain(), machine)
        costs = CostModel(machine).resolve(plan)
        free, blocking = (simulate(plan, linked(ranks, receives), costs) for receives in ("free", "blocking"))
        assert blocking.step_s >= free.step_s * (1 - 1e-9)


def test_late_receives_deadlock_in_1f1b_as_they_do_without_batched_messages():
    """The first rank sends its second forward while the last one sends its first gradient (pytorch #172668)."""
    with pytest.raises(PlanError, match=r"cpu:0 waits to send .*, cpu:1 to send"):
        plan_pipeline("1f1b:microbatches=4", chain(), linked(2, "late"))
    plan_pipeline("gpipe:microbatches=4", chain(), linked(2, "late"))


def test_a_prediction_takes_them_into_account():
    step_s = []
    for receives in ("free", "blocking"):
        machine = linked(2, receives)
        plan = plan_pipeline("1f1b:microbatches=8", chain(), machine)
        step_s.append(forecast(plan, Target.of(CostModel(machine))).timeline.step_s)
    assert step_s[0] < step_s[1]


def test_the_executor_on_cores_keeps_the_order_and_computes_the_same():
    machine = this_cpu(devices=2, link="copy:1,blocking")
    plan, training, backend = plan_pipeline("1f1b:microbatches=4", chain(), machine), chain(), CpuBackend(machine)
    assert largest_error(training, plan, backend, 3) == 0.0


# Pipelines whose devices are processes: values cross a cut as messages, on a machine with a library.


SMALL_JOB = Job("lenet5", 8)


def in_ranks(text: str, ranks: int, library: str):
    machine = this_cpu(cores=1, devices=ranks, library=library)
    return planned(text, SMALL_JOB, machine)


@pytest.mark.parametrize("text", ["gpipe", "1f1b", "interleaved-1f1b", "pipedream", "stale-pipeline", "model-parallel"])
def test_every_task_runs_in_one_process_and_every_copy_in_two(text):
    plan = in_ranks(text, 2, "gloo")
    copies = [index for index, task in enumerate(plan.tasks) if between_devices(task)]
    assert copies
    assert {plan.tasks[index].body.means for index in copies} == {"link"}  # no process has a second name for another's memory
    shares = [local_plan(plan, device) for device in plan.devices]
    assert sorted(index for share in shares for index in share.numbers) == sorted([*range(len(plan.tasks)), *copies])


def test_a_receive_waits_for_nothing_but_its_lane():
    """It is posted before the sender arrives, so that the message never waits for the receiver's compute stream."""
    share = local_plan(in_ranks("1f1b", 2, "gloo"), "cpu:1")
    edges = Dependencies(share).edges(0)
    receives = [index for index, task in enumerate(share.tasks) if task.writes and task.phase == "transfer"]
    assert receives
    assert [edges[index] for index in receives] == [()] * len(receives)


def test_losses_and_gradients_are_on_the_ranks_of_their_stages():
    plan = in_ranks("gpipe", 2, "gloo")
    first, last = (local_plan(plan, device) for device in plan.devices)
    assert (len(first.losses), last.losses) == (0, plan.losses)
    assert {**first.gradients, **last.gradients} == dict(plan.gradients)
    assert not first.gradients.keys() & last.gradients.keys()


# Data parallelism over many devices: equal devices do the same at the same time, and the tasks of all devices count.


RANKED = Job("lenet5", 32)


def two_nodes(devices: int = 16) -> Machine:
    return load_machine("2xdgx-a100", devices=devices)


@pytest.mark.parametrize("update", ["baseline", "forward-fusion", "backward-fusion"])
@pytest.mark.parametrize("more", [{}, {"bucket": 0}, {"overlap": False, "fetch": False}])
def test_equal_devices_do_the_same_at_the_same_time(update, more):
    machine = replace(two_nodes(4), hosts=())  # the first device's host also issues the collectives
    model = CostModel(machine)
    plan = data_parallel.plan(RANKED, machine, model, Options(update=update, **more))
    spans = simulate(plan, machine, model.resolve(plan), iterations=3).spans
    first, *others = (
        [(s.phase, s.layer, s.start_s, s.end_s) for s in spans if s.device == device.name and s.phase != "collective"]
        for device in machine.devices
    )
    assert first
    assert all(other == first for other in others)


def test_a_prediction_counts_the_tasks_of_all_devices():
    machine = two_nodes()
    model = CostModel(machine)
    replicated = forecast(data_parallel.plan(RANKED, machine, model, Options()), Target(machine, model))
    alone = forecast(baseline.plan(RANKED, machine, model, baseline.Options()), Target(machine, model))
    assert prediction(replicated, alone, "fp32").tasks == len(replicated.timeline.spans) >= 3 * len(replicated.plan.tasks)
    assert len(replicated.plan.tasks) > 16 * len(alone.plan.tasks)  # besides, there are fetches of the batch and reductions


def test_equal_devices_share_costs_and_others_have_their_own():
    machine = two_nodes(3)
    slow = replace(machine.devices[1], peak_flops={"fp32": 1e12}, name="cuda:1")
    mixed = replace(machine, devices=(machine.devices[0], slow, machine.devices[2]))
    job = replace(RANKED, batch=3)
    model = CostModel(mixed)
    plan = data_parallel.plan(job, mixed, model, Options())
    costs = {
        device: [
            cost for task, cost in zip(plan.tasks, model.resolve(plan), strict=True) if task.device == device and task.phase == "forward"
        ]
        for device in plan.devices
    }
    assert all(a is b for a, b in zip(costs["cuda:0"], costs["cuda:2"], strict=True))
    assert sum(c.cold_s for c in costs["cuda:1"]) > sum(c.cold_s for c in costs["cuda:0"])


def exposed_s(nodes: int, replicas: int, network_bytes_per_s: float | None = None) -> float:
    """Exposed seconds of the gradients of replicas that are spread evenly over the first of 16 nodes of 4 T4."""
    whole = load_machine("16xg4dn-12xlarge")
    chosen = {f"cuda:{4 * node + slot}" for node in range(nodes) for slot in range(replicas // nodes)}
    ends = {*chosen, *(f"bridge {node}" for node in range(nodes)), HOST, NETWORK}
    links = [link for link in whole.links if {link.source, link.target} <= ends]
    if network_bytes_per_s is not None:
        slow = {"bandwidth_bytes_per_s": network_bytes_per_s}
        links = [replace(link, **slow) if NETWORK in (link.source, link.target) else link for link in links]
    machine = replace(
        whole,
        devices=tuple(device for device in whole.devices if device.name in chosen),
        hosts=tuple(host for host in whole.hosts if host.devices[0] in chosen),
        links=tuple(links),
    )
    model = CostModel(machine)
    plan = data_parallel.plan(Job("lenet5", 8 * replicas), machine, model, Options(fetch=False))
    return simulate(plan, machine, model.resolve(plan)).exposed_transfer_s


def test_gradients_take_longer_over_more_nodes_and_a_slower_network():
    one_gpu_each = [exposed_s(nodes, nodes) for nodes in (2, 4, 8)]
    assert one_gpu_each == sorted(set(one_gpu_each))
    of_four = [exposed_s(nodes, 4) for nodes in (1, 2, 4)]
    assert of_four == sorted(set(of_four))  # each hop between nodes takes the network's latency
    assert exposed_s(4, 4, network_bytes_per_s=1e9) > one_gpu_each[1]
