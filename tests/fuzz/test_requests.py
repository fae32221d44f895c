"""Strange options, and models made of odd modules: predicted, or refused."""

import textwrap

from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.job import Job
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from simulator.strategies import registry as strategies
from tests.support.fuzzing import fuzzed, mostly, sound
from tests.support.jobs import planned
from tests.support.option_texts import requests, shared
from ui.request import JobRequest


@fuzzed(300)
@given(st.lists(requests(), max_size=2).flatmap(lambda texts: st.tuples(st.just(texts), shared(texts))))
def test_options_are_read_or_refused(request):
    texts, pairs = request
    with sound("options", (texts, pairs)):
        JobRequest("lenet5", settings=tuple(pairs), strategies=tuple(texts)).chosen()


def test_options_are_used_or_refused():
    target, job = load_machine("2xgtx1060"), Job("lenet5", 8)

    @fuzzed(20)
    @given(requests())
    def check(text):
        with sound("options of a plan", text):
            forecast(planned(text, job, target), Target.of(CostModel(target)))

    check()


#: Layers that keep 8 features, and layers that a model cannot have, or only some models can.
SOUND_LAYERS = [
    "nn.Linear(8, 8)", "nn.ReLU()", "nn.ReLU(inplace=True)", "nn.Dropout(0.5)", "nn.BatchNorm1d(8)", "nn.LayerNorm(8)", "nn.Identity()",
    "nn.Softmax(1)", "nn.Flatten()", "nn.Sequential()", "nn.Sequential(nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 8))", "Residual()",
    "nn.GELU()", "Doubled(nn.Linear(8, 8))", "Frozen()", "Attention()", "Recurrent(nn.GRU)", "Recurrent(nn.LSTM)", "Recurrent(nn.RNN)",
    "nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 2, 3, padding=1), nn.MaxPool1d(3, 1, 1), nn.Flatten()", "nn.Linear(8, 8, bias=False)",
]  # fmt: skip
ODD_LAYERS = [
    "nn.Linear(8, 0)", "nn.Linear(8, 4)", "nn.Unflatten(1, (2, 4))", "nn.Embedding(10, 8)", "nn.GRU(8, 8)", "nn.LazyLinear(8)",
    "nn.Bilinear(8, 8, 8)", "nn.MultiheadAttention(8, 2)", "Odd()", "Grows()", "Fails()", "Item()", "Counts()", "Changes()",
    "nn.BatchNorm1d(4)", "nn.Dropout(2.0)", "torch.compile(nn.Linear(8, 8))", "7",
]  # fmt: skip
SOUND_RESULTS = [
    "model, torch.randn(batch, 8), torch.randint(0, 8, (batch,))", "model, torch.randn(batch, 8), torch.randn(batch, 8), nn.MSELoss()",
    "model, {'input': torch.randn(batch, 8)}, torch.randint(0, 8, (batch,))",
    "[model, (torch.randn(batch, 8),), torch.randn(batch, 8).softmax(1)]",
    "model, torch.randn(batch, 8), {'y': torch.ones(batch, 8)}, lambda output, target: (output - target['y']).square().mean()",
    "model.double(), torch.randn(batch, 8).double(), torch.randint(0, 8, (batch,))",
]  # fmt: skip
ODD_RESULTS = [
    "model, torch.randn(8), torch.randint(0, 8, (1,))", "model", "None", "()", "model, None, None", "model, [], {}",
    "model, torch.randn(0, 8), torch.randn(0, 8)", "model, torch.randn(batch, 8).double(), torch.randn(batch, 8)",
    "model.state_dict(), 1, 2", "batch", "1 / 0", "exec('x y')", "model, torch.randn(batch, 8), torch.randint(0, 8, (batch,)), 7",
    "model, torch.randn(batch, 8, dtype=torch.complex64), torch.randint(0, 8, (batch,))", "model.to('meta'), torch.randn(batch, 8), 1",
    "model, torch.randn(batch, 8).to_sparse(), torch.randint(0, 8, (batch,))", "model, torch.randn(batch, 8), torch.ones(3)",
]  # fmt: skip
STRATEGIES = st.sampled_from(["baseline", "backward-fusion", "forward-fusion", "turbodl", "bppsa"])
MODELS = mostly(
    st.tuples(st.lists(st.sampled_from(SOUND_LAYERS), min_size=1, max_size=3), st.sampled_from(SOUND_RESULTS), STRATEGIES),
    st.tuples(st.lists(st.sampled_from(SOUND_LAYERS + ODD_LAYERS), max_size=3), st.sampled_from(SOUND_RESULTS + ODD_RESULTS), STRATEGIES),
)
CODE = """
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            return x + self.inner(x)

    class Doubled(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(self.inner(x))

    class Frozen(nn.Linear):
        def __init__(self):
            super().__init__(8, 8)
            self.weight.requires_grad_(False)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.inner(x[:, None], x[:, None], x[:, None])[0][:, 0]

    class Recurrent(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.inner = kind(4, 8, batch_first=True)

        def forward(self, x):
            return self.inner(x.view(-1, 2, 4))[0][:, -1]

    class Counts(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    class Changes(nn.Module):
        def forward(self, x):
            return x.add_(1)

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
    monkeypatch.setenv("SCHEDCAST_CACHE", str(tmp_path / "cache"))
    target = load_machine("h100")
    numbers = iter(range(10**9))

    @fuzzed(20)
    @given(MODELS)
    def check(model):
        layers, result, strategy = model
        path = tmp_path / str(next(numbers)) / "model.py"
        path.parent.mkdir()
        path.write_text(textwrap.dedent(CODE).replace("LAYERS", ", ".join(layers)).replace("RESULT", result))
        with sound("factory", model):
            strategy, options = strategies.parse(strategy)
            forecast(strategy.plan(Job(f"{path}:make", 4), target, None, options), Target.of(CostModel(target)))

    check()
