"""Results that only a backward kernel reads reach it as the forward kernel returned them (`opaque` in `simulator.plan.ops`)."""

import json
from dataclasses import replace

import pytest

from calibrate.numerics import Expected, References, compare, steps_to_compare
from executors.binding import op_tasks
from executors.cuda.backend import CudaBackend
from executors.program import TaskFailedError
from simulator.machine.presets import gpu_machine, load_machine
from simulator.model.job import Job
from simulator.plan.bodies import opcall
from simulator.plan.plan import Plan
from simulator.strategies import registry as strategies
from tests.support import models
from tests.support.jobs import planned
from tests.support.places import USER_MODELS
from tests.support.strict_gpu import READ, StrictGpu
from traces.documents.profile import Identity, Profile
from traces.errors import SchedcastError

MACHINE = load_machine("h200")
#: Networks with attention, norms, recurrent layers and dropout. Recurrent layers have no opaque results: their states and gates are values
#: that other ops read, too.
NETWORKS = {path.stem: Job(f"{path}:make", 4) for path in USER_MODELS}
NETWORKS |= {name: Job(f"{models.__file__}:{name}", 2) for name in ("bert", "bert_qa", "gpt2", "transformer", "resnet", "densenet")}
NETWORKS |= {name: Job(f"{models.__file__}:{name}", 4) for name in ("attention", "recurrent", "others", "letters")}
NETWORKS |= {"llama": Job("lm:form=llama,layers=1,d_model=32,heads=4,kv_heads=2,ffn=48,vocab=50,qk_norm=on", 2, 8)}
NETWORKS |= {"lstm": Job(f"{models.__file__}:lstm8", 4)} | {name: Job(name, 4, 8) for name in ("rnn_bitstream", "gru_features")}
LONG = {"googlenet": Job("googlenet", 2, 32)}
MODES = ("eager", "graph")
CASES = [pytest.param(name, mode, marks=pytest.mark.thorough if name in LONG else ()) for name in NETWORKS | LONG for mode in MODES]
CASES.remove(pytest.param("letters", "graph"))  # no graph can contain the CTC loss


def packet(target: str) -> str:
    return target.rpartition(".")[0]


def readers(plan: Plan) -> set[str]:
    """The backward ops of a plan that read opaque results.

    The simulated GPU has no fused attention that drops weights: such attention runs in its math form, which keeps its weights.
    """
    ops = [op.body for task in plan.every_task for op in op_tasks(task)]
    in_math_form = {f"{packet(op.target)}_backward" for op in ops if op.target == opcall.ATTENTION and op.random}
    return {packet(op.target) for op in ops} & set(READ) - in_math_form


def trained(gpu: StrictGpu, job: Job, mode: str):
    """The baseline's plan of a job, and how its numbers compare with plain PyTorch's."""
    plan, built, backend = planned("baseline", job, MACHINE), job.build(), CudaBackend(MACHINE, gpu, mode)
    steps = steps_to_compare(backend)
    with gpu:
        return plan, compare(job, built, plan, backend, Expected.of(job, built, steps, backend), steps)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_backward_kernels_get_what_their_forward_kernels_returned(name, mode):
    gpu, job = StrictGpu(), (NETWORKS | LONG)[name]
    plan, numerics = trained(gpu, job, mode)
    assert numerics.equal("fp32"), numerics
    assert set(gpu.taken) == readers(plan)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_the_kernels_refuse_a_result_in_the_plans_strides(mode, monkeypatch):
    monkeypatch.setattr(opcall.OpCall, "opaque", ())
    with pytest.raises(TaskFailedError, match=r"flash_attention_for_cpu_backward reads .* by address and got"):
        trained(StrictGpu(), NETWORKS["attention"], mode)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["others", "vision_transformer", "transformer", "unet"])
def test_only_backward_ops_read_opaque_results(name):
    """In the plan of every strategy that applies: nothing copies them to another device."""
    job, machines, plans = NETWORKS[name], (MACHINE, load_machine("p100x4")), 0
    for strategy, machine in ((s, m) for s in strategies.names() for m in machines):
        try:
            plan = planned(strategy, job, machine)
        except SchedcastError:
            continue
        plans += 1
        ops = [op for task in plan.every_task for op in (task, *op_tasks(task))]
        opaque = {
            write.value
            for op in ops
            if op.body.op
            for position, write in zip(op.body.outputs, op.writes, strict=True)
            if position in op.body.opaque
        }
        for op in ops:
            read = {operand.value for operand in op.inputs} & opaque
            if op.body.op and read:
                arguments = json.loads(op.body.args)
                slots = [arguments[position]["$"] for position in READ[packet(op.body.target)] if arguments[position] is not None]
                assert read == {op.inputs[slot].value for slot in slots}, (strategy, op.name)
            elif not op.body.inner_ops:
                assert not read, (strategy, op.name)
    assert plans > 4


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_a_backward_op_on_another_device_than_its_forward_op(mode):
    """What the forward op saves beyond the plan's values is not sent, so the backward op's device computes it again, in every step."""
    machine = gpu_machine(Profile(identity=Identity(kind="gpu", gpu="NVIDIA H200", sms=132)), 4)
    job = replace(NETWORKS["attention"], precision="fp64")
    plan = planned("stale-pipeline:on=unfolded,stages=2,backward_weights=stashed", job, machine)
    assert len({task.device for task in plan.tasks if "attention" in task.body.op}) == 2
    built = job.build()
    with StrictGpu() as gpu:
        backend = CudaBackend(machine, gpu, mode)
        steps = steps_to_compare(backend)
        numerics = compare(job, built, plan, backend, References(job, built, steps, backend).of(plan), steps)
    assert numerics.equal("fp64"), numerics
