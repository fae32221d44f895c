"""In float64, every strategy of the registry, optimizer and form trains exactly as plain PyTorch does, or as weights as stale do."""

import random
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import networkx
import pytest

from calibrate.numerics import STEPS, Expected, References, compare, reference
from executors.cpu.backend import CpuBackend
from executors.cuda.backend import CudaBackend
from executors.cuda.graphs import GraphProgram
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.bodies.update import STATE, forms, rate_at
from simulator.plan.editor.editor import hazards_within
from simulator.plan.editor.order import Entry, Order
from simulator.plan.json import dump, load
from simulator.plan.plan import Plan
from simulator.strategies import registry as strategies
from tests.fake_gpu import FakeGpu
from tests.support import models, real_models
from tests.support.applicable import core_groups, default_plans, plan_unless_refused, specs
from tests.support.jobs import MLP, job_of, planned
from tests.support.places import USER_MODELS
from tests.support.refusals import refuses
from tests.support.same_numbers import assert_trains_alike
from traces.errors import Code, SchedcastError

MODELS = USER_MODELS
LIMIT = 1e-10


@cache  # with its graph: a user's model is captured for each new job
def made(path: Path, **fields) -> Job:
    return Job(f"{path}:make", 4, precision="fp64", **fields)


@cache
def references(path: Path):
    """A job, its model, and the references: plain PyTorch with as many microbatches, or with weights as stale as the plan's."""
    job = made(path)
    built = job.build()
    return job, built, References(job, built, STEPS, None)


@pytest.fixture(scope="module")
def backends(two_cores, backend):
    """The machine and the executor with a given number of devices."""

    @cache
    def of(devices: int):
        if devices == 1:
            return two_cores, backend
        machine = core_groups(devices)
        return machine, CpuBackend(machine)

    return of


def unless(usual: bool) -> tuple:
    """The marks of a case: none for a usual one, which `make test` runs."""
    return () if usual else (pytest.mark.thorough,)


#: Every model with every strategy. The usual third has every strategy with two or three of the models.
CASES = [
    pytest.param(path, spec, marks=unless((i + j) % 3 == 0), id=f"{path.stem}-{spec}")
    for i, path in enumerate(MODELS)
    for j, spec in enumerate(specs())
]


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("path", "spec"), CASES)
def test_five_steps_equal_plain_pytorch(path, spec, backends):
    machine, executor = backends(strategies.parse(spec)[0].least_devices)
    plan = plan_unless_refused(spec, made(path), machine)
    if plan is None:
        pytest.skip(f"{spec} does not apply to {path.stem}")
    job, built, expected = references(path)
    numerics = compare(job, built, plan, executor, expected.of(plan))
    assert numerics.max_grad_error <= LIMIT
    assert numerics.max_param_error <= LIMIT


#: Three models with every optimizer. The usual third has every optimizer once.
TRAINED = [
    pytest.param(model, optimizer, marks=unless((i + j) % 3 == 0), id=f"{model}-{optimizer}")
    for i, model in enumerate(("tied_cnn", "language_model", "frozen_regression"))
    for j, optimizer in enumerate(STATE)
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("model", "optimizer"), TRAINED)
def test_every_form_of_every_optimizer(model, optimizer, two_cores, backend):
    path = next(p for p in MODELS if p.stem == model)
    for form in forms(optimizer):
        job = made(path, optimizer=optimizer, form=form)
        built = job.build()
        expected = Expected.of(job, built)
        for strategy, plan in default_plans(job, two_cores).items():
            numerics = compare(job, built, plan, backend, expected)
            assert max(numerics.max_grad_error, numerics.max_param_error) <= LIMIT, (form, strategy)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_clipping_and_accumulation(path, two_cores, backend):
    job = made(path, accumulate=2, clip_norm=0.05, optimizer="adam")
    built = job.build()
    expected = Expected.of(job, built)
    compared = set()
    for strategy in strategies.names(1):
        try:
            plan = plan_unless_refused(strategy, job, two_cores)
        except SchedcastError as error:
            if "cannot clip by the global norm" not in str(error):
                raise
            continue
        if plan is not None:
            numerics = compare(job, built, plan, backend, expected)
            assert max(numerics.max_grad_error, numerics.max_param_error) <= LIMIT, strategy
            compared.add(strategy)
    assert compared >= {"baseline", "forward-fusion"}


def test_backward_fusion_updates_on_the_last_microbatch(two_cores, backend):
    job = made(MODELS[0], accumulate=2)
    built = job.build()
    plan = planned("backward-fusion", job, two_cores)
    updates = [i for i, task in enumerate(plan.tasks) if task.phase == "update"]
    last_forward = max(i for i, task in enumerate(plan.tasks) if task.phase == "forward")
    assert min(updates) > last_forward
    assert compare(job, built, plan, backend, Expected.of(job, built)).max_param_error <= LIMIT


def test_backward_fusion_refuses_global_norm_clipping(two_cores):
    with refuses(Code.MODEL):
        planned("backward-fusion", made(MODELS[0], clip_norm=1.0), two_cores)


def test_the_comparison_notices_a_missing_update(two_cores, backend):
    from dataclasses import replace

    job = made(MODELS[0])
    built = job.build()
    plan = planned("forward-fusion", job, two_cores)
    first = next(task for task in plan.tasks if task.phase == "update")
    broken = replace(plan, tasks=tuple(t for t in plan.tasks if t is not first))
    assert compare(job, built, broken, backend, Expected.of(job, built)).max_param_error > 1e-6


# Every order of tasks that a plan's dependencies allow, on any streams, computes plain PyTorch's numbers: nothing else may decide them.


def shuffled(plan: Plan, machine: Machine, rng: random.Random) -> Plan:
    """The plan with its tasks in a random order that its hazards allow, each task that computes on a random stream."""
    entries: list[Entry] = []
    for part in plan.sequence:
        order = networkx.DiGraph([(hazard.before, hazard.after) for hazard in hazards_within(part, machine)])
        order.add_nodes_from(range(len(part.tasks)))
        for index in networkx.lexicographical_topological_sort(order, key=lambda _: rng.random()):
            task = part.tasks[index]
            stream = rng.randrange(3) if task.body.ends is None and not task.body.crosses_devices else task.stream
            entries.append(Entry(task.name, task.device, stream, rng.randrange(3)))
    return Order(tuple(entries)).applied(plan)


@pytest.mark.thorough
@pytest.mark.parametrize("path", USER_MODELS, ids=lambda path: path.stem)
def test_random_orders_of_every_strategy_equal_plain_pytorch(path):
    job, machine, rng = Job(f"{path}:make", 4, precision="fp64"), core_groups(2), random.Random(path.stem)
    built, backend = job.build(), CpuBackend(machine)
    plans = default_plans(job, machine)
    expected = References(job, built, 2, None)
    assert len(plans) > 4
    for plan in sorted(plans.values(), key=lambda plan: str(References.key(plan))):
        numerics = compare(job, built, shuffled(plan, machine, rng), backend, expected.of(plan), 2)
        assert max(numerics.max_grad_error, numerics.max_param_error) <= 1e-10, plan.strategy


# Small models of the families that libraries have, with masks, relative positions and tied weights, train as in plain PyTorch.


#: Library -> models of tests.support.real_models.
FAMILIES = {
    "timm": ("swin", "beit", "levit"),
    "transformers": ("bert", "gpt2_mask", "t5", "bart", "llama_tied"),
}


def real_job(library: str, name: str) -> Job:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    return Job(f"{real_models.__file__}:{name}", 2, precision="fp64", optimizer="sgd")


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("library", "name"), [(library, name) for library, names in FAMILIES.items() for name in names])
def test_families_train_as_in_plain_pytorch(library, name, two_cores, backend):
    assert_trains_alike(real_job(library, name), two_cores, backend)


@pytest.mark.thorough
def test_a_mixture_of_experts_trains_as_in_plain_pytorch(two_cores, backend):
    """Its products of groups, one for each expert, compute in float32."""
    assert_trains_alike(replace(real_job("transformers", "mixtral"), precision="fp32"), two_cores, backend)


#: Library -> models of tests.support.real_models whose layers two devices divide. Llama's norms compute in float32.
DIVIDED = {
    "timm": ("vit", "swin", "beit", "convnext", "mixer"),
    "transformers": ("gpt2_mask", "bert", "t5", "bart", "whisper", "llama_tied"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("library", "name"), [(library, name) for library, names in DIVIDED.items() for name in names])
def test_families_whose_layers_are_divided_train_as_in_plain_pytorch(library, name, backends):
    machine, executor = backends(2)
    job = replace(real_job(library, name), precision="fp32" if "llama" in name else "fp64")
    assert_trains_alike(job, machine, executor, ("fsdp:tp=2", "fsdp:tp=2,sp=off"))


# Loops over cells, results written into given tensors, CTC loss, distinct elements and odd filters: they run with equal numbers.


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", models.UNUSUAL)
def test_unusual_models_train_as_in_plain_pytorch(name, two_cores, backend):
    job = job_of(name, optimizer="sgd")
    assert_trains_alike(job, two_cores, backend)


@pytest.mark.thorough
@pytest.mark.parametrize("name", models.UNUSUAL)
def test_unusual_models_whose_layers_are_divided_train_as_in_plain_pytorch(name, backends):
    job = job_of(name, optimizer="sgd")
    assert_trains_alike(job, *backends(2), ("fsdp:tp=2",))


def test_a_loop_over_a_cell_is_captured_with_all_of_its_steps():
    ops = job_of("lstm_cell_in_a_loop", optimizer="sgd").graph().ops
    of_cell = [op for op in ops if op.layer == "cell" and op.phase == "forward" and "addmm" in op.body.target]
    assert len(of_cell) == 2 * 6


def test_a_depthwise_convolution_is_not_split_by_group(two_cores):
    job = job_of("depthwise_filter_longer_than_the_image", optimizer="sgd")
    names = [task.name for task in planned("turbodl", job, two_cores).tasks]
    assert "layer/convolution" in names
    assert not [name for name in names if "group" in name]


# Learning rates by phase: every backend trains as plain PyTorch does when its optimizer's rate is changed between steps.


#: Phases that begin within a graph of four steps, after three eager ones: in the first graph, and in the third.
SCHEDULE = "0:0.1,5:0.02,13:0.003"
RATE_STEPS = 17


@pytest.mark.parametrize("optimizer", STATE)
def test_the_reference_changes_the_rate_before_the_step(optimizer):
    job = Job(MLP, 6, precision="fp64", optimizer=optimizer, lr_schedule="2:0.02,4:0.003")
    scheduled, by_hand = (
        reference(job, job.build(), False),
        reference(Job(MLP, 6, precision="fp64", optimizer=optimizer), job.build(), False),
    )
    for step in range(6):
        for group in by_hand.optimizer.param_groups:
            group["lr"] = {2: 0.02, 4: 0.003}.get(step, group["lr"])
        assert scheduled.step() == by_hand.step()


@pytest.mark.parametrize("optimizer", STATE)
def test_every_optimizer_follows_the_schedule(optimizer):
    machine = load_machine("this-cpu")
    job = Job(MLP, 6, precision="fp64", optimizer=optimizer, lr_schedule=SCHEDULE)
    plan, built, backend = planned("forward-fusion", job, machine), job.build(), CpuBackend(machine)
    assert compare(job, built, plan, backend, Expected.of(job, built, RATE_STEPS), RATE_STEPS).equal("fp64")
    one_rate = Expected.of(Job(MLP, 6, precision="fp64", optimizer=optimizer), built, RATE_STEPS)
    assert not compare(job, built, plan, backend, one_rate, RATE_STEPS).equal("fp64")


@pytest.mark.parametrize("strategy", ["baseline", "backward-fusion", "stale-pipeline:on=simulated"])
def test_an_update_has_the_rate_of_its_own_mini_batch(strategy):
    machine = load_machine("this-cpu")
    job = Job("lenet5", 2, precision="fp64", lr_schedule=SCHEDULE)
    plan, built, backend = planned(strategy, job, machine), job.build(), CpuBackend(machine)
    assert compare(job, built, plan, backend, References(job, built, RATE_STEPS, backend).of(plan), RATE_STEPS).equal("fp64")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("strategy", ["baseline", "forward-fusion"])
@pytest.mark.parametrize("optimizer", ["nesterov", "adam"])
def test_a_graph_is_captured_again_only_for_other_rates(strategy, optimizer, monkeypatch):
    machine, gpu, captures = load_machine("h200"), FakeGpu(), []
    capture = GraphProgram._capture
    monkeypatch.setattr(GraphProgram, "_capture", lambda program, marks=None: captures.append(program._period) or capture(program, marks))
    job = Job(MLP, 4, precision="fp64", optimizer=optimizer, lr_schedule=SCHEDULE)
    plan, built, backend = planned(strategy, job, machine), job.build(), CudaBackend(machine, gpu, "graph")
    steps = 3 + 4 * 8
    with gpu:
        assert compare(job, built, plan, backend, Expected.of(job, built, steps, backend), steps).equal("fp64")
    # Both rates in one graph; the second rate; both; the third. Graphs begin with the periods 3, 7, 11 and so on.
    assert captures == [3, 7, 11, 15]


def test_plans_with_rates_go_to_json_and_text_and_back():
    plan = planned("baseline", Job(MLP, 4, lr_schedule="3:0.01,9:1e-3"), load_machine("h200"))
    assert plan.tasks[-1].body.rates == ((3, 0.01), (9, 0.001))
    assert load(dump(plan)) == plan


def test_a_rate_holds_until_the_next():
    rates = ((0, 0.1), (300, 0.01))
    assert [rate_at(rates, iteration) for iteration in (0, 299, 300, 10_000)] == [0.1, 0.1, 0.01, 0.01]
    assert rate_at(((5, 0.1),), 4) is None  # that of --lr


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lr_schedule": ""}, "'' is not ITERATION:RATE"),
        ({"lr_schedule": "0.1"}, "'0.1' is not ITERATION:RATE; give it as in 0:0.1,300:0.01"),
        ({"lr_schedule": "0:0.1,"}, "'' is not ITERATION:RATE"),
        ({"lr_schedule": "0:fast"}, "'0:fast' is not"),
        ({"lr_schedule": "0:-1"}, "'0:-1' is not"),
        ({"lr_schedule": "0:nan"}, "'0:nan' is not"),
        ({"lr_schedule": "-3:0.1"}, "'-3:0.1' is not"),
        ({"lr_schedule": "0:0.1,300:0.01,300:0.001"}, "iteration 300 does not come after 300"),
        ({"lr_schedule": "0:0.1", "lr": 0.2}, "drop --lr"),
    ],
)
def test_an_unusable_schedule_is_refused(fields, message):
    with refuses(Code.REQUEST, message):
        Job(MLP, 4, **fields)
