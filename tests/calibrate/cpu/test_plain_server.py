"""What PyTorch's own loop costs on a CPU, and its ops on several threads."""

import pytest
import torch

from calibrate.cpu.plain_server import measure_loop
from calibrate.cpu.sampler import PairSampler
from calibrate.operands import OperandPool, fill
from calibrate.samples import compile_alone
from calibrate.tiny_model import loop_costs, loop_plan
from executors.binding import Forms
from simulator.engine.costs.model import CostModel
from simulator.machine.machine import Device, Machine, Memory
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.predict.forecast import plan_of
from simulator.predict.target import Target
from traces.documents.profile import LoopCosts


def two_threads() -> Machine:
    """A CPU whose two cores work on one op together."""
    memory = Memory("memory", 1 << 40, 1e9, 1 << 20)
    one, both = (Device(name, "cpu", 1, {"fp32": 1e9}, "memory", threads=n) for name, n in (("cpu:0", 0), ("cpu", 2)))
    return Machine("cpu", (one,), (memory,), plain=Machine("cpu", (both,), (memory,)))


def test_the_loop_is_the_difference_between_what_it_takes_and_what_its_ops_take():
    """Every timed piece of work takes 100 s, and the executor's ops take 1 s each."""
    machine = this_cpu(cores=1)
    job, plan = loop_plan(machine)
    own_s = dict.fromkeys(plan.keys(machine), 1.0)
    costs = loop_costs(job, plan, machine, own_s, lambda work: (work(), 100.0)[1], steps=1)
    forward, backward = ([task for task in plan.tasks if task.phase == phase] for phase in ("forward", "backward"))
    view_s = 100.0 / 200
    assert costs.view_s == view_s
    views = [sum(task.view_calls for task in tasks) for tasks in (forward, backward)]
    assert costs.forward_s == pytest.approx((100.0 - len(forward) - views[0] * view_s) / len(forward))
    assert costs.backward_s == pytest.approx((100.0 - len(backward) - (views[1] + len(job.graph().parameters)) * view_s) / len(backward))
    assert (costs.update_s, costs.parameter_s) == (0.0, view_s), "the optimizer takes as long as the executor's update"


def test_a_measured_loop_takes_less_than_a_millisecond_per_op():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    costs = measure_loop(PairSampler())
    torch.set_num_threads(threads)
    assert all(abs(costs.model_dump()[name]) < 1e-3 for name in ("forward_s", "backward_s", "view_s", "update_s", "parameter_s"))
    assert 0 <= costs.fresh_s_per_byte < 1e-6
    assert costs != LoopCosts()


def test_dropout_is_timed_as_pytorch_runs_it_on_a_cpu():
    """A mask with the scale and a product in forward, one product in backward: the same mean, and what is dropped has no gradient."""
    machine = two_threads()
    job = Job(f"{__file__}:dropout", 64)
    plan = plan_of(job, "pytorch", Target.of(CostModel(machine)))
    (forward,) = (task for task in plan.tasks if "native_dropout.default" in getattr(task.body, "target", ""))
    tensors = fill(forward, plan, OperandPool())
    compiled = compile_alone(forward, plan, tensors, lambda name: torch.device("cpu"), Forms(draws="stream"))
    compiled.run(compiled.instance)
    result, mask = (compiled.instance.slots[slot] for slot in compiled.written)
    (x,) = tensors.values()
    assert sorted(mask.unique().tolist()) == pytest.approx([0.0, 2.0])
    assert torch.equal(result, x * mask)


class _Dropout(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 4)

    def forward(self, x):
        return self.second(torch.nn.functional.dropout(self.first(x), 0.5))


def dropout(batch: int):
    return _Dropout(), torch.randn(batch, 32), torch.randint(0, 4, (batch,))
