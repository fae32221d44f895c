"""Which tasks a strategy makes, in which order: golden plans of a small network, and rules that hold for every model."""

import pickle
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import get_type_hints

import pytest

import simulator.strategies
from calibrate.numerics import Expected, compare
from simulator.engine.costs.cost import PlanCosts
from simulator.engine.costs.model import CostModel
from simulator.engine.recipes import resident_shares
from simulator.machine.machine import Machine
from simulator.machine.presets import load_machine
from simulator.machine.scaled import Scale, scaled
from simulator.model.job import Job
from simulator.model.ops.aten_json import resolve
from simulator.plan.check import PlanError
from simulator.plan.dependencies import dependencies_of
from simulator.plan.plan import Plan, program
from simulator.plan.task import UPDATE
from simulator.plan.text import outline
from simulator.strategies import registry as strategies
from tests.support.applicable import plan_unless_refused, specs
from tests.support.golden import check_golden
from tests.support.jobs import MLP, mlp_plan, planned
from tests.support.places import USER_MODELS
from tests.support.refusals import refuses
from tests.support.small_plans import forward_fused, machine
from traces.errors import Code, SchedcastError

MODELS = USER_MODELS
STRATEGIES = [*specs(1), "turbodl:async=off", "turbodl:fuse=backward,update=callback"]
#: The outlines (`simulator.plan.text`) of the plans of two linear layers, one file per strategy.
GOLDEN = Path(__file__).with_name("golden")


def places(plan) -> dict[str, int]:
    """Position of each task in the issue order."""
    return {task.name: position for position, task in enumerate(plan.tasks)}


@pytest.mark.parametrize("strategy", ["baseline", "forward-fusion", "backward-fusion", "backward-fusion:update_stream=on"])
def test_golden_plan(strategy, two_cores):
    check_golden(outline(mlp_plan(strategy, two_cores)), GOLDEN / f"{strategy.replace(':', '-')}.txt")


def test_the_for_loop_form_updates_parameter_by_parameter(two_cores):
    plan = mlp_plan("baseline", two_cores, form="for")
    assert [task.name for task in plan.tasks if task.phase == UPDATE] == [
        "0.weight/update", "0.bias/update", "2.weight/update", "2.bias/update",
    ]  # fmt: skip


@pytest.mark.sampled(15)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_race_rule(path, strategy, two_cores):
    """An update comes after every task that reads the old value, and before every task that reads the new one."""
    plan = plan_unless_refused(strategy, Job(f"{path}:make", 4), two_cores)
    if plan is None:
        pytest.skip(f"{strategy} does not apply to {path.stem}")
    plan.validate(two_cores)
    iteration_of: dict[str, list[int]] = {}  # parameter -> iterations of the tasks that touch it, in program order
    for period, _, task in program(plan.tasks, 4):
        iteration = period - task.lag
        for operand in {plan.storage_of(o): o for o in task.inputs}.values():
            if plan.values[operand.value].kind == "parameter" and operand.value in plan.gradients:
                iteration_of.setdefault(plan.storage_of(operand), []).append(2 * iteration + (task.phase == UPDATE))
    assert len(iteration_of) == len({plan.values[name].storage for name in plan.gradients})
    for name, order in iteration_of.items():
        assert order == sorted(order), name  # readers of iteration i, its update, readers of iteration i + 1
        assert {2 * i + 1 for i in range(4)} <= set(order), name
        assert len([1 for item in order if item % 2]) == 4, name


@pytest.mark.thorough
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_no_order_changes_a_number_in_float32(path, two_cores, backend):
    """No task is a view. Layers deep-copied under fake tensors once had such tasks, which hid readers of the old value."""
    job = Job(f"{path}:make", 8)
    assert not [op.name for op in job.graph().ops if resolve(op.body.target).is_view]
    built = job.build()
    expected_numbers = Expected.of(job, built)
    for strategy in STRATEGIES:
        plan = plan_unless_refused(strategy, job, two_cores)
        if plan is not None:
            numerics = compare(job, built, plan, backend, expected_numbers)
            assert max(numerics.max_grad_error, numerics.max_param_error) <= 1e-5, strategy


def test_a_shared_layer_is_updated_once(two_cores):
    forward, backward = (mlp_plan(name, two_cores, "shared") for name in ("forward-fusion", "backward-fusion"))
    for plan in (forward, backward):
        assert sorted(task.name for task in plan.tasks if task.phase == UPDATE) == ["inner/update", "outer/update"]
    at = places(forward)
    assert at["inner/update"] < at["inner/addmm"] < at["inner/addmm#2"]
    at = places(backward)
    assert at["inner/update"] > max(place for name, place in at.items() if name.startswith("inner/") and name != "inner/update")


def test_frozen_parameters_have_no_update(two_cores):
    for strategy in strategies.names(1):
        plan = mlp_plan(strategy, two_cores, "frozen", optimizer="adam")
        updated = [name for task in plan.tasks if task.phase == UPDATE for name in task.body.parameters]
        assert sorted(updated) == ["0.bias", "2.bias", "2.weight"]
        assert "0.weight" in plan.values
        assert not any(name.startswith("0.weight::") for name in plan.values)


def test_accumulation_updates_once_with_the_sum(two_cores):
    counts = {"baseline": 1, "bppsa": 1, "forward-fusion": 2, "backward-fusion": 2, "turbodl": 2}
    assert counts.keys() <= set(strategies.names(1))
    for strategy in strategies.names(1):
        plan = mlp_plan(strategy, two_cores, accumulate=2)
        at = places(plan)
        updates = [task.body.parameters for task in plan.tasks if task.phase == UPDATE]
        assert sorted(chain(*updates)) == ["0.bias", "0.weight", "2.bias", "2.weight"]
        assert len(updates) == counts.get(strategy, len(updates))
        assert plan.losses == ("loss/nll_loss_forward", "loss/nll_loss_forward@1")
        for parameter in ("0.weight", "0.bias", "2.weight", "2.bias"):
            assert at[f"{parameter}/accumulate@1"] > at["0/addmm@1"]
        if strategy == "backward-fusion":
            assert at["2/update"] == at["2.bias/accumulate@1"] + 1
            assert at["0/update"] == at["0.bias/accumulate@1"] + 1


def test_clipping_stands_between_all_gradients_and_all_updates(two_cores):
    assert [task.name for task in mlp_plan("baseline", two_cores, clip_norm=1.0).tasks[-2:]] == ["clip", "update"]
    plan = mlp_plan("forward-fusion", two_cores, clip_norm=1.0)
    assert plan.tasks[-1].name == "clip"
    assert {o.value for o in plan.tasks[-1].mutates} == {o.value for o in plan.gradients.values()}


def test_options():
    strategy, options = strategies.parse("backward-fusion:update_stream=on")
    assert (strategy.name, options.update_stream) == ("backward-fusion", True)
    assert strategies.parse("backward-fusion")[1].update_stream is False
    assert strategies.parse("backward-fusion", {"update_stream": "yes", "other": "1"})[1].update_stream is True
    assert strategies.parse("baseline", {"update_stream": "yes"})[0].name == "baseline"
    for text, message in (
        ("backward-fusion:speed=1", "unknown option of strategy backward-fusion 'speed'"),
        ("backward-fusion:update_stream", "has no value"),
        ("backward-fusion:update_stream=2", "update_stream='2'"),
        ("fusion", "unknown strategy 'fusion'"),
    ):
        with pytest.raises(SchedcastError, match=message):
            strategies.parse(text)


def test_a_former_name_is_an_alias():
    assert strategies.parse("image-parallel:overlap=off") == strategies.parse("data-parallel:overlap=off")
    assert strategies.family("image-parallel:overlap=off") == "data-parallel"
    assert "image-parallel" not in strategies.names()


@pytest.mark.parametrize("word", strategies.EVERYDAY)
def test_every_everyday_word_is_a_strategy_with_its_options(word):
    meant = strategies.EVERYDAY[word]
    assert strategies.parse(word) == strategies.parse(meant)
    assert strategies.parse(word.upper()) == strategies.parse(meant)
    assert strategies.get(word) is strategies.get(meant.partition(":")[0])


def test_options_behind_an_everyday_word_win():
    assert strategies.parse("megatron:tp=8")[1] == strategies.parse("fsdp:shard=1,tp=8")[1]
    assert strategies.parse("zero3:shard=1")[1] == strategies.parse("zero1")[1]


NEWCOMER = '''
"""Reversed order of updates."""

from dataclasses import dataclass

from simulator.strategies.builder import PlanBuilder
from simulator.engine.costs.cost import PlanCosts
from simulator.model.job import Job
from simulator.machine.machine import Machine
from simulator.plan.plan import Plan

NAME = "newcomer"
ABOUT = "one file makes a strategy"


@dataclass(frozen=True)
class Options:
    """One option."""

    pace: int = 3
    """How fast."""


def plan(job: Job, machine: Machine, costs: PlanCosts | None, options: Options) -> Plan:
    build = PlanBuilder(job, machine.devices[0].name)
    updates = [build.update(owned, f"{layer}/update", layer) for layer, owned in reversed(build.layers.items())]
    return build.plan(NAME, build.forward() + build.backward() + updates, options)
'''


@pytest.fixture
def more_strategies(tmp_path, monkeypatch):
    """An empty folder whose modules count as modules of `simulator.strategies`."""
    monkeypatch.setattr(simulator.strategies, "__path__", [*simulator.strategies.__path__, str(tmp_path)])
    strategies._discover.cache_clear()
    yield tmp_path
    strategies._discover.cache_clear()


def test_a_strategy_is_discovered_by_its_file(more_strategies, two_cores):
    (more_strategies / "newcomer.py").write_text(NEWCOMER)
    assert "newcomer" in strategies.names(1)
    assert strategies.get("newcomer").option_docs() == [("pace", "How fast.", 3)]
    plan = mlp_plan("newcomer:pace=4", two_cores)
    assert plan.options == {"pace": 4}
    assert [task.name for task in plan.tasks][-2:] == ["2/update", "0/update"]


def test_a_module_without_a_name_is_no_strategy(more_strategies):
    before = strategies.names()
    strategies._discover.cache_clear()
    (more_strategies / "helpers.py").write_text('ABOUT = "shared by several strategies"\n')
    assert strategies.names() == before


@pytest.mark.parametrize("name", strategies.names())
def test_every_plan_function_states_the_contract(name):
    strategy = strategies.get(name)
    assert get_type_hints(strategy.plan) == {
        "job": Job, "machine": Machine, "costs": PlanCosts | None, "options": strategy.options_type, "return": Plan,
    }  # fmt: skip


# A step of too many microbatches is refused before it is planned.


@pytest.mark.parametrize("spec", ["baseline", "pytorch", "gpipe:microbatches=1000000"])
def test_too_many_microbatches_are_refused(spec):
    count, accumulate = (1_000_000, 1) if "microbatches" in spec else (10_000, 10_000)
    with refuses(Code.REQUEST, rf"{count:,} microbatches make more than 100,000 tasks in a step; choose fewer"):
        planned(spec, Job("lenet5", count, accumulate=accumulate), load_machine("p100x4"))


def test_a_few_hundred_are_planned():
    plan = planned("baseline", Job("lenet5", 300, accumulate=300), load_machine("p100"))
    assert 300 * 10 < len(plan.tasks) < strategies.MOST_TASKS


def test_more_microbatches_than_samples_are_refused_however_many():
    with refuses(Code.BATCH, r"--batch 32 does not divide into 10,000,.*; choose at most 32$"):
        planned(f"zero-bubble:microbatches={10**400}", Job("lenet5", 32), load_machine("p100x4"))


def test_a_step_of_too_many_devices_is_refused_before_it_is_simulated(monkeypatch):
    monkeypatch.setattr(strategies, "MOST_TASKS", 500)
    with refuses(Code.REQUEST, r"^data-parallel: [\d,]+ tasks in a step on 16 devices, more than the 500 .*; choose fewer devices"):
        planned("data-parallel", Job("lenet5", 32), load_machine("k80x16"))


# A plan that is still in use is not made again, and what follows from it is derived once.


MACHINE = load_machine("p100x4")
#: Every figure that a slider changes, but the number of SMs.
SLOWER = scaled(MACHINE, Scale(flops=0.3, memory=0.7, launch=5, link=0.1))
INDEPENDENT = [strategy.name for strategy in strategies.every() if not strategy.uses_costs]


def plan_in_use(job: Job, text: str, machine=MACHINE):
    return planned(text, job, machine, CostModel(machine))


def job() -> Job:
    """A job that has planned nothing."""
    return Job(MLP, 8)


@pytest.mark.parametrize("name", INDEPENDENT)
def test_a_strategy_that_uses_no_costs_plans_the_same_for_every_speed_of_a_machine(name):
    assert plan_in_use(job(), name, SLOWER) == plan_in_use(job(), name)


def test_such_a_plan_is_made_once(monkeypatch):
    one = job()
    plan = plan_in_use(one, "backward-fusion")
    assert plan_in_use(one, "backward-fusion", SLOWER) is plan
    assert plan_in_use(one, "backward-fusion:update_stream=on") is not plan
    assert plan_in_use(one, "backward-fusion", load_machine("h100")) is not plan
    assert plan_in_use(replace(one, batch=4), "backward-fusion") is not plan
    assert plan_in_use(job(), "backward-fusion") is not plan, "another job may have read another version of the model's file"


def test_a_plan_that_uses_costs_is_made_again_and_kept_if_it_is_equal():
    one = job()
    plan = plan_in_use(one, "turbodl")
    assert plan_in_use(one, "turbodl") is plan
    faster = scaled(MACHINE, Scale(flops=100, memory=100))
    assert plan_in_use(one, "turbodl", faster) == plan_in_use(job(), "turbodl", faster)


def test_nothing_keeps_a_plan_that_is_not_in_use():
    one = job()
    plan_in_use(one, "baseline")
    assert not one.plans


def test_what_follows_from_a_plan_is_derived_once():
    plan = plan_in_use(job(), "baseline")
    assert dependencies_of(plan, SLOWER) is dependencies_of(plan, MACHINE)
    assert resident_shares(plan, SLOWER) is resident_shares(plan, MACHINE)
    bigger = replace(MACHINE, memories=tuple(replace(memory, cache_bytes=memory.cache_bytes * 2) for memory in MACHINE.memories))
    assert resident_shares(plan, bigger) is not resident_shares(plan, MACHINE)
    assert dependencies_of(plan, replace(MACHINE, receives="blocking")) is not dependencies_of(plan, MACHINE)


def test_other_processes_receive_the_plan_alone():
    one = job()
    plan = plan_in_use(one, "baseline")
    dependencies_of(plan, MACHINE)
    plans, received = pickle.loads(pickle.dumps((one.plans, plan)))
    assert received == plan
    assert not plans
    assert len(pickle.dumps(received)) == len(pickle.dumps(plan_in_use(job(), "baseline")))


def test_a_plan_that_was_valid_on_one_machine_is_checked_on_another():
    plan = forward_fused()
    plan.validate(machine())
    tasks = tuple(replace(task, priority=-2) for task in plan.tasks)
    urgent = replace(plan, tasks=tasks)
    urgent.validate(machine(levels=3))
    with pytest.raises(PlanError, match="priority -2"):
        urgent.validate(machine(levels=1))
