"""A user's training loop by a plan: the same numbers as plain PyTorch's on fresh data, and a module that is up to date when looked at."""

import copy

import pytest
import torch
from torch.nn import functional as F

from executors.kernels.update import torch_optimizer
from executors.trainer import Trainer
from simulator.job import Job
from simulator.strategies import registry as strategies
from tests.support import mlp

STRATEGIES = ["baseline", "forward-fusion", "backward-fusion", "backward-fusion:update_stream=on", "turbodl"]
CLOSE = {"rtol": 0.0, "atol": 1e-12}


class Pair:
    """A trainer and plain PyTorch, on equal modules and the same batches, in float64."""

    def __init__(self, strategy: str, machine, backend, factory: str = "make", **fields):
        self.job = Job(f"{mlp.__file__}:{factory}", 6, precision="fp64", **fields)
        built = self.job.build()
        self.plain = copy.deepcopy(built.module)
        found, options = strategies.parse(strategy)
        self.trainer = Trainer(found.plan(self.job, machine, None, options), self.job, built, backend)
        self.optimizer = torch_optimizer(self.job.optimizer, self.job.form, self.plain.parameters(), self.job.hyper)
        self.generator = torch.Generator().manual_seed(1)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The next batch."""
        x = torch.randn(6, 4, generator=self.generator, dtype=torch.float64)
        return x, torch.randint(3, (6,), generator=self.generator)

    def step(self) -> tuple[float, float]:
        """Train both on one batch; their losses."""
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
        """Parameters and buffers as they lie in the two modules now, without asking the trainer."""
        mine = [*self.trainer.module.parameters(), *self.trainer.module.buffers()]
        return list(zip(mine, [*self.plain.parameters(), *self.plain.buffers()], strict=True))

    def assert_equal(self) -> None:
        """The trainer's module holds what plain PyTorch's does."""
        for mine, plain in self.states():
            torch.testing.assert_close(mine, plain, **CLOSE)


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
@pytest.mark.parametrize("look", ["sync", "forward", "state_dict"])
def test_pending_updates_are_flushed_when_the_module_is_looked_at(strategy, look, two_cores, backend):
    pair = Pair(strategy, two_cores, backend)
    initial = [mine.detach().clone() for mine, _ in pair.states()]
    pair.step()
    pair.step()
    assert all(torch.equal(mine, old) for (mine, _), old in zip(pair.states(), initial, strict=True))  # the module is not touched yet
    if look == "sync":
        pair.trainer.sync()
    elif look == "forward":
        x, _ = pair.batch()
        torch.testing.assert_close(pair.trainer.module(x), pair.plain(x), **CLOSE)
    else:
        for mine, plain in zip(pair.trainer.module.state_dict().values(), pair.plain.state_dict().values(), strict=True):
            torch.testing.assert_close(mine, plain, **CLOSE)
    pair.assert_equal()
    for _ in range(2):  # and training goes on as if nobody had looked
        mine, plain = pair.step()
        assert mine == pytest.approx(plain, abs=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "rmsprop", "adadelta", "adam", "adamw"])
@pytest.mark.parametrize("strategy", ["baseline", "forward-fusion"])
def test_a_checkpoint_goes_on_in_plain_pytorch(strategy, optimizer, two_cores, backend):
    pair = Pair(strategy, two_cores, backend, optimizer=optimizer)
    for _ in range(3):
        pair.step()
    taken = copy.deepcopy(pair.trainer.module)
    continued = torch_optimizer(optimizer, pair.job.form, taken.parameters(), pair.job.hyper)
    continued.load_state_dict(pair.trainer.optimizer_state_dict())
    taken.load_state_dict(pair.trainer.module.state_dict())
    for _ in range(3):
        x, y = pair.batch()
        assert pair.plain_step(taken, continued, x, y) == pytest.approx(pair.plain_step(pair.plain, pair.optimizer, x, y), abs=1e-12)
    for mine, plain in zip(taken.parameters(), pair.plain.parameters(), strict=True):
        torch.testing.assert_close(mine, plain, **CLOSE)


def test_wrong_inputs_are_refused_and_change_nothing(two_cores, backend):
    pair = Pair("forward-fusion", two_cores, backend)
    x, y = pair.batch()
    for inputs, target, said in (
        (x[:5], y, r"input:0 is \(5, 4\) of torch.float64; the job was planned for \(6, 4\)"),
        (x.float(), y, "input:0 is .* of torch.float32"),
        (x, y[:3], "target:0 is"),
        ({"x": x}, y, "input:0 is nothing"),
        ((), y, "input:0 is nothing"),
    ):
        with pytest.raises(ValueError, match=said):
            pair.trainer.step(inputs, target)
    pair.step()
    pair.trainer.sync()
    pair.assert_equal()
