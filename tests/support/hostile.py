"""Data whose every name is an attack on a page: an image, a link, a tag, a formula, a symbol. Also a predictor that answers with it."""

from dataclasses import replace
from pathlib import Path

from simulator.machine.presets import HOSTS
from simulator.model.job import NAMED
from tests.support.kineto_traces import Trace
from tests.support.page_samples import result, skipped, two_lanes, validation
from tests.support.sample_trainings import training
from traces.documents.comparison import Comparison, Prediction
from traces.documents.predictions import NearStep, Normal
from traces.documents.timeline import CriticalSpan, Span, Timeline
from traces.errors import Code, Refusal
from ui.present import trainings
from ui.present.report import write_report
from ui.service.jobs import Answer, Choices, Figure, MachineFacts

#: The host that no page may ask for anything.
HOST = "evil.example"
NAME = (
    f'![i](http://{HOST}/i.png) <img src="http://{HOST}/j.png"> <a href="http://{HOST}">a</a> [l](http://{HOST}) http://{HOST}/k'
    f" www.{HOST} me@{HOST} $$\\frac{{1}}{{2}}$$ $x$ :red[r] :material/home: :smile: `c` **b** &lt;"
)  # fmt: skip
#: The same for files, whose names cannot hold a slash.
FILE = f"![i](http:{HOST}) <img src=x> [l](www.{HOST}) $$x$$ :red[r] `c` **b**"


def timeline(kind: str = "predicted") -> Timeline:
    """A timeline whose tasks, layers, phases, devices and lanes have hostile names."""
    plain = two_lanes(kind)
    spans = tuple(Span(f"{s.task} {NAME}", NAME, f"{s.lane} {NAME}", s.start_s, s.end_s, NAME, NAME) for s in plain.spans)
    path = tuple(CriticalSpan(f"{link.task} {NAME}", link.start_s, link.end_s, link.cause, NAME, NAME) for link in plain.critical_path)
    return replace(plain, spans=spans, critical_path=path, memory={NAME: plain.memory["gpu0"]})


def write_reports(folder: Path) -> list[Path]:
    """A report with timelines, and a training."""
    row = result(NAME, options={NAME: NAME}, semantics={NAME: NAME}, calibration="interleaved")
    document = validation(result("baseline", 0.05, 0.05), row, skipped(NAME).model_copy(update={"status": f"skipped: {NAME}"}))
    document = document.model_copy(update={"model": NAME, "optimizer": NAME, "device": {"name": NAME}})
    write_report(folder / FILE, [document, document], [Comparison(timeline(), timeline("measured"), row)])
    curves = training(5, NAME, f"{NAME} 2", data=NAME, semantics={NAME: NAME}, mode=NAME)
    trainings.write(folder / f"training {FILE}", curves.model_copy(update={"job": {**curves.job, "model": NAME}}))
    return [folder / FILE, folder / f"training {FILE}"]


def write_trace(path: Path) -> Path:
    """A trace of three steps whose kernels and steps have hostile names."""
    trace = Trace()
    for number in range(3):
        at = 1000.0 * number
        trace.annotate(f"ProfilerStep#{number} {NAME}", at, 950.0)
        trace.kernel(NAME, at + 10, at + 20, 200.0)
        trace.kernel(f"{NAME} 2", at + 30, at + 220, 200.0)
    return trace.save(path)


def choices() -> Choices:
    """The choices of a predictor whose names are hostile."""
    hostile = dict.fromkeys(("model", "optimizer", "form", "precision", "machine"), (NAME,))
    return {**NAMED, **hostile, "strategies": (NAME, "refused"), "mode": ("eager", "graph"), "host": HOSTS}


def facts(request) -> MachineFacts:
    """One figure, with a hostile unit."""
    return MachineFacts(1, {"memory": Figure(100.0, NAME)})


def speed(request, strategy: str, measured_s: float | None) -> Normal:
    """A published step with hostile names."""
    near = NearStep(
        source=NAME, machine=NAME, model=NAME, batch=1, devices=1, precision=NAME, strategy=NAME, published_s=0.1, predicted_s=0.1
    )
    return Normal(step_s=0.003, interval_s=(0.002, 0.004), measured_s=measured_s, near=(near,))


def predict_many(request) -> dict[str, Answer | Refusal]:
    """A forecast and a refusal with hostile names."""
    drawn = timeline()
    predicted = Prediction(
        strategy=NAME, options={NAME: NAME}, mode=NAME, precision=NAME, step_s=drawn.step_s, interval_s=None, baseline_step_s=0.003,
        speedup=1.0, devices=drawn.devices, fits=True, exposed_transfer_s=0.0, bubble_share=0.0, tasks=3, simulate_wall_s=0.01,
        shares={"measured": 1.0, "fitted": 0.0, "guessed": 0.0}, critical_path=drawn.critical_path,
    )  # fmt: skip
    return {NAME: Answer(predicted, drawn, (NAME,)), f"{NAME} refused": Refusal(Code.NAME, NAME)}
