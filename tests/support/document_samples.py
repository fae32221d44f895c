"""A sample of every document that commands read, and all that the program does with it after reading."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from calibrate.identity import same_device
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import gpu_machine, load_machine
from simulator.machine.this_cpu import this_cpu
from simulator.predict.forecast import forecast
from simulator.predict.target import Target
from tests.support.page_samples import prediction, result, skipped, two_lanes, validation
from tests.support.sample_runs import comparisons
from tests.support.sample_trainings import evaluated
from tests.support.search_samples import search_result, verification
from tests.support.small_plans import forward_fused
from traces.documents.comparison import Change, Comparison, Prediction, Validation, phase_seconds
from traces.documents.gpu_report import Fix, GpuReport, PartRecord, fix_first, summarize
from traces.documents.predictions import Place, Predictions
from traces.documents.profile import Contention, Dispatch, Identity, Interference, KeyCost, Profile, Stats, Transfer
from traces.documents.replay_result import Contribution, Diff, DiffTerm, ReplayResult, ReplayStep
from traces.documents.reproduction import Chart, Check, Figure, Panel, Paper, PaperCase, Reproduction, Series, Table
from traces.documents.search_result import SearchResult
from traces.documents.spans import overlapped_kernel_seconds, phase_stretches
from traces.documents.timeline import Timeline
from traces.documents.training import TrainingRun
from traces.errors import Code, Refusal
from traces.formats.perfetto import trace_document
from ui.commands.reporting import sections_of
from ui.present import gpu_report as gpu_reports
from ui.present import predictions, reproductions, searches, trainings, validations
from ui.present.blocks import Block
from ui.present.charts import phases_figure, predictions_figure, speedups_figure
from ui.present.page import page
from ui.present.terminal import show
from ui.present.timeline_canvas.payload import timelines_payload

GPU = Identity(kind="gpu", gpu="NVIDIA H100 80GB HBM3", sms=132, torch="2.13.0")


def printed(*items: Any) -> None:
    """Print items as the commands do."""
    console = Console(file=io.StringIO(), width=120)
    for item in items:
        if isinstance(item, Block):
            show(console, item)
        else:
            console.print(item, markup=False, highlight=False)


def use_timeline(path: Path) -> None:
    """Load a timeline, draw it, measure it and export it."""
    timeline = Timeline.load(path)
    json.dumps(trace_document({"predicted": timeline, "measured": timeline}), allow_nan=False)
    timelines_payload([timeline, timeline])
    comparison = Comparison(timeline, timeline, result())
    phases_figure(comparison)
    printed(validations.phase_words(comparison), phase_seconds(timeline), overlapped_kernel_seconds(timeline), phase_stretches(timeline))


def use_prediction(path: Path) -> None:
    """Load a prediction, print it and draw it."""
    document = Prediction.load(path)
    printed(predictions.prediction_table([document]), *predictions.prediction_words(document), *predictions.holder_words(document))
    predictions.critical_cells(document, 10)
    predictions_figure([document, document], ["first", "second"])
    page("Prediction", [predictions.section(document)])
    printed(*predictions.explained(document))
    json.dumps(document.document(), allow_nan=False)


def use_on_pages(path: Path) -> None:
    """Print what a page shows of a document, and write the page: all that is done with most kinds."""
    sections = sections_of(path)
    printed(*(block for section in sections for block in section.blocks))
    page("one", sections)
    for document in (section.document for section in sections if section.document is not None):
        json.dumps(document.document(), allow_nan=False)


def use_validation(path: Path) -> None:
    """Load a validation, print it and draw it."""
    document = Validation.load(path)
    printed(validations.validation_table([document]), validations.job_words(document), *validations.validation_words(document))
    for row in document.results:
        printed(*validations.result_words(document, row), *validations.memory_words(row))
    speedups_figure(document)
    summarize([("name", document)])
    json.dumps(document.document(), allow_nan=False)


def use_training(path: Path) -> None:
    """Load a training, print it, draw it and write its page."""
    document = TrainingRun.load(path)
    printed(trainings.title(document), *trainings.sentences(document), trainings.cells(document))
    for measure in trainings.measures(document):
        trainings.training_figure(document, measure)
    page("Training", [trainings.section(document)])
    json.dumps(document.document(), allow_nan=False)


def use_profile(path: Path) -> None:
    """Load a profile, and predict with it for a CPU and for a GPU."""
    profile = Profile.load(path)
    plan = forward_fused()
    machine = gpu_machine(profile) if profile.identity.kind == "gpu" else this_cpu(profile, 2)
    json.dumps({name: [device.sms, dict(device.peak_flops)] for name, device in ((d.name, d) for d in machine.devices)}, allow_nan=False)
    forecast(plan, Target(gpu_machine(profile), CostModel(gpu_machine(profile), profile)))
    forecast(plan, Target(load_machine("h100", profile), CostModel(load_machine("h100", profile), profile)))
    profile.matches(GPU)


def use_gpu_report(path: Path) -> None:
    """Load a GPU report, also one of an earlier command, and write its page."""
    document = GpuReport.load(path)
    gpu_reports.readme(document, {"lenet5": validation(result())})
    printed(*map(gpu_reports.part_line, document.parts), document.well, *fix_first(document.parts))
    printed(same_device(document.device, {"name": "NVIDIA H100", "driver": "580.2"}))
    document.read_validations(path.parent)


def use_reproduction(path: Path) -> None:
    """Load a reproduction, and write its page also as one whose papers are links."""
    use_on_pages(path)
    page("Papers", reproductions.sections(Reproduction.load(path), linked=True))


def use_search(path: Path) -> None:
    """Load the result of a search and print it."""
    document = SearchResult.load(path)
    printed(*searches.blocks(document), searches.pruned_cells(document))
    page("Search", [searches.section(document)])


def _profile() -> dict[str, Any]:
    stats = Stats(2e-5, 2.1e-5, 1.9e-5, 2.2e-5, 12)
    keys = list(forward_fused().keys(load_machine("h100")))
    profile = Profile(
        identity=GPU,
        costs={key: KeyCost(stats, stats, "matmul", 1e6, 8e6, 1024, 8, 7e-6, "profiler") for key in keys[::2]},
        failures={keys[1]: "no kernel"},
        dispatch=Dispatch(dispatch_s=5e-6, record_s=1e-6, wait_s=1e-6, queue_depth=1000),
        transfers={"cuda:0>host": Transfer(latency_s=1e-5, bytes_per_s=5e10, points=[(1e6, 3e-5)])},
        contention=Contention(
            multipliers={"conv|elementwise": 1.2}, co_runs=[Interference("conv", "elementwise", 1.2)], saturation_share=0.3
        ),
        other_contention={"bf16": Contention(co_runs=[Interference("compute", "memory", 1.1)])},
        anchor_s=1e-3, cache_bytes=50 * 2**20, memory_bytes=80 * 2**30, bandwidth_bytes_per_s=3e12, peak_flops={"fp32": 6.7e13},
        priority_levels=6, partition_sms={"2": 64}, notes=["throttled"],
    )  # fmt: skip
    return {"schema": "schedcast.profile/1", **json.loads(profile.model_dump_json())}


def _reproduction() -> Reproduction:
    figures = (
        Figure(name="step", unit="s", predicted=0.08, published=0.098, interval=(0.05, 0.12)),
        Figure(name="gain", unit="x", predicted=1.2),
    )
    series = (Series(name="published", x=(1.0, 2.0), y=(0.1, 0.2), published=True), Series(name="predicted", x=(1.0, 2.0), y=(0.1, 0.3)))
    return Reproduction(
        papers=(
            Paper(
                name="fusion", title="Optimizer fusion", reference="2021", machine="titan-xp", setting="MobileNetV2", shares=None,
                tables=(Table(name="steps", title="Steps", about="", rows=(PaperCase(labels={"schedule": "baseline"}, figures=figures),)),),
                checks=(Check(name="trend", claim="it gains", holds=True, said="it does", figures={"gain": 1.2}),),
                charts=(Chart(name="c", title="t", x_label="x", y_label="y", panels=(Panel(title="p", series=series),), level=1.0),),
                notes=("a note",), measured=(validation(result()).document(),),
            ),
        )
    )  # fmt: skip


def _gpu_report() -> GpuReport:
    parts = (
        PartRecord(name="facts", title="Facts", priority=0, status="done", seconds=1.0, file="facts.json"),
        PartRecord(
            name="events", title="?", priority=3, status="done", seconds=1.0, figures={"a": [1, None]}, why="odd",
            fixes=(Fix(worth=2, text="mend it"),),
        ),
        PartRecord(
            name="lenet5", title="LeNet", priority=1, status="left", file="validations/lenet5.json", why="no time", same_numbers=True
        ),
    )  # fmt: skip
    summary = summarize([("lenet5", validation(result(), result("baseline", 0.05, 0.05)))])
    return GpuReport(
        fix_first=("mend it (events)",), date="2026-01-01", versions={"torch": "2.13.0"}, device={"name": "NVIDIA H100", "sms": 132},
        identity={"kind": "gpu"}, minutes=8.0, seconds=400.0, parts=parts, summary=summary, flags=("hot",),
    )  # fmt: skip


#: As an earlier command wrote it.
_GPU_FIRST = {
    "schema": "schedcast.gpu_first/1", "fix_first": ["mend it (events)"], "date": "2026-01-01",
    "device": {"name": "NVIDIA H100", "driver": "580.1"}, "versions": {"torch": "2.13.0"}, "minutes": 9.0, "seconds": 400.0,
    "complete": True, "report": "It was not begun.", "flags": ["a flag"],
    "checks": [
        {"name": "events", "asks": "?", "verdict": "differs", "seconds": 1.0, "figures": {"a": [1, None]}, "means": "odd",
         "mend": [{"worth": 2, "text": "mend it"}], "earlier": False},
    ],
}  # fmt: skip


def _timeline() -> dict[str, Any]:
    from traces.documents.timeline import _ADAPTER

    timeline = comparisons()[-1].predicted
    small = Timeline(**{name: getattr(timeline, name) for name in timeline.__dataclass_fields__} | {"spans": timeline.spans[:12]})
    return {"schema": "schedcast.timeline/1", **_ADAPTER.dump_python(small, mode="json")}


def documents() -> dict[str, tuple[Any, Callable[[Path], None]]]:
    """By kind: a sample as JSON data, and what uses it."""
    replay = ReplayResult(
        gpu_period_measured_s=0.1, gpu_period_simulated_s=0.1, error=0.0, steps=(ReplayStep(name="1", measured_s=0.1, simulated_s=0.1),),
        kernels=3, streams=1, unmatched_kernels=0, exposed_communication_measured_s=0.0, exposed_communication_simulated_s=0.0,
        timeline=two_lanes("recorded"),
    )  # fmt: skip
    terms = (DiffTerm(part="kernels", seconds=0.02, contributions=(Contribution(label="gemm", seconds=0.02, a_s=0.05, b_s=0.07),)),)
    diff = Diff(
        compared="traces", a="a.json", b="b.json", a_step_s=0.1, b_step_s=0.12, difference_s=0.02, terms=terms, remainder_s=0.0, steps=2,
        aligned_share=1.0,
    )  # fmt: skip
    explained = prediction(waterfall=(Change(part="overlap of backward", seconds=-0.02), Change(part="contention", seconds=0.01)))
    placed = Place(model="resnet50", batch=8, machine="h100")
    from traces.documents.timeline import _ADAPTER

    return {
        "timeline": (_timeline(), use_timeline),
        "small timeline": ({"schema": "schedcast.timeline/1", **_ADAPTER.dump_python(two_lanes(), mode="json")}, use_timeline),
        "prediction": (explained.document(), use_prediction),
        "predictions": (
            Predictions.of([(placed, "turbodl", explained, ""), (placed, "gpipe", Refusal(Code.MEMORY, "too large"), "")]).document(),
            use_on_pages,
        ),
        "validation": (validation(result(), result("baseline", 0.05, 0.05), skipped()).document(), use_validation),
        "training": (evaluated("baseline", "autograd", seeds=2).document(), use_training),
        "profile": (_profile(), use_profile),
        "gpu report": (_gpu_report().document(), use_gpu_report),
        "gpu first": (_GPU_FIRST, use_gpu_report),
        "reproduction": (_reproduction().document(), use_reproduction),
        "replay": (replay.document(), use_on_pages),
        "diff": (diff.document(), use_on_pages),
        "search": (search_result(verification=verification(("turbodl", 9, 8, 8.5), ("baseline", 10, 9, 9.5))).document(), use_search),
    }
