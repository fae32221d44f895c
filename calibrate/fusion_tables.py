"""Measurements of optimizer fusion in plain PyTorch on this machine: the paper's loops with hooks, and the locality behind their gains."""

from collections.abc import Mapping
from statistics import median
from typing import Literal

import torch

from calibrate.numerics import reference
from calibrate.planned import plan_calibrated
from calibrate.testbed import Progress, Testbed
from executors.contexts import one_thread
from executors.kernels.update import torch_optimizer
from executors.reference import Reference
from simulator.model.job import Job
from simulator.papers.fusion import job as paper_job
from simulator.papers.predicting import ratio
from traces.documents.profile import Profile
from traces.documents.reproduction import Figure, PaperCase, Table
from traces.process import seconds_of

Fusion = Literal["none", "forward", "backward"]
#: What the table calls each loop, by its fusion.
LOOPS: Mapping[Fusion, str] = {"none": "baseline", "forward": "forward-fusion", "backward": "backward-fusion"}
ROUNDS, STEPS, WARM_UP = 9, 3, 3
#: Batches and image sizes: a tiny and a small batch of small images on a CPU; on a GPU, batches of the paper's figure 5 (None: full size).
ON_CPU, ON_GPU = ((1, 64), (8, 64)), ((1, None), (32, None))
#: Elements of the float32 parameters whose updates are timed, and the bytes that are changed to evict them, more than any cache holds.
ELEMENTS, EVICTING_BYTES = (4_096, 16_384, 65_536, 262_144, 1_048_576), 256 << 20


def tables(testbed: Testbed, profile: Profile, progress: Progress) -> tuple[Table, ...]:
    """The tables of hooks and of locality."""
    return hooks_table(testbed, profile, progress), locality_table()


def hooks_table(testbed: Testbed, profile: Profile, progress: Progress) -> Table:
    """Steps of plain PyTorch's loop and of the loops with hooks, measured in turn, and predicted with this machine's costs."""
    rows = []
    for batch, size in ON_GPU if testbed.identity.kind == "gpu" else ON_CPU:
        job = paper_job("mobilenet_v2", batch, size)
        labels = {fusion: f"pytorch-hooks:fusion={fusion}" for fusion in LOOPS}
        planned, _ = plan_calibrated(
            testbed, job, labels.values(), shared_options={}, profile=profile, calibrate=True, save_to=None, progress=progress, every=True
        )
        measured_s = _measured(job, testbed)
        for fusion, name in LOOPS.items():
            predicted = [planned[labels[each]].timeline.step_s if labels[each] in planned else None for each in ("none", fusion)]
            gain = ratio(*predicted)
            figures = (
                Figure(name="step", unit="s", predicted=predicted[1]),
                Figure(name="step, measured", unit="s", predicted=measured_s[fusion]),
                Figure(name="speed-up", unit="x", predicted=gain),
                Figure(name="speed-up, measured", unit="x", predicted=measured_s["none"] / measured_s[fusion]),
            )
            rows.append(PaperCase(labels={"batch": str(batch), "loop": name}, figures=figures))
    about = (
        f"Plain PyTorch {torch.__version__} on this machine, MobileNetV2, Adam's for-loop form; an optimizer for each parameter, called by"
        f" hooks. Medians of {ROUNDS} rounds of {STEPS} steps, in turn."
    )
    return Table(name="hooks", title="Hooks that update in plain PyTorch, predicted and measured here", about=about, rows=tuple(rows))


def _measured(job: Job, testbed: Testbed) -> dict[Fusion, float]:
    backend = testbed.backend if testbed.identity.kind == "gpu" else None
    loops = {fusion: reference(job, job.build(), same_masks=False, backend=backend, fusion=fusion) for fusion in LOOPS}
    seconds: dict[Fusion, list[float]] = {fusion: [] for fusion in LOOPS}
    for loop in loops.values():
        _steps_s(loop, WARM_UP)
    for number in range(ROUNDS):
        for place in range(len(LOOPS)):  # every loop goes first equally often
            fusion = list(LOOPS)[(number + place) % len(LOOPS)]
            seconds[fusion].append(_steps_s(loops[fusion], STEPS))
    return {fusion: median(each) for fusion, each in seconds.items()}


def _steps_s(loop: Reference, steps: int) -> float:
    def run() -> None:
        for _ in range(steps):
            loop.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return seconds_of(run) / steps


def locality_table() -> Table:
    """Times of updates on one core, with the gradient still in the cache and after it was evicted."""
    with one_thread():
        evicting = torch.zeros(EVICTING_BYTES // 4)
        rows = tuple(_locality_row(name, elements, evicting) for name in ("momentum", "adam") for elements in ELEMENTS)
    about = (
        "Measured on one core: parameter and state are not in its caches, the gradient was written just before, or other data since."
        f" Medians of {ROUNDS} rounds, in turn. What the cache saves is most of a fusion's gain where launches cost nothing."
    )
    return Table(name="locality", title="What a gradient in the cache saves an update", about=about, rows=rows)


def _locality_row(optimizer: str, elements: int, evicting: torch.Tensor) -> PaperCase:
    parameter, made = torch.zeros(elements, requires_grad=True), torch.randn(elements)
    parameter.grad = torch.zeros(elements)
    update = torch_optimizer(optimizer, "for", [parameter])
    update.step()
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * ROUNDS):
        hot = number % 2 == 0
        evicting.add_(1.0)
        parameter.grad.copy_(made)
        if not hot:
            evicting.add_(1.0)
        seconds[hot].append(seconds_of(update.step))
    hot_s, evicted_s = median(seconds[True]), median(seconds[False])
    figures = (
        Figure(name="in the cache", unit="s", predicted=hot_s),
        Figure(name="evicted", unit="s", predicted=evicted_s),
        Figure(name="gain", unit="x", predicted=evicted_s / hot_s),
    )
    return PaperCase(labels={"optimizer": optimizer, "elements": str(elements)}, figures=figures)
