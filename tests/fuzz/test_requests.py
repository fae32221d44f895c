"""Strange options, and models made of odd modules: predicted, or refused."""

import textwrap

from hypothesis import given
from hypothesis import strategies as st

from simulator.costs.model import CostModel
from simulator.job import Job
from simulator.machine.presets import load_machine
from simulator.predict.forecast import forecast
from simulator.strategies import registry as strategies
from tests.support.fuzzing import fuzzed, sound
from ui.commands.requests import requested

OPTIONS = sorted({name for strategy in strategies.names() for name in strategies.get(strategy).option_names})
PIECES = [
    *strategies.names(), *OPTIONS, ":", "=", ",", "on", "off", "true", "1", "0", "-1", "2.5", "1e999", "nan", "9" * 5000, "[1,2]", "{}",
    "null", "", " ", "\0", "\ud800", "é", "auto", "none", "linear", "n=16", "x" * 300,
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
SETTINGS = st.tuples(st.sampled_from(strategies.names()), st.sampled_from(OPTIONS), st.sampled_from(PIECES))
REQUESTS = TEXTS | SETTINGS.map("{0[0]}:{0[1]}={0[2]}".format)


@fuzzed(300)
@given(st.lists(REQUESTS, min_size=1, max_size=2), st.lists(TEXTS, max_size=2))
def test_options_are_read_or_refused(texts, pairs):
    with sound("options", (texts, pairs)):
        requested(texts, pairs)


@fuzzed(15)
@given(REQUESTS)
def test_options_are_used_or_refused(text):
    target = load_machine("2xgtx1060")
    with sound("options of a plan", text):
        strategy, options = strategies.parse(text)
        forecast(strategy.plan(Job("lenet5", 8), target, None, options), target, CostModel(target))


LAYERS = [
    "nn.Linear(8, 8)", "nn.Linear(8, 0)", "nn.Linear(8, 4)", "nn.ReLU()", "nn.ReLU(inplace=True)", "nn.Dropout(0.5)", "nn.BatchNorm1d(8)",
    "nn.LayerNorm(8)", "nn.Identity()", "nn.Softmax(1)", "nn.Flatten()", "nn.Unflatten(1, (2, 4))", "nn.Embedding(10, 8)", "nn.GRU(8, 8)",
    "nn.Sequential()", "nn.LazyLinear(8)", "nn.Bilinear(8, 8, 8)", "nn.MultiheadAttention(8, 2)", "Odd()", "Grows()", "Fails()", "Item()",
]  # fmt: skip
RESULTS = [
    "model, torch.randn(batch, 8), torch.randint(0, 8, (batch,))", "model, torch.randn(batch, 8), torch.randn(batch, 8), nn.MSELoss()",
    "model, torch.randn(8), torch.randint(0, 8, (1,))", "model", "None", "()", "model, None, None", "model, [], {}",
    "model, {'input': torch.randn(batch, 8)}, torch.randint(0, 8, (batch,))", "model, torch.randn(0, 8), torch.randn(0, 8)",
    "model, torch.randn(batch, 8).double(), torch.randn(batch, 8)", "model.state_dict(), 1, 2", "batch", "1 / 0", "exec('x y')",
    "model, torch.randn(batch, 8, dtype=torch.complex64), torch.randint(0, 8, (batch,))",
    "model, torch.randn(batch, 8), torch.randint(0, 8, (batch,)), 7",
]  # fmt: skip
CODE = """
    import torch
    from torch import nn

    class Odd(nn.Module):
        def forward(self, x):
            return x[:, : x.shape[1] // 2 + 1] * torch.rand(1)

    class Grows(nn.Module):
        def forward(self, x):
            self.weight = nn.Parameter(torch.ones(8))
            return x * self.weight

    class Fails(nn.Module):
        def forward(self, x):
            raise KeyError({1: 2})

    class Item(nn.Module):
        def forward(self, x):
            return x * x.sum().item()

    def make(batch):
        model = nn.Sequential(LAYERS)
        return RESULT
"""


def test_a_factory_is_predicted_or_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPCAST_CACHE", str(tmp_path / "cache"))
    target = load_machine("h100")
    numbers = iter(range(10**9))

    @fuzzed(12)
    @given(st.lists(st.sampled_from(LAYERS), max_size=4), st.sampled_from(RESULTS))
    def check(layers, result):
        path = tmp_path / str(next(numbers)) / "model.py"
        path.parent.mkdir()
        path.write_text(textwrap.dedent(CODE).replace("LAYERS", ", ".join(layers)).replace("RESULT", result))
        with sound("factory", (layers, result)):
            strategy, options = strategies.parse("baseline")
            forecast(strategy.plan(Job(f"{path}:make", 4), target, None, options), target, CostModel(target))

    check()
