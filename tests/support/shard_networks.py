"""Small random image networks as a user's model file: branches, sums, concatenations, windows of all kinds, dropout, shared layers."""

from pathlib import Path
from random import Random

from simulator.machine.machine import Machine
from simulator.model.job import Job
from simulator.plan.plan import Plan
from simulator.strategies.sharding.configuration import StepOptions
from simulator.strategies.sharding.configurations import place
from simulator.strategies.sharding.network import Network
from simulator.strategies.sharding.plan import ShardedStep

_HEAD = """
import torch
from torch import nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
{modules}

    def forward(self, x):
{forward}

def make(batch_size):
    torch.manual_seed(1)
    return Net(), (torch.randn(batch_size, 3, {height}, {width}),), torch.randint(0, 4, (batch_size,))
"""
_ACTIVATIONS = ("F.relu({})", "F.relu_({})", "F.gelu({})", "torch.sigmoid({}) * 2", "F.hardtanh_({})", "F.silu({})", "{}")


class RandomNetwork:
    """Draws a network, and gives the text of its file."""

    def __init__(self, draw: Random, norms: bool = False):
        """`norms`: with batch-norm after every block."""
        self.draw, self.norms = draw, norms
        self.modules: list[str] = []
        self.forward: list[str] = []
        self.channels, self.size = 3, [draw.choice([8, 12]), draw.choice([6, 8, 12])]
        self._input = tuple(self.size)
        for _ in range(draw.randint(2, 4)):
            draw.choice([self._convolution, self._branches, self._concatenation, self._sum, self._pooling, self._dropout])()
            if norms:
                self.forward.append(f"x = {self._module(f'nn.BatchNorm2d({self.channels})')}(x)")
        self._classifier()

    @property
    def text(self) -> str:
        """The file."""
        modules, forward = (("\n".join(" " * 8 + line for line in lines)) for lines in (self.modules, self.forward))
        return _HEAD.format(modules=modules, forward=forward, height=self._input[0], width=self._input[1])

    def _module(self, text: str) -> str:
        self.modules.append(f"self.m{len(self.modules)} = {text}")
        return f"self.m{len(self.modules) - 1}"

    def _active(self, text: str) -> str:
        return self.draw.choice(_ACTIVATIONS).format(text)

    def _same(self, outputs: int) -> str:
        """A convolution that keeps the size."""
        kernel, dilation = self.draw.choice([1, 3, 5]), self.draw.choice([1, 1, 2])
        groups = self.draw.choice([g for g in (1, 1, 2, 4) if self.channels % g == 0 == outputs % g])
        bias = self.draw.random() < 0.7
        padding = dilation * (kernel - 1) // 2
        return self._module(f"nn.Conv2d({self.channels}, {outputs}, {kernel}, 1, {padding}, {dilation}, {groups}, {bias})")

    def _convolution(self) -> None:
        draw, outputs = self.draw, self.draw.choice([4, 8])
        kernel, stride, padding, dilation = draw.choice([1, 2, 3]), draw.choice([1, 2, 3]), draw.randint(0, 2), draw.choice([1, 2])
        size = [(extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for extent in self.size]
        if min(size) >= 2:
            module = self._module(f"nn.Conv2d({self.channels}, {outputs}, {kernel}, {stride}, {padding}, {dilation})")
            self.forward.append(f"x = {self._active(f'{module}(x)')}")
            self.channels, self.size = outputs, size

    def _pair(self, outputs: int) -> tuple[str, str]:
        return tuple(self._active(f"{self._same(outputs)}(x)") for _ in range(2))

    def _branches(self) -> None:
        outputs = self.draw.choice([4, 8])
        self.forward.append(f" {self.draw.choice('+*-')} ".join(self._pair(outputs)).join(["x = ", ""]))
        self.channels = outputs

    def _concatenation(self) -> None:
        outputs = self.draw.choice([4, 8])
        third = self.draw.choice(["F.avg_pool2d(x, 3, 1, 1)", "F.max_pool2d(x, 3, 1, 1)", "x"])
        self.forward.append(f"x = torch.cat([{', '.join((*self._pair(outputs), third))}], 1)")
        self.channels += 2 * outputs

    def _sum(self) -> None:
        self.forward += [f"y = {self._same(self.channels)}(x)", self.draw.choice(["y += x", "y = y + x"]), f"x = {self._active('y')}"]

    def _pooling(self) -> None:
        if min(self.size) < 4:
            return
        kernel, stride, padding = self.draw.choice([(2, 2, 0), (3, 2, 1), (3, 1, 1)])
        more = self.draw.choice(["F.max_pool2d(x, {})", "F.avg_pool2d(x, {})", "F.avg_pool2d(x, {}, count_include_pad=False)"])
        self.forward.append(f"x = {more.format(f'{kernel}, {stride}, {padding}')}")
        self.size = [(extent + 2 * padding - kernel) // stride + 1 for extent in self.size]

    def _dropout(self) -> None:
        self.forward.append("x = F.dropout(x, 0.3)")

    def _classifier(self) -> None:
        if self.draw.random() < 0.4:
            self.forward.append("x = F.adaptive_avg_pool2d(x, 1)")
            self.size = [1, 1]
        features = self.channels * self.size[0] * self.size[1]
        self.forward.append("x = x.flatten(1)")
        if self.draw.random() < 0.6:
            self.forward.append(f"x = F.dropout(F.relu({self._module(f'nn.Linear({features}, 16)')}(x)), 0.5)")
            features = 16
            if self.draw.random() < 0.4:
                shared = self._module("nn.Linear(16, 16)")
                self.forward.append(f"x = F.relu({shared}(F.relu({shared}(x))))")
        self.forward.append(f"return {self._module(f'nn.Linear({features}, 4)')}(x)")


def random_job(seed: int, folder: Path, norms: bool = False) -> tuple[Job, Random]:
    """A job of a random network, and what drew it."""
    draw = Random(seed)
    path = folder / "model.py"
    path.write_text(RandomNetwork(draw, norms).text)
    return Job(f"{path}:make", draw.choice([2, 4, 8]), precision="fp64", optimizer=draw.choice(["sgd", "momentum", "adam"])), draw


def random_plan(
    job: Job, machine: Machine, draw: Random, fits=lambda *_: True, servers=("all-reduce", "distributed", "host"), **more
) -> Plan:
    """Any configuration for every layer that `fits(network, layer, configuration)`, its workers on any devices."""
    network, devices = Network(job.graph()), len(machine.devices)
    placed = []
    for layer in range(len(network.layers)):
        configuration = draw.choice([each for each in network.legal(layer, devices) if fits(network, layer, each)])
        placed.append(place(configuration, machine, draw.sample(range(devices), configuration.workers)))
    options = StepOptions(overlap=draw.random() < 0.5, server=draw.choice(servers), fetch=draw.random() < 0.5, **more)
    plan = ShardedStep("deepa", job, machine, network, placed, options).plan()
    plan.validate(machine)
    return plan
