"""The newest weights of a plan between two runs, without draining it."""

import pytest
import torch

from calibrate.numerics import reference
from executors.cpu.backend import CpuBackend
from executors.cuda.backend import CudaBackend
from executors.tensors import job_tensors
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.strategies import registry as strategies
from simulator.strategies.pipeline.staleness import staleness
from tests.fake_gpu import FakeGpu
from tests.support.jobs import MLP, job_of, planned

JOB = Job(MLP, 4, precision="fp64", lr_schedule="0:0.1,3:0.02")


def copies(built) -> dict[str, torch.Tensor]:
    """Tensors to copy weights into."""
    return {name: torch.zeros_like(parameter) for name, parameter in built.module.named_parameters()}


def test_a_stale_pipelines_stages_have_all_updates_that_they_have_made():
    """After 5 periods the last stage has made 4 updates, and the first one, which is one cycle later in backward, 3."""
    machine = load_machine("this-cpu")
    plan, built = planned("stale-pipeline:on=simulated,stages=2", JOB, machine), JOB.build()
    program = CpuBackend(machine).load(plan, job_tensors(JOB, built, JOB.graph()))
    program.run(5)
    newest = copies(built)
    program.copy_current(newest)
    trainer, expected = reference(JOB, built, False, stale=staleness(plan)), {}
    for step in range(1, 5):
        trainer.step()
        expected[step] = {name: tensor.clone() for name, tensor in trainer.parameters().items()}
    stages = {task.body.parameters: task.lag for task in plan.tasks if task.body.kind == "update"}
    assert sorted(set(stages.values())) == [1, 2]
    for parameters, lag in stages.items():
        for name in parameters:
            assert torch.equal(newest[name], expected[5 - lag][name]), name


def test_the_running_statistics_of_batch_norm_are_read_too():
    job, machine = job_of("batch_norm"), load_machine("this-cpu")
    strategy, options = strategies.parse("backward-fusion")
    built = job.build()
    program = CpuBackend(machine).load(strategy.plan(job, machine, None, options), job_tensors(job, built, job.graph()))
    program.run(3)
    newest = {name: torch.zeros_like(tensor) for name, tensor in built.module.state_dict().items() if tensor.is_floating_point()}
    program.copy_current(newest)
    trainer = reference(job, built, False)
    for _ in range(3):
        trainer.step()
    assert any("running_var" in name for name in newest)
    for name, tensor in newest.items():
        torch.testing.assert_close(tensor, built.module.state_dict()[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_reading_weights_changes_nothing_on_a_gpu(mode):
    machine, gpu, built = load_machine("h200"), FakeGpu(), JOB.build()
    plan = planned("forward-fusion", JOB, machine)
    with gpu:
        backend = CudaBackend(machine, gpu, mode)
        read, alone = (backend.load(plan, job_tensors(JOB, built, JOB.graph())) for _ in range(2))
        newest, later = copies(built), copies(built)
        for _ in range(2):
            read.run(12)
            read.copy_current(newest)
            alone.run(12)
        assert not torch.equal(newest["0.weight"], built.module.state_dict()["0.weight"])
        for program in (read, alone):
            program.sync()
        read.copy_current(newest)
        alone.copy_current(later)
    assert all(torch.equal(newest[name], later[name]) for name in newest)
