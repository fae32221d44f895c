"""The Python door: what its functions answer is what the command line answers, and importing it loads nothing."""

import json
import subprocess
import sys
from types import ModuleType

import pytest
import schedcast as sc
import torch
from torch import nn

from simulator.model.job import Job
from tests.support.loader_traces import write_loader_trace
from tests.support.nsys_exports import write_export
from tests.support.refusals import refuses
from tests.support.small_traces import write_trace
from tests.support.training_traces import TrainingJob, write_ranks
from traces.documents.predictions import Predictions
from traces.documents.replay_result import Diff, ReplayResult
from traces.documents.timeline import Timeline
from traces.errors import Code, SchedcastError
from traces.formats.reading import load_trace
from ui.api.arguments import in_python


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, 64), torch.randint(10, (32,))


@pytest.fixture(scope="module")
def predicted(network, batch):
    return sc.predict(network, batch, on="h100")


@pytest.mark.thorough
@pytest.mark.parametrize("call", ["0", "sc.replay({trace!r}, ['host 2x faster']).json()", "repr(sc.diff({trace!r}, {trace!r}))"])
def test_recorded_runs_need_no_torch(call, tmp_path):
    code = f"import sys, schedcast as sc; {call.format(trace=str(write_trace(tmp_path / 'trace.json')))}; print('torch' in sys.modules)"
    path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=path)
    assert done.stdout.strip() == "False"


def test_a_live_module_takes_as_long_as_the_model_of_its_name():
    built = Job("lenet5", 64).build()
    live = sc.predict(built.module, (*built.inputs, built.target), optimizer="adam:fused", on="h100")
    named = sc.predict("lenet5", 64, optimizer="adam:fused", on="h100")
    assert (live.step_s, live.interval_s, live.peak_bytes) == (named.step_s, named.interval_s, named.peak_bytes)
    assert repr(live).startswith("LeNet5-")
    assert "slowest layers" in " ".join(repr(live).split())


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.3), ("sgd", "foreach", 0.3)),
        (lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9), ("momentum", "foreach", 0.3)),
        (lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, nesterov=True, foreach=False), ("nesterov", "for", 0.3)),
        (lambda p: torch.optim.AdamW(p, fused=True), ("adamw", "fused", 1e-3)),
        (lambda p: torch.optim.Adam(p, lr=torch.tensor(0.5)), ("adam", "foreach", 0.5)),
    ],
)
def test_a_live_optimizer_is_understood(network, batch, optimizer, expected):
    job = sc.predict(network, batch, optimizer=optimizer(network.parameters()), on="h100").job
    assert (job.optimizer, job.form, job.lr) == expected


def test_an_optimizer_that_is_not_modeled_is_refused(network, batch):
    with refuses(Code.REQUEST, "optimizer LBFGS is not modeled; expected one of SGD"):
        sc.predict(network, batch, optimizer=torch.optim.LBFGS(network.parameters()), on="h100")


def test_autocast_and_the_parameters_decide_the_precision(network, batch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sc.predict(network, batch, on="h100").job.precision == "amp"
    assert sc.predict(nn.Linear(64, 10).bfloat16(), (batch[0].bfloat16(), batch[1]), on="h100").job.precision == "bf16"
    assert sc.predict(network, batch, on="h100").job.precision == "default"


def test_what_is_assumed_is_said(network, batch):
    predicted = sc.predict(nn.Linear(64, 10).eval(), (batch[0], torch.rand(32, 10)), on="h100")
    assert [words.split(",")[0] for words in predicted.prediction.assumed[0].split("; ")[:2]] == ["the model", "the target"]
    assert "Assumed: the model, which is in evaluation mode" in " ".join(repr(predicted).split())
    assert not sc.predict(network, batch, on="h100").prediction.assumed


def test_types_that_pytorch_refuses_to_multiply_are_refused(batch):
    with refuses(Code.MODEL, "has operands of bfloat16 and float32, which PyTorch refuses; expected one type"):
        sc.predict(nn.Linear(64, 10).bfloat16(), batch, on="h100")
    assert sc.predict(nn.Linear(64, 10), batch, on="h100", precision="bf16").job.precision == "bf16"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            lambda net, batch: sc.predict(net, batch, samples="8"),
            r"predict\(samples=...\) is '8', of type str; expected a whole",
        ),
        (lambda net, batch: sc.predict(net, batch, strategy=3), "strategy= is 3, of type int; expected a list, each a text"),
        (lambda net, batch: sc.predict(net, batch, accumulate=2.0), "accumulate is 2.0, of type float; expected a whole number"),
        (
            lambda net, batch: sc.predict(net, batch, precision=torch.int8),
            "unknown precision 'int8'",
        ),
        (lambda net, batch: sc.predict(net, batch, seq=8), "applies to built-in models, not to a module"),
        (
            lambda net, batch: sc.predict(net, bach=batch),
            "predict knows no 'bach'; expected one of",
        ),
        (lambda net, batch: sc.predict("lenet5", batch[0]), "batch= is tensor.*, of type Tensor; expected a whole number"),
        (
            lambda net, batch: sc.predict(nn.Linear, batch),
            "predict takes a torch.nn.Module or a model's name, not Linear; make the module first",
        ),
        (lambda net, batch: sc.predict(nn.LazyLinear(10), batch), "has lazy parameters; .* run one forward first"),
        (lambda net, batch: sc.predict(torch.jit.script(net), batch), "is TorchScript, whose ops cannot be captured"),
        (lambda net, batch: sc.predict(torch.jit.trace(net, batch[0]), batch), "is TorchScript, whose ops cannot be captured"),
        (lambda net, batch: sc.replay(3), "a recording is 3, of type int; expected a text or a path"),
        (lambda net, batch: sc.report("page.html", 3), "an answer is 3, of type int; expected"),
    ],
)
def test_what_the_door_does_not_take_is_refused_in_one_line(network, batch, call, expected):
    with pytest.raises(SchedcastError, match=expected) as refused:
        call(network, batch)
    assert "\n" not in str(refused.value)


def test_a_batch_without_numbers_is_as_good_as_one_with_them(network, batch, predicted):
    assert sc.predict(network, tuple(each.to("meta") for each in batch), on="h100").step_s == predicted.step_s

    def step(model, given):
        return model(given[0]).mean() * (2 if given[1].all() else 1)

    with refuses(Code.REQUEST, "a step reads numbers, and the batch is on the device meta"):
        sc.predict(network, tuple(each.to("meta") for each in batch), step=step, on="h100")


def test_a_package_without_a_spec_is_not_installed(monkeypatch):
    stub = ModuleType("torchvision")
    stub.__spec__ = None
    monkeypatch.setitem(sys.modules, "torchvision", stub)
    with refuses(Code.REQUEST, "needs torchvision, which is not installed"):
        sc.predict("torchvision:resnet18", 8, on="h100")


class Labeled(nn.Module):
    """Computes its own loss if it is given labels."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x, labels=None):
        logits = self.linear(x)
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits, labels)}


class Masked(nn.Module):
    """Has a second argument that is no target."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x, mask=None):
        return self.linear(x) if mask is None else self.linear(x * mask)


@pytest.mark.parametrize(("module", "inputs"), [(Labeled(), {"input:0", "input:1"}), (Masked(), {"input:0", "target:0"})])
def test_the_second_of_a_pair_is_the_target_unless_the_module_takes_it(module, inputs, batch):
    job = sc.predict(module, batch, on="h100").job
    assert set(job.graph().inputs) == inputs


def test_strategies_are_compared_and_refused_in_words(predicted):
    compared = predicted.compare("turbodl", "gpipe")
    assert list(compared.frame()["strategy"]) == ["pytorch", "pytorch-graph", "turbodl"]
    assert "gpipe needs 2 devices" in " ".join(repr(compared).split())
    document = Predictions.model_validate(compared.json())
    assert [each.strategy for each in document.predictions] == ["pytorch", "pytorch-graph", "turbodl"]
    assert [each.strategy for each in document.refused] == ["gpipe"]


def test_one_strategy_and_none_are_answered_with_the_rows_of_the_command_line(network, batch):
    def told(**asked):
        return [each["strategy"] for each in sc.predict(network, batch, **asked).json()["predictions"]]

    assert told(on="h100", strategy="turbodl") == ["turbodl"]
    assert told(on="2xp100") == ["pytorch", "pytorch-ddp", "pytorch-fsdp"]


def test_a_faster_memory_shortens_the_step(predicted):
    named = sc.predict("vgg16", 64, on="h100")
    assert named.what_if(memory=2).step_s < named.step_s
    assert predicted.what_if(batch=64, optimizer="adam:fused", on="a100").job.form == "fused"
    with refuses(Code.NAME, "what_if knows no 'speed'; expected one of sms, flops"):
        predicted.what_if(speed=2)


def test_fields_of_the_job_are_named_as_on_the_command_line():
    tiny = "lm:form=gpt,layers=1,d_model=32,heads=2,vocab=64"
    job = sc.predict(tiny, on="8xh100", devices=3, seq=16, strategy="data-parallel").job
    assert (job.batch % 3, job.image_size) == (0, 16)
    with refuses(Code.NAME, "predict knows no 'sequence'; expected one of on, devices"):
        sc.predict(tiny, on="h100", sequence=16)


def test_hours_and_money_follow_from_the_step(predicted):
    cost = predicted.hours(samples=3200, epochs=36, price=2.0)
    assert cost.steps == 3600
    assert cost.hours == pytest.approx(predicted.step_s)
    assert cost.money == pytest.approx(2 * cost.hours)
    low, high = cost.interval
    assert low < cost.hours < high
    with refuses(Code.REQUEST, "hours takes samples or tokens"):
        predicted.hours()
    with refuses(Code.REQUEST, "inputs are rows of tokens"):
        predicted.hours(tokens=10)


@pytest.mark.parametrize("given", [{"samples": -3200}, {"samples": 10, "epochs": 0}, {"samples": 10, "price": -1.0}, {"tokens": -5}])
def test_hours_of_figures_that_nothing_has_are_refused(predicted, given):
    with refuses(Code.REQUEST, "expected a number"):
        predicted.hours(**given)


def test_a_job_that_does_not_fit_takes_no_hours_and_costs_nothing(network, batch):
    with refuses(Code.MEMORY, "a job that does not fit takes none: .* does not fit: needs"):
        sc.predict(network, batch, on="h100", memory_limit=0.0001).hours(samples=3200, price=2.0)


def test_what_is_too_large_to_be_planned_says_what_fits():
    dense = "bppsa:jacobian=dense,level=0"
    predicted = sc.predict("lenet5", 4096, on="h100", memory_limit=1).compare(dense)
    assert "; the largest batch that fits is " in predicted.json()["refused"][0]["why"]
    assert f"- {dense}: {in_python(predicted.refusals[dense].words)}" in repr(predicted).replace(" \n", " ")


def test_tokens_count_by_the_rows_of_a_language_model():
    embedding = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))
    tokens = torch.randint(50, (4, 16))
    predicted = sc.predict(embedding, tokens, tokens, on="h100")
    assert predicted.hours(tokens=640).steps == 10


def test_the_largest_batch_fits_and_a_larger_one_does_not(network, batch):
    predicted = sc.predict(network, batch, on="h200", memory_limit=0.003)
    largest = predicted.largest_batch()
    assert predicted.what_if(batch=largest).fits
    assert not predicted.what_if(batch=largest + 1).fits


def test_a_prediction_is_saved_as_the_command_line_prints_it(predicted, tmp_path):
    (loaded,) = Predictions.load(predicted.save(tmp_path / "prediction.json")).predictions
    assert loaded.step_s == predicted.step_s == predicted.json()["step_s"]
    timeline = predicted.timeline()
    assert Timeline.load(timeline.save(tmp_path / "timeline.json.gz")).step_s == predicted.step_s
    assert b"<svg" in timeline.save(tmp_path / "timeline.svg").read_bytes()
    assert "schedcast-payload" in timeline.save(tmp_path / "timeline.html").read_text()
    with refuses(Code.REQUEST, "cannot write a timeline as timeline.txt"):
        timeline.save(tmp_path / "timeline.txt")


def test_a_notebook_shows_cards_without_a_network(predicted):
    for card in (predicted._repr_html_(), predicted.timeline()._repr_html_()):
        assert card.startswith(("<pre", "<iframe"))
        assert "http://" not in card.replace("http://www.w3.org", "")
    assert "plain PyTorch" in predicted._repr_html_()


def test_a_page_holds_several_answers(predicted, tmp_path):
    page = sc.report(tmp_path / "page.html", predicted, predicted.compare("turbodl")).read_text()
    assert page.count("<h2") >= 2
    assert "turbodl" in page


@pytest.fixture
def slow(tmp_path):
    return write_loader_trace(tmp_path / "slow.json.gz", [500.0] * 5)


@pytest.mark.thorough
def test_a_replay_answers_rules_as_the_command_line_does(slow, schedcast):
    recorded = sc.replay(slow)
    asked = recorded.what_if("host 2x faster")
    assert asked.after_s < recorded.step_s
    assert recorded.after_s is None
    printed = schedcast.call("replay", slow, "--what-if", "host 2x faster", "--json")
    assert ReplayResult.model_validate(asked.json()) == ReplayResult.model_validate(json.loads(printed.out))
    assert len(recorded.frame())
    assert recorded.timeline().timeline.kind == "recorded"


def test_a_file_of_several_ranks_says_what_each_costs(tmp_path):
    traces = write_ranks(tmp_path, [TrainingJob()] * 2)
    export = write_export(tmp_path / "report.sqlite", [load_trace(trace) for trace in traces])
    assert {cost.rank for cost in sc.replay(export).result.stragglers} == {0, 1, None}


def test_a_difference_adds_up(slow, tmp_path):
    fast = sc.replay(write_loader_trace(tmp_path / "fast.json.gz", [100.0] * 5))
    difference = sc.diff(slow, fast)
    assert Diff.model_validate(difference.json()).terms
    assert "faster" in repr(difference)


def test_a_search_ranks_plans(predicted):
    searched = sc.search(predicted, strategies=["turbodl", "backward-fusion"], processes=1)
    assert searched.best in set(searched.frame()["plan"])
    assert "fastest" in repr(searched) or searched.best in repr(searched)
    assert sc.search("lenet5", 64, ["turbodl"], 1, on="h100").result.model == "lenet5"


@pytest.mark.thorough
def test_what_measures_runs_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    validated = sc.validate("lenet5", 8, ["baseline"], quick=True, out=tmp_path / "report")
    assert validated.right
    assert "baseline" in repr(validated)
    assert (tmp_path / "report" / "index.html").exists()
    assert "costs measured" in repr(sc.calibrate("lenet5", 8, ["turbodl"]))
    trained = sc.run("lenet5", 8, steps=3)
    assert trained.json()["schema"].startswith("schedcast.run/")


def test_a_measurement_is_refused_with_the_line_of_the_command():
    with refuses(Code.REQUEST, "takes a model by its name, not a Linear; write a factory"):
        sc.validate(nn.Linear(2, 2))
    with refuses(Code.REQUEST, "unknown model 'no-such-model'"):
        sc.validate("no-such-model", 4)


def test_a_measured_step_is_compared_with_the_predicted_one(predicted):
    assert predicted.normal(predicted.step_s).verdict == "normal"
    assert predicted.normal(9.0).json()["measured_s"] == 9.0
    assert "slower than expected" in repr(predicted.normal(9.0))
    assert "published steps" in repr(predicted)
    with refuses(Code.REQUEST, r"normal\(measured_s=0\); expected seconds above 0"):
        predicted.normal(0)
