"""Attention by cuDNN: what asks for it, what it takes, and that everything else stays as it is."""

from dataclasses import dataclass

import pytest

from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.plan.bodies.op_class import op_class
from simulator.plan.bodies.opcall import kernel_of
from tests.support.jobs import planned
from tests.support.refusals import refuses
from traces.errors import Code

LM = "lm:form=llama,layers=1,d_model=64,heads=2,ffn=64,vocab=100"


def job(attention: str = "cudnn", precision: str = "amp", **fields) -> Job:
    return Job(LM, 8, 64, precision=precision, attention=attention, **fields)


def asked(attention: str, machine: str = "2xh100", strategy: str = "fsdp") -> dict[str, list[str]]:
    """The kernels that the ops of a plan ask for, by class."""
    kernels: dict[str, list[str]] = {}
    for task in planned(strategy, job(attention), load_machine(machine)).tasks:
        if task.body.op:
            kernels.setdefault(op_class(task.body.op), []).append(kernel_of(task.body.kwargs))
    return kernels


def test_attention_alone_asks_for_the_kernel_forward_and_backward():
    kernels = asked("cudnn", strategy="fsdp:shard=1,fold=on")
    assert kernels.pop("matmul.attention") == ["cudnn", "cudnn"]
    assert not any(map(any, kernels.values()))
    assert not any(map(any, asked("pytorch").values()))
    assert set(asked("cudnn", strategy="fsdp:cp=2")["matmul.attention"]) == {"cudnn"}


def test_a_cpu_has_its_own_attention():
    assert job().on("cpu") == job("pytorch").on("cpu")
    assert job().on("gpu").attention == "cudnn"


@pytest.mark.parametrize(("machine", "faster"), [("h100", True), ("b200", True), ("a100", False)])
def test_it_is_faster_where_the_chip_has_instructions_that_pytorchs_kernel_lacks(machine, faster):
    target = load_machine(machine)
    times = {}
    for attention in ("pytorch", "cudnn"):
        plan = planned("baseline", Job(LM, 64, 1024, precision="bf16", attention=attention), target)
        costs = zip(plan.tasks, CostModel(target).resolve(plan), strict=True)
        times[attention] = sum(cost.cold_s for task, cost in costs if op_class(task.body.op or "") == "matmul.attention")
    assert (times["cudnn"] < 0.8 * times["pytorch"]) == faster
    assert faster or times["cudnn"] == times["pytorch"]


def test_it_computes_in_16_bits_only():
    with refuses(Code.REQUEST, "--attention cudnn needs 16 bits, and --precision is fp32"):
        job(precision="fp32")
    with refuses(Code.NAME, "unknown attention 'flash3'"):
        job("flash3")


def test_a_job_with_pytorchs_attention_keeps_the_name_that_its_measured_steps_have():
    assert Job("lenet5", 64).digest == "bad35b69d518"
    assert job().digest != job("pytorch").digest


@dataclass(frozen=True)
class JobWithOneMoreOption(Job):
    later: str = "usual"


def test_an_option_that_is_added_leaves_the_names_of_measured_steps():
    assert JobWithOneMoreOption("lenet5", 64).digest == Job("lenet5", 64).digest
    assert JobWithOneMoreOption("lenet5", 64, later="other").digest != Job("lenet5", 64).digest
