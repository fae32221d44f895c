"""The data sets of built-in models: batches by iteration, epochs of all samples, and samples that a class can be told from."""

import numpy as np
import pytest
import torch

from simulator.model.job import Job
from simulator.model.workloads import registry as workloads
from simulator.model.workloads.data import Batches

#: (model, image size) and a batch's shapes and classes.
SETS = {
    ("rnn_bitstream", 12): ((6, 12, 1), 10),
    ("gru_features", 20): ((6, 20, 38), 11),
    ("lenet5", 32): ((6, 1, 32, 32), 10),
    ("vgg11", 32): ((6, 3, 32, 32), 10),
    ("resnet20", 32): ((6, 3, 32, 32), 10),
    ("alexnet_cifar", 32): ((6, 3, 32, 32), 10),
    ("vgg16_cifar", 32): ((6, 3, 32, 32), 10),
}


@pytest.mark.parametrize("job", SETS, ids=lambda job: job[0])
def test_a_batch_looks_like_the_one_the_model_was_built_with(job):
    shape, classes = SETS[job]
    made = Job(job[0], 6, job[1])
    built, ((inputs,), target) = made.build(), made.data()[0]
    assert inputs.shape == built.inputs[0].shape == shape
    assert inputs.dtype == built.inputs[0].dtype
    assert (target.shape, target.dtype) == (built.target.shape, built.target.dtype)
    labels = torch.cat([made.data()[i][1] for i in range(40)])
    assert labels.unique().tolist() == list(range(classes))


@pytest.mark.parametrize("job", SETS, ids=lambda job: job[0])
def test_a_batch_depends_on_seed_and_iteration_alone(job):
    data = Job(job[0], 6, job[1], seed=1).data()
    again = Job(job[0], 6, job[1], seed=1).data()
    other = Job(job[0], 6, job[1], seed=2).data()
    last = data[3]
    assert torch.equal(last[0][0], again[3][0][0])
    assert torch.equal(last[1], again[3][1])
    assert not torch.equal(last[0][0], data[4][0][0])
    assert not torch.equal(last[0][0], other[3][0][0])


@pytest.mark.parametrize(("precision", "dtype"), [("fp64", torch.float64), ("bf16", torch.bfloat16)])
def test_batches_are_in_the_jobs_precision_and_layout(precision, dtype):
    (images,), labels = Job("lenet5", 4, precision=precision, layout="nhwc").data()[0]
    assert images.dtype == dtype
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64


@pytest.mark.parametrize("job", SETS, ids=lambda job: job[0])
def test_held_out_samples_are_in_no_batch(job):
    data = Job(job[0], 50, job[1]).data()
    trained = {int(number) for iteration in range(-(-data.samples // 50)) for number in data.numbers(iteration)}
    assert trained == set(range(data.samples))
    held_out = range(data.samples, data.samples + data.held_out)
    parts = list(data.parts(held_out[:120], 50))
    assert [len(target) for _, target in parts] == [50, 50, 20]
    assert parts[0][0][0].shape[1:] == data[0][0][0].shape[1:]
    assert len(torch.cat([target for _, target in parts]).unique()) == SETS[job][1]


def test_the_same_digits_are_held_out_for_every_seed():
    first, other = (Job("lenet5", 50, 16, seed=seed).data() for seed in (0, 1))
    assert (first.samples, first.held_out) == (1438, 359)
    held_out = range(first.samples, first.samples + 50)
    ((((a,), _),), (((b,), _),)) = (list(data.parts(held_out, 50)) for data in (first, other))
    assert torch.equal(a, b)


def test_a_model_without_a_data_set_has_none():
    assert Job("resnet18", 2).data() is None


def numbers_of(numbers: np.ndarray) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Samples that are their numbers."""
    return (torch.from_numpy(numbers),), torch.from_numpy(numbers)


def test_every_epoch_has_every_sample_once_in_an_order_of_its_own():
    data = Batches("numbers", samples=10, batch=4, seed=0, make=numbers_of)
    seen = torch.cat([data[i][1] for i in range(5)]).tolist()  # the third batch ends one epoch and begins the next
    first, second = seen[:10], seen[10:]
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_a_batch_may_be_larger_than_the_data_set():
    data = Batches("numbers", samples=3, batch=7, seed=0, make=numbers_of)
    assert sorted(data.numbers(0).tolist()) in ([0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 2, 2], [0, 0, 1, 1, 2, 2, 2])
    with pytest.raises(IndexError, match="iteration is -1"):
        data[-1]


def test_bits_of_class_c_are_1_with_probability_a_twentieth_plus_a_tenth_of_c():
    (bits,), labels = workloads.get("rnn_bitstream").data(400, 100, 0)[0]
    assert bits.unique().tolist() == [0.0, 1.0]
    for label in range(10):
        assert bits[labels == label].mean().item() == pytest.approx(0.05 + 0.1 * label, abs=0.04)


def test_clips_of_a_class_have_its_means():
    """The nearest class mean, learnt from one batch, tells the clips of another apart."""
    data = workloads.get("gru_features").data(300, 30, 0)
    (seen,), known = data[0]
    (new,), wanted = data[1]
    centres = torch.stack([seen[known == label].mean((0, 1)) for label in range(11)])
    found = torch.cdist(new.mean(1), centres).argmin(1)
    assert (found == wanted).float().mean() > 0.9
    assert seen.std().item() == pytest.approx(1.2, abs=0.15)


def test_digits_are_enlarged_alike_in_every_channel():
    (images,), labels = workloads.get("vgg11").data(5, 40, 0)[0]
    (grey,), same = workloads.get("lenet5").data(5, 40, 0)[0]
    assert images.shape == (5, 3, 40, 40)
    assert torch.equal(labels, same)
    assert all(torch.equal(images[:, channel], grey[:, 0]) for channel in range(3))
