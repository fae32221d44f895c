"""Watching a training loop: what is recorded, when, and by the callbacks of libraries. A trace stands in for a GPU's recording."""

import gc
import shutil
import threading
from itertools import accumulate

import pytest
import schedcast as sc
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.support.canvas_payload import payloads_of_page
from tests.support.loader_traces import write_loader_trace
from tests.support.refusals import refuses
from traces.errors import Code
from ui.api.watching import BEFORE, WARM_UP


@pytest.fixture
def rows() -> TensorDataset:
    return TensorDataset(torch.randn(64, 8), torch.randint(3, (64,)))


def train(loader: DataLoader, seen) -> None:
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, target in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), target).backward()
        optimizer.step()
        seen.step()


def test_a_loop_on_a_cpu_says_how_long_it_waits_for_data(rows, tmp_path):
    with sc.watch(steps=3, out=tmp_path / "steps.json.gz") as seen:
        train(DataLoader(rows, batch_size=4), seen)
    assert seen.trace == tmp_path / "steps.json.gz"
    assert [path.name for path in tmp_path.iterdir()] == ["steps.json.gz"]
    words = " ".join(repr(seen).split())
    assert "of which the loop waits" in words
    assert "No GPU was recorded" in words
    assert seen.overhead is not None


@pytest.mark.parametrize(
    ("recorded_s", "words"), [(1.2, "Recording made the steps 20.0 % longer."), (0.9, "Recording did not make the steps longer.")]
)
def test_what_recording_costs_is_measured_on_the_steps_around_it(tmp_path, recorded_s, words):
    seen = sc.watch(steps=2, out=tmp_path / "steps.json.gz")
    seen.ended = True
    seen._ends_s = list(accumulate([9.0, *[1.0] * (BEFORE - 1), *[5.0] * WARM_UP, recorded_s, recorded_s], initial=0.0))
    assert words in repr(seen)


def test_a_loop_that_ends_too_early_says_how_many_steps_are_missing(rows, tmp_path):
    with sc.watch(steps=3, out=tmp_path / "steps.json.gz") as seen:
        train(DataLoader(rows, batch_size=32), seen)
    assert not list(tmp_path.iterdir())
    with refuses(Code.REQUEST, f"2 steps have ended; expected {BEFORE + WARM_UP + 3} calls of step"):
        seen.json()


def test_a_loop_that_fails_keeps_its_error(rows, tmp_path):
    with pytest.raises(ZeroDivisionError), sc.watch(steps=3, out=tmp_path / "steps.json.gz"):
        _ = 1 / 0
    assert not list(tmp_path.iterdir())


def test_every_rank_has_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert sc.watch(out=tmp_path / "steps.json.gz").trace == tmp_path / "steps-rank3.json.gz"
    assert sc.watch(out=tmp_path / "steps").trace == tmp_path / "steps-rank3.json.gz"
    assert "rank3" in sc.watch().trace.name


def test_no_steps_are_refused():
    with refuses(Code.REQUEST, r"watch\(steps=0\); expected at least 1"):
        sc.watch(steps=0)


@pytest.fixture
def on_a_gpu(monkeypatch, tmp_path):
    """The profiler writes the trace of a GPU."""
    trace = write_loader_trace(tmp_path / "gpu.json.gz", [500.0] * 5)
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", lambda _, path: shutil.copy(trace, path))
    monkeypatch.setattr("ui.api.watching.on_gpu", lambda: True)


@pytest.mark.usefixtures("on_a_gpu")
def test_on_a_gpu_it_is_the_answer_of_its_trace(rows, tmp_path):
    with sc.watch(steps=3, out=tmp_path / "steps.json.gz") as seen:
        train(DataLoader(rows, batch_size=4), seen)
    assert "enumerate(DataLoader)" in " ".join(repr(seen).split())
    assert seen.json() == sc.replay(seen).json()
    assert seen.what_if("host 2x faster").after_s < sc.replay(seen.trace).step_s
    assert "The trace is" in repr(seen)
    page = seen.report(tmp_path / "page.html").read_text()
    assert "Where the time of the median step goes" in page
    assert payloads_of_page(page)


def test_a_watch_within_another_records_nothing_and_the_loop_goes_on(rows, tmp_path, caplog):
    with sc.watch(steps=3, out=tmp_path / "outer.json.gz") as outer, sc.watch(steps=3, out=tmp_path / "inner.json.gz") as inner:
        for _ in range(2):
            train(DataLoader(rows, batch_size=4), outer)
            train(DataLoader(rows, batch_size=4), inner)
    assert outer.ended
    assert [record.getMessage() for record in caplog.records] == ["watch: another watch records in this process; the loop goes on"]
    with refuses(Code.REQUEST, "nothing was recorded: another watch records in this process"):
        inner.json()
    with sc.watch(steps=3) as after:
        train(DataLoader(rows, batch_size=4), after)
    assert after.ended


def test_steps_of_several_threads_do_not_end_the_loop(rows, caplog):
    failures = []
    with sc.watch(steps=3) as seen:
        threads = [threading.Thread(target=_step_often, args=(seen, failures)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert all("several threads" in record.getMessage() for record in caplog.records)


def _step_often(seen, failures: list) -> None:
    try:
        for _ in range(200):
            seen.step()
    except Exception as error:
        failures.append(error)


@pytest.mark.parametrize("out", ["missing/steps.json.gz", "", "a\0b", 3])
def test_a_file_that_cannot_be_written_is_refused_before_the_loop(tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    with refuses(Code.REQUEST, r"^watch\(out="):
        sc.watch(out=out)


def test_a_folder_that_is_lost_while_the_loop_runs_does_not_end_it(rows, tmp_path, caplog):
    (tmp_path / "lost").mkdir()
    with sc.watch(steps=3, out=tmp_path / "lost" / "steps.json.gz") as seen:
        (tmp_path / "lost").rmdir()
        train(DataLoader(rows, batch_size=4), seen)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["watch"]
    with refuses(Code.REQUEST, "nothing was recorded: "):
        seen.json()


def test_a_gpu_that_the_loop_does_not_use_is_said(rows, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("ui.api.watching.on_gpu", lambda: True)
    seen = sc.watch(steps=3, out=tmp_path / "steps.json.gz").start()
    train(DataLoader(rows, batch_size=4), seen)
    words = " ".join(capsys.readouterr().err.split())
    assert "A step takes" in words
    assert "Nothing is replayed: " in words


def test_a_temporary_trace_is_removed_with_its_watch(rows):
    with sc.watch(steps=3) as seen:
        train(DataLoader(rows, batch_size=4), seen)
    folder = seen.trace.parent
    assert seen.trace.exists()
    assert folder.stat().st_mode & 0o077 == 0
    del seen
    gc.collect()
    assert not folder.exists()


class Classifier(nn.Module):
    """A model as the Trainer of transformers takes it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x, labels):
        logits = self.linear(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.thorough
def test_the_trainer_of_transformers_calls_it(rows, tmp_path, capsys):
    from simulator.model.libraries import define_missing_operators

    define_missing_operators()
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    callback = sc.hf(steps=2, out=tmp_path / "hf.json.gz")
    data = [{"x": x, "labels": y} for x, y in rows]
    options = transformers.TrainingArguments(
        str(tmp_path / "out"),
        per_device_train_batch_size=4,
        max_steps=10,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    transformers.Trainer(Classifier(), options, train_dataset=data, callbacks=[callback]).train()
    assert callback.seen.ended
    assert "A step takes" in capsys.readouterr().err


@pytest.mark.parametrize("given_to", ["Accelerator", "profile"])
def test_accelerates_profile_records_with_it(rows, tmp_path, capsys, given_to):
    """Around the user's own loop, which accelerate prepares."""
    accelerator_of = pytest.importorskip("accelerate").Accelerator
    handler = sc.accelerate(steps=2, out=tmp_path / "accelerate.json.gz")
    accelerator = accelerator_of(cpu=True, kwargs_handlers=[handler] if given_to == "Accelerator" else [])
    model = nn.Linear(8, 3)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters()), DataLoader(rows, batch_size=4))
    with accelerator.profile(handler if given_to == "profile" else None) as seen:
        for inputs, target in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(inputs), target))
            optimizer.step()
            seen.step()
    assert seen.ended
    assert seen.trace == tmp_path / "accelerate.json.gz"
    assert capsys.readouterr().err.count("A step takes") == 1


def test_a_loop_that_is_not_indented_prints_the_answer(rows, tmp_path, capsys):
    seen = sc.watch(steps=2, out=tmp_path / "steps.json.gz").start()
    train(DataLoader(rows, batch_size=4), seen)
    assert seen.ended
    assert capsys.readouterr().err.count("A step takes") == 1


@pytest.mark.thorough
def test_the_trainer_of_lightning_calls_it(rows, tmp_path, capsys):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        """A module as Lightning takes it."""

        def __init__(self):
            super().__init__()
            self.model = nn.Linear(8, 3)

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = sc.lightning(steps=2, out=tmp_path / "lightning.json.gz")
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], default_root_dir=tmp_path, **quiet)
    trainer.fit(Module(), DataLoader(rows, batch_size=4))
    assert callback.seen.ended
    assert "A step takes" in capsys.readouterr().err
