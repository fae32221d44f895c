"""A plan that cannot run is refused in one line, with a drawing of the lanes around the fault."""

from dataclasses import replace

import pytest

from simulator.plan.bodies.copy import Copy
from simulator.plan.check import PlanError, check, excerpt
from simulator.plan.plan import Plan
from simulator.plan.task import ACTIVATION, Operand, Storage
from tests.support.small_plans import W1, H, X, copied, forward_fused, machine, mm, plan_of, value


def with_task(plan: Plan, index: int, **changes) -> Plan:
    """The plan with one task changed."""
    tasks = list(plan.tasks)
    tasks[index] = replace(tasks[index], **changes)
    return replace(plan, tasks=tuple(tasks))


def fault(plan: Plan, **machine_options) -> PlanError:
    """The error that checking the plan raises."""
    with pytest.raises(PlanError) as caught:
        check(plan, machine(**machine_options))
    return caught.value


def test_plans_that_can_run_pass():
    check(forward_fused(), machine())
    check(copied(), machine(devices=2))
    with_task(forward_fused(), 1, priority=-2).validate(machine(levels=3))


def test_the_tasks_around_the_fault_are_shown_with_an_arrow():
    error = fault(with_task(copied(), 2, priority=-1), devices=2, levels=1)
    assert str(error) == "plan 'test': task 'forward.2' has priority -1; cuda:1 has 1 levels (only 0)"
    assert error.details.splitlines() == [
        "# task     lane      phase     layer  settings     body                               operands",
        "forward.1  cuda:0/0  forward   -                   op aten.mm.default flops=524288.0  reads x, w1  writes h",
        "send       cuda:1/1  transfer  -                   copy cuda:0 target=cuda:1          reads h  writes h'",
        "forward.2  cuda:1/0  forward   -      priority=-1  op aten.mm.default flops=81920.0   reads h', w2'  writes z  <-- here",
    ]


def test_only_the_neighbors_of_the_fault_are_shown():
    lines = excerpt(forward_fused().tasks, 4, around=1).splitlines()
    assert [line.split()[0] for line in lines] == ["#", "forward.2", "backward.2", "backward.1"]
    assert [line.endswith("<-- here") for line in lines] == [False, False, True, False]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"device": "cuda:7"}, "runs on 'cuda:7', which toy lacks; it has cuda:0"),
        ({"priority": 1}, r"has priority 1; cuda:0 has 3 levels \(-2..0, smaller is more urgent\)"),
        ({"priority": -3}, "has priority -3"),
        ({"lag": -1}, "has lag -1"),
        ({"after": ("nobody",)}, "comes after 'nobody', which its period lacks"),
        ({"after": ("backward.1",)}, "comes after 'backward.1', which is issued later"),
        ({"after": ("forward.1",)}, "comes after 'forward.1', which is issued later"),
        ({"name": "update.1"}, "has the name of task 0 of the same period"),
        ({"reads": (Operand("nobody", (1,), (1,), "float32"),)}, "reads 'nobody', which is not among the plan's values"),
    ],
)
def test_a_task_that_cannot_run_is_named(changes, expected):
    error = fault(with_task(forward_fused(), 1, **changes))
    with pytest.raises(PlanError, match=expected):
        raise error
    assert "<-- here" in error.details


def test_a_value_on_another_device_must_be_copied_first():
    plan = with_task(copied(), 2, device="cuda:0")
    assert "task 'forward.2' on cuda:0 reads \"h'\" on cuda:1; copy the value first" in str(fault(plan, devices=2))
    plan = with_task(copied(), 1, body=Copy("cuda:1", "cuda:0"))
    assert "copies from cuda:1 to cuda:0, but its values lie on cuda:0 and cuda:1" in str(fault(plan, devices=2))


def test_a_read_of_nothing_is_refused():
    plan = plan_of([mm("a", X, value("v", (64, 128), ACTIVATION), H)], [X, H, value("v", (64, 128), ACTIVATION)])
    assert "reads 'v', which no task writes and nothing feeds" in str(fault(plan))
    fed = replace(plan.values["v"], source=Operand("data", (64, 128), (128, 1), "float32"))
    check(replace(plan, values=plan.values | {"v": fed}), machine())


def test_a_carried_storage_needs_content_before_the_first_step():
    later = mm("a", X, W1, H)
    early = mm("b", H, value("w", (128, 10), "parameter"), value("y", (32, 10), ACTIVATION))
    plan = plan_of([early, later], [X, W1, H, value("w", (128, 10), "parameter"), value("y", (32, 10), ACTIVATION)])
    assert "task 'b' reads 'h' before its iteration writes it" in str(fault(plan))
    lagged = with_task(plan, 0, lag=1)
    check(lagged, machine())
    contents = {"strategy": "hybrid", "values": plan.values, "storages": plan.storages}
    run = Plan.of_run([((later, replace(early, name="c")), 3), (plan.tasks, None)], **contents)
    with pytest.raises(PlanError, match="task 'b' reads 'h' before its iteration writes it"):
        run.validate(machine())  # a plan continues with what lives as long as the job, and no more


def test_values_must_lie_on_a_storage_that_holds_them():
    plan = forward_fused()
    assert "value 'x' lies on storage 'x', which the plan does not list" in str(fault(replace(plan, storages={})))
    small = plan.storages | {"w1": Storage("w1", 100, "cuda:0")}
    assert "value 'w1' reaches 32768 bytes into storage 'w1' of 100 bytes" in str(fault(replace(plan, storages=small)))
    elsewhere = plan.storages | {"w1": Storage("w1", 32768, "host")}
    assert "value 'w1' is on cuda:0 but its storage 'w1' on host" in str(fault(replace(plan, storages=elsewhere)))
    nowhere = plan.storages | {"w1": Storage("w1", 32768, "cuda:9")}
    assert "storage 'w1' lies on 'cuda:9', which toy lacks" in str(fault(replace(plan, storages=nowhere)))


def test_losses_and_gradients_are_values():
    assert "the loss 'nobody' is not" in str(fault(replace(forward_fused(), losses=("nobody",))))
    lost = {"w1": Operand("nobody", (1,), (1,), "float32")}
    assert "the gradient of 'w1' is 'nobody'" in str(fault(replace(forward_fused(), gradients=lost)))


def test_a_plan_without_tasks_is_refused():
    with pytest.raises(PlanError, match="plan 'empty' has no tasks; expected at least one"):
        plan_of([], [], "empty").validate(machine())
