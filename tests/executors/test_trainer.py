"""A user's training loop with a plan: the numbers of plain PyTorch on fresh data, and a module that is up to date when it is used."""

import copy

import pytest
import torch
from torch.nn import functional as F

from executors.kernels.update import torch_optimizer
from executors.trainer import Trainer
from simulator.model.job import Job
from tests.support import mlp
from tests.support.jobs import planned

STRATEGIES = ["baseline", "forward-fusion", "backward-fusion", "backward-fusion:update_stream=on", "turbodl"]
CLOSE = {"rtol": 0.0, "atol": 1e-12}


class Pair:
    """A trainer and plain PyTorch, on equal modules and the same batches, in float64."""

    def __init__(self, strategy: str, machine, backend, factory: str = "make", **fields):
        self.job = Job(f"{mlp.__file__}:{factory}", 6, precision="fp64", **fields)
        built = self.job.build()
        self.plain = copy.deepcopy(built.module)
        self.trainer = Trainer(planned(strategy, self.job, machine), self.job, built, backend)
        self.optimizer = torch_optimizer(self.job.optimizer, self.job.form, self.plain.parameters(), self.job.hyper)
        self.generator = torch.Generator().manual_seed(1)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch."""
        x = torch.randn(6, 4, generator=self.generator, dtype=torch.float64)
        return x, torch.randint(3, (6,), generator=self.generator)

    def step(self) -> tuple[float, float]:
        """Train both on one batch. Returns their losses."""
        x, y = self.batch()
        return self.trainer.step(x, y), self.plain_step(self.plain, self.optimizer, x, y)

    @staticmethod
    def plain_step(module, optimizer, x, y) -> float:
        """One step of the usual loop."""
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    def states(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The current parameters and buffers of the two modules, read without the trainer."""
        mine = [*self.trainer.module.parameters(), *self.trainer.module.buffers()]
        return list(zip(mine, [*self.plain.parameters(), *self.plain.buffers()], strict=True))

    def assert_equal(self) -> None:
        """The trainer's module equals plain PyTorch's."""
        for mine, plain in self.states():
            torch.testing.assert_close(mine, plain, **CLOSE)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("factory", ["make", "shared", "normalised"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fresh_data_trains_as_plain_pytorch(strategy, factory, two_cores, backend):
    pair = Pair(strategy, two_cores, backend, factory, optimizer="adam")
    for _ in range(5):
        mine, plain = pair.step()
        assert mine == pytest.approx(plain, abs=1e-12)
    pair.trainer.sync()
    pair.assert_equal()
    pair.step()
    pair.trainer.sync()
    pair.assert_equal()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("use", ["sync", "forward", "state_dict"])
def test_pending_updates_are_completed_when_the_module_is_used(strategy, use, two_cores, backend):
    pair = Pair(strategy, two_cores, backend)
    initial = [mine.detach().clone() for mine, _ in pair.states()]
    pair.step()
    pair.step()
    assert all(torch.equal(mine, old) for (mine, _), old in zip(pair.states(), initial, strict=True))  # the module has not changed yet
    if use == "sync":
        pair.trainer.sync()
    elif use == "forward":
        x, _ = pair.batch()
        torch.testing.assert_close(pair.trainer.module(x), pair.plain(x), **CLOSE)
    else:
        for mine, plain in zip(pair.trainer.module.state_dict().values(), pair.plain.state_dict().values(), strict=True):
            torch.testing.assert_close(mine, plain, **CLOSE)
    pair.assert_equal()
    for _ in range(2):  # training continues as if the module had not been used
        mine, plain = pair.step()
        assert mine == pytest.approx(plain, abs=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "rmsprop", "adadelta", "adam", "adamw"])
@pytest.mark.parametrize("strategy", ["baseline", "forward-fusion"])
def test_plain_pytorch_continues_from_a_checkpoint(strategy, optimizer, two_cores, backend):
    pair = Pair(strategy, two_cores, backend, optimizer=optimizer)
    for _ in range(3):
        pair.step()
    restored = copy.deepcopy(pair.trainer.module)
    continued = torch_optimizer(optimizer, pair.job.form, restored.parameters(), pair.job.hyper)
    continued.load_state_dict(pair.trainer.optimizer_state_dict())
    restored.load_state_dict(pair.trainer.module.state_dict())
    for _ in range(3):
        x, y = pair.batch()
        assert pair.plain_step(restored, continued, x, y) == pytest.approx(pair.plain_step(pair.plain, pair.optimizer, x, y), abs=1e-12)
    for mine, plain in zip(restored.parameters(), pair.plain.parameters(), strict=True):
        torch.testing.assert_close(mine, plain, **CLOSE)


def test_wrong_inputs_are_refused_and_change_nothing(two_cores, backend):
    pair = Pair("forward-fusion", two_cores, backend)
    x, y = pair.batch()
    for inputs, target, message in (
        (x[:5], y, r"input:0 is \(5, 4\) of torch.float64; the job was planned for \(6, 4\)"),
        (x.float(), y, "input:0 is .* of torch.float32"),
        (x, y[:3], "target:0 is"),
        ({"x": x}, y, "input:0 is missing"),
        ((), y, "input:0 is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            pair.trainer.step(inputs, target)
    pair.step()
    pair.trainer.sync()
    pair.assert_equal()


def test_batches_may_have_other_strides_than_the_jobs(two_cores, backend):
    job = Job("lenet5", 4, precision="fp64")
    plan = planned("baseline", job, two_cores)
    built = job.build()
    batch, target = torch.randn_like(built.inputs[0]), built.target
    losses = []
    for inputs in (batch, batch.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)):
        trainer = Trainer(plan, job, job.build(), backend)
        seen = []
        trainer._program.run = lambda steps, feeds, original=trainer._program.run, seen=seen: seen.extend(feeds) or original(steps, feeds)
        losses.append(trainer.step(inputs, target))
        assert seen[0]["input:0"].stride() == built.inputs[0].stride()
    assert losses[0] == losses[1]
