"""Ops that index by tensors run in plans, and alone with made-up operands, whose indices are in range; and samples of a cost key."""

import pytest
import torch

from calibrate.cpu.sampler import Sampler
from calibrate.numerics import Expected, compare
from calibrate.operands import OperandPool, fill
from calibrate.samples import MOST_RELATIVE, Samples
from simulator.plan.bodies.op_class import GROUPED_PRODUCT
from tests.support import models
from tests.support.applicable import default_plans
from tests.support.jobs import job_of, planned
from tests.support.refusals import refuses
from tests.support.tiny import task
from traces.errors import Code


def test_a_sample_is_relative_to_the_median_of_those_that_count():
    """A pair counts with both its times; number 0 belongs to the warm-up."""
    samples = Samples(task("a").task, cold_s=[9.0, 2.0, 3.0, 4.0], warm_s=[9.0, 2.0, 1.0, 2.0], numbers=[0, 1, 2, 5])
    assert samples.relative(frozenset({1, 2, 5})) == {1: 1.0, 2: 1.0, 5: 1.5}
    assert samples.relative(frozenset({7})) == {}


def test_a_sample_during_which_another_thread_took_the_core_is_limited():
    samples = Samples(task("a").task, cold_s=[1.0, 1.0, 50.0], warm_s=[1.0, 1.0, 1.0], numbers=[1, 2, 3])
    assert samples.relative(frozenset({1, 2, 3}))[3] == pytest.approx(MOST_RELATIVE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", models.INDEXING)
def test_plans_that_index_train_as_plain_pytorch_does(model, two_cores, backend):
    job = job_of(model)
    built = job.build()
    expected = Expected.of(job, built)
    for name in ("baseline", "turbodl"):
        numerics = compare(job, built, planned(name, job, two_cores), backend, expected)
        assert max(numerics.max_grad_error, numerics.max_param_error) <= 1e-10, name


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model", models.INDEXING)
def test_made_up_indices_are_in_range(model, two_cores, backend):
    sampler = Sampler(backend)
    for plan in default_plans(job_of(model), two_cores).values():
        sampler.add(plan, plan.keys(two_cores))
    sampler.sample(list(sampler.samples), 0)
    assert sampler.failures == {}


def test_groups_of_rows_are_alike_and_end_with_the_last_row(two_cores):
    """Six products, of experts that get 6 of 24 rows each."""
    plan = planned("baseline", job_of("tokens_by_expert"), two_cores)
    products = [task for task in plan.tasks if task.body.op == GROUPED_PRODUCT]
    ends = [fill(each, plan, OperandPool())[operand.value] for each in products for operand in each.reads if operand.dtype == "int32"]
    assert [each.tolist() for each in ends] == [[6, 12, 18, 24]] * 6


def test_a_batch_that_takes_another_branch_is_refused_in_one_line(two_cores, backend):
    from executors.trainer import Trainer

    job = job_of("branches_by_its_batch")
    trainer = Trainer(planned("baseline", job, two_cores), job, job.build(), backend)
    ids, target = torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    assert trainer.step(ids, target) > 0
    with refuses(Code.REQUEST, r"decides by a number of its batch what to compute: it is 0 now, and was 1"):
        trainer.step(ids + 5, target)
