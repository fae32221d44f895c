"""The command line. It imports typer alone; everything else is loaded when a command needs it, so that --help answers at once."""

import os
import signal
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

# Read by OpenMP when torch is first imported: threads that wait must not spin beside pinned workers.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

#: Exit status after Ctrl-C.
STOPPED = 130
#: Top-level names besides this package's that are ours, lowest layer first.
OWN_PACKAGES = ("traces", "simulator", "executors", "calibrate")

app = typer.Typer(
    name="stepcast",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="""Forecast how long a training step takes under a schedule, and prove it by running that schedule.

A first look: [bold]stepcast demo[/]. One model on this machine:

  stepcast validate --model resnet18 --batch 16 --image-size 64

Your own model: --model my_model.py:make, where make(batch_size) returns (module, inputs, target) or (module, inputs, target, loss).""",
    rich_markup_mode="rich",
)

Model = Annotated[str, typer.Option(help="Built-in name, FILE.py:FACTORY, PACKAGE.MODULE:FACTORY or torchvision:NAME.")]
Batch = Annotated[int, typer.Option(help="Samples per step, all micro-batches together.")]
ImageSize = Annotated[int | None, typer.Option(help="Side of the image, or sequence length, of a built-in model.")]
Optimizer = Annotated[str, typer.Option(help="NAME[:for|foreach|fused], such as adam:fused.")]
Lr = Annotated[float | None, typer.Option(help="Learning rate; the optimizer's default if not given.")]
ClipNorm = Annotated[float | None, typer.Option(help="Clip gradients to this global norm.")]
Accumulate = Annotated[int, typer.Option(help="Micro-batches per update; must divide the batch.")]
Precision = Annotated[str, typer.Option(help="fp32, tf32, bf16 or fp64.")]
Layout = Annotated[str, typer.Option(help="nchw or nhwc.")]
Mode = Annotated[str, typer.Option(help="eager, or graph (CUDA graphs).")]
DeviceName = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
Devices = Annotated[
    int | None, typer.Option(help="How many devices the plan may use: groups of cores, GPUs; default: all of a named machine, else 1.")
]
Link = Annotated[
    str, typer.Option(metavar="alias|copy[:GB/s]", help="What joins groups of CPU cores: their memory, or copies, at a stated rate.")
]
MemoryLimit = Annotated[
    float | None, typer.Option("--memory-limit", metavar="GB", help="Count on no more than this of each memory; devices of one share it.")
]
Setting = Annotated[list[str] | None, typer.Option("--set", help="OPTION=VALUE for every strategy that has the option; repeatable.")]
Strategy = Annotated[str, typer.Option(help="NAME[:option=value,...]; see stepcast strategies.")]
Strategies = Annotated[list[str] | None, typer.Option("--strategy", help="NAME[:option=value,...]; repeatable; default: all.")]
ProfilePath = Annotated[Path | None, typer.Option("--profile", help="A calibration of this or another machine.")]
WHAT_IF_RULES = (
    "A change, repeatable, applied in order: kernel:REGEX*=0.5, host*=0.5, remove:REGEX, optimizer=foreach|fused, backward-fusion,"
    " network*=2, cuda-graph, priority:REGEX=-1."
)
TimelinePath = Annotated[Path | None, typer.Option("--timeline", help="Write the timeline here (.json or .json.gz).")]


def _reserve_stdout(wanted: bool) -> bool:
    if wanted:
        sys.stdout = sys.stderr  # a model's code may print; documents go to the real standard output (commands/output.py)
    return wanted


AsJson = Annotated[bool, typer.Option("--json", callback=_reserve_stdout, help="Print one JSON document on standard output.")]


@app.command()
def models(json: AsJson = False):
    """List the built-in models."""
    _commands("listing").models(json)


@app.command()
def strategies(json: AsJson = False):
    """List the strategies and their options."""
    _commands("listing").strategies(json)


@app.command()
def machines(json: AsJson = False):
    """List the machines that predictions can be made for."""
    _commands("listing").machines(json)


@app.command()
def profiles(json: AsJson = False):
    """List the calibrations kept on this machine."""
    _commands("listing").profiles(json)


@app.command()
def calibrate(
    model: Model,
    batch: Batch,
    image_size: ImageSize = None,
    optimizer: Optimizer = "momentum",
    lr: Lr = None,
    clip_norm: ClipNorm = None,
    accumulate: Accumulate = 1,
    precision: Precision = "fp32",
    layout: Layout = "nchw",
    mode: Mode = "eager",
    device: DeviceName = "cpu",
    devices: Devices = None,
    link: Link = "alias",
    set_: Setting = None,
    strategy: Strategies = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Profile to write or add to; default: this machine's.")] = None,
    json: AsJson = False,
):
    """Measure what a job's plans need on this machine, and add it to the machine's profile.

    Goes on where an interrupted calibration stopped: what is in the profile is not measured again.
    """
    job = _job(model, batch, image_size, optimizer, lr, clip_norm, accumulate, precision, layout)
    _check(strategy, set_)
    _commands("measuring").calibrate(job, strategy or [], set_ or [], output, _where(device, devices, mode, link), json)


@app.command()
def predict(
    model: Model,
    batch: Batch,
    strategy: Strategy,
    image_size: ImageSize = None,
    optimizer: Optimizer = "momentum",
    lr: Lr = None,
    clip_norm: ClipNorm = None,
    accumulate: Accumulate = 1,
    precision: Precision = "fp32",
    layout: Layout = "nchw",
    mode: Mode = "eager",
    device: DeviceName = "cpu",
    devices: Devices = None,
    link: Link = "alias",
    memory_limit: MemoryLimit = None,
    set_: Setting = None,
    profile: ProfilePath = None,
    machine: Annotated[str | None, typer.Option(help="A machine's name; see stepcast machines.")] = None,
    timeline: TimelinePath = None,
    json: AsJson = False,
):
    """Predict the step time of one strategy, and say why it is faster or slower than the baseline.

    Costs come from --profile (measured) or from --machine (guessed, or measured for this machine and presets with a shipped profile).
    Exit status 1 when the plan does not fit in memory.
    """
    job = _job(model, batch, image_size, optimizer, lr, clip_norm, accumulate, precision, layout)
    _check([strategy], set_)
    _commands("predicting").predict(
        job, strategy, set_ or [], profile, machine, _where(device, devices, mode, link, memory_limit), timeline, json
    )


@app.command()
def run(
    model: Model,
    batch: Batch,
    strategy: Strategy,
    image_size: ImageSize = None,
    optimizer: Optimizer = "momentum",
    lr: Lr = None,
    clip_norm: ClipNorm = None,
    accumulate: Accumulate = 1,
    precision: Precision = "fp32",
    layout: Layout = "nchw",
    mode: Mode = "eager",
    device: DeviceName = "cpu",
    devices: Devices = None,
    link: Link = "alias",
    memory_limit: MemoryLimit = None,
    set_: Setting = None,
    profile: ProfilePath = None,
    steps: Annotated[int, typer.Option(help="Training steps to run.")] = 10,
    beside: Annotated[
        list[str] | None, typer.Option(metavar="autograd|STRATEGY", help="Also train by plain PyTorch or another strategy; repeatable.")
    ] = None,
    metrics: Annotated[Path | None, typer.Option(help="Write the run's figures here.")] = None,
    timeline: TimelinePath = None,
    out: Annotated[Path | None, typer.Option(help="Write a folder: page and picture of the loss, and the figures.")] = None,
    json: AsJson = False,
):
    """Train by a strategy's plan for real and report its measured step time and its losses.

    Built-in models with a data set (rnn_bitstream, gru_features, lenet5, vgg11) train on it; others repeat one batch.
    With [bold]--beside[/], everyone trains on the same batches, from the same parameters, in turns. Ctrl-C writes what was completed.

      stepcast run --model lenet5 --batch 64 --strategy backward-fusion --steps 500 --beside autograd --out training
    """
    job = _job(model, batch, image_size, optimizer, lr, clip_norm, accumulate, precision, layout)
    _check([strategy], set_)
    where, places = _where(device, devices, mode, link, memory_limit), (metrics, timeline, out)
    _commands("training").run(job, strategy, set_ or [], profile, steps, where, beside or [], places, json)


@app.command()
def validate(
    model: Model,
    batch: Batch,
    image_size: ImageSize = None,
    optimizer: Optimizer = "momentum",
    lr: Lr = None,
    clip_norm: ClipNorm = None,
    accumulate: Accumulate = 1,
    precision: Precision = "fp32",
    layout: Layout = "nchw",
    mode: Mode = "eager",
    device: DeviceName = "cpu",
    devices: Devices = None,
    link: Link = "alias",
    memory_limit: MemoryLimit = None,
    set_: Setting = None,
    strategy: Strategies = None,
    profile: ProfilePath = None,
    calibration: Annotated[bool, typer.Option("--calibrate/--no-calibrate", help="Measure the plans' costs in the same rounds.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write a report folder: page, pictures, timelines, Perfetto traces.")] = None,
    json: AsJson = False,
):
    """Predict strategies, run them, and show predicted beside measured, with numerics against plain PyTorch.

    Exit status 1 when a plan's numbers differ from plain PyTorch's.
    """
    job = _job(model, batch, image_size, optimizer, lr, clip_norm, accumulate, precision, layout)
    _check(strategy, set_)
    _commands("measuring").validate(
        job, strategy or [], set_ or [], profile, calibration, _where(device, devices, mode, link, memory_limit), out, json
    )


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Report folder to write.")] = Path("report"),
    json: AsJson = False,
):
    """Validate two small models under every strategy on this machine, and write a report. Takes about two minutes."""
    _commands("measuring").demo(out, json)


@app.command("gpu-report")
def gpu_report(
    minutes: Annotated[float, typer.Option(help="Time to spend, about; what does not fit is listed, and is first in the next run.")] = 8.0,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Keep what the folder has of this GPU, or replace it all.")] = True,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; default: traces/data/GPU of a checkout, else ./gpu-report-GPU.")
    ] = None,
    device: DeviceName = "cuda:0",
    models: Annotated[list[str] | None, typer.Option(metavar="MODEL@BATCH", help="Instead of the usual four models; repeatable.")] = None,
    samples: Annotated[bool, typer.Option("--samples", help="Keep every raw sample beside the profiles: large files.")] = False,
    json: AsJson = False,
):
    """Measure this machine's NVIDIA GPU and how well Stepcast predicts it, within a few minutes.

    In order: facts of the GPU; the baseline of four models, eager and in CUDA graphs; every strategy on the first two, with Adam's three
    forms; then the other models, TF32, bf16 and nhwc. Each part is on disk before the next begins: run it again to go on where it ended.

    The folder holds report.json, README.md (the tables), facts.json, validations/ and the profiles: in traces/data/ of a checkout they
    are what predictions with [bold]--machine[/] use for this GPU. A first look in two minutes:

      stepcast gpu-report --minutes 2 --models lenet5@64 --out first-look

    Exit status 1 when a plan's numbers differ from plain PyTorch's, or nothing could be measured.
    """
    _commands("gpu_report").gpu_report(minutes, resume, out, device, models or [], samples, json)


@app.command()
def replay(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Traces of torch.profiler; several are ranks of one job.")],
    what_if: Annotated[list[str] | None, typer.Option("--what-if", metavar="RULE", help=WHAT_IF_RULES)] = None,
    timeline: TimelinePath = None,
    perfetto: Annotated[Path | None, typer.Option(help="Write recording and replay here, for ui.perfetto.dev.")] = None,
    json: AsJson = False,
):
    """Replay a recorded run of a GPU job, and ask what would have made it faster. Needs no GPU, no model and no calibration.

    Record a few steps with torch.profiler (ProfilerActivity.CPU and CUDA) and export_chrome_trace("trace.json.gz").
    """
    _commands("replaying").replay(traces, what_if or [], timeline, perfetto, json)


@app.command()
def reproduce(
    paper: Annotated[str | None, typer.Argument(metavar="PAPER", help="A paper's name, or all; without it, they are listed.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Also run, on this machine, what of the paper it can run.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write a folder: page, pictures and the JSON document.")] = None,
    json: AsJson = False,
):
    """Predict what a paper published, for the card it used, and show published beside predicted.

    From the model alone: nothing is calibrated, no GPU is needed, and nothing is fitted to the paper. Each claim of the paper is judged
    from the predictions: it holds, does not hold (with a likely reason), or cannot be judged. The first run takes a few minutes.

    Tables, pictures and the JSON document in one folder:

      stepcast reproduce fusion --out fusion

    Exit status 1 when a plan that --measure ran has other numbers than plain PyTorch.
    """
    _commands("reproducing").reproduction(paper, measure, out, json)


@app.command()
def ui(
    reports: Annotated[list[Path] | None, typer.Argument(help="Report folders to offer, besides those in the data folder.")] = None,
    trace: Annotated[list[Path] | None, typer.Option(help="A trace of torch.profiler to replay; repeatable.")] = None,
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 8501,
):
    """Open the app: reports, what-if predictions, and replays of recorded traces. Serves this machine only."""
    _commands("serving").serve(port, reports or [], trace or [])


def _commands(name: str) -> ModuleType:
    """Load a module of commands, with Ctrl-C delayed because it may load PyTorch."""
    from traces.interrupts import interrupts_delayed

    with interrupts_delayed():
        return import_module(f".commands.{name}", __package__)


def _job(model, batch, image_size, optimizer, lr, clip_norm, accumulate, precision, layout):
    """Make the job. Raises StepcastError for wrong options and, before anything heavy is loaded, for an unknown built-in model."""
    from simulator.job import Job
    from simulator.models.find import check_built_in

    name, _, form = optimizer.partition(":")
    job = Job(model, batch, image_size, name, form or "foreach", lr, clip_norm, accumulate, precision, layout)
    check_built_in(model, image_size)
    return job


def _check(texts, pairs):
    """Raise StepcastError for an unknown strategy or option, before anything heavy is loaded."""
    from ui.commands.requests import requested

    if texts:
        requested(texts, pairs or [])


def _where(device, devices, mode, link, memory_limit_gb=None):
    from calibrate.placement import Placement

    return Placement.asked(device, devices, mode, link, memory_limit_gb)


def main() -> None:
    """Run the command line; one line on standard error and exit status 2 for a request that cannot be served."""
    import logging

    _load_own_packages()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="stepcast: %(message)s")
    ranks = _ranks()
    if ranks is not None and not ranks.first:
        from executors.distributed.follow import follow

        _end(follow(ranks))
    try:
        status = app(args=sys.argv[1:] or ["--help"], standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        status = STOPPED
    except Exception as error:
        status = _usage(error) if hasattr(error, "format_message") else _known(error, ranks is not None)
    if status == STOPPED:  # what newer versions of typer make of Ctrl-C
        _leave()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done and said: Ctrl-C must not show in the libraries' own clearing up
    status = status if isinstance(status, int) else 0
    if ranks is not None:
        _leave_team(status)
    sys.exit(status)


def _ranks():
    """Which of torchrun's processes this is; None without, or where its variables are no use, which whoever needs them says."""
    from executors.distributed.ranks import launched
    from traces.errors import StepcastError

    try:
        return launched()
    except StepcastError:
        return None


def _leave_team(status: int) -> None:
    """Let the other processes end, and end at once: a thread of this one may be waiting for them."""
    from executors.distributed.control import leave
    from executors.errors import PeerLostError
    from traces.errors import StepcastError

    try:
        leave(status)
    except PeerLostError:
        status = status or 1
    except StepcastError as error:
        status = status or _fail(str(error), error.exit_status)
    _end(status)


def _end(status: int) -> None:
    """Without the interpreter's clearing up, which threads that wait for other processes would hold up."""
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        stream.flush()
    os._exit(status)


def _load_own_packages() -> None:
    """Load our other packages from beside this one, so that a user's traces.py, found earlier on the path, cannot take their place."""
    from importlib.util import module_from_spec, spec_from_file_location

    for name in OWN_PACKAGES:
        if name not in sys.modules:
            found = spec_from_file_location(name, Path(__file__).resolve().parents[1] / name / "__init__.py")
            sys.modules[name] = module_from_spec(found)
            found.loader.exec_module(sys.modules[name])


def _usage(error: Exception) -> int:
    """An error of typer's own: which class it is depends on typer's version."""
    context = getattr(error, "ctx", None)
    more = f"; see {context.command_path} --help" if context is not None else ""
    return _fail(error.format_message().strip().rstrip(".") + more, 2)


def _known(error: Exception, channel: bool) -> int:
    """A user's mistake in one line; anything else is our fault and keeps its traceback. `channel`: other processes are to end too."""
    from traces.errors import StepcastError

    if channel:
        from executors.errors import GRACE_S, PeerLostError

        if isinstance(error, PeerLostError):
            time.sleep(GRACE_S)  # whoever failed says why, and the launcher ends this process
    if isinstance(error, StepcastError):
        return _fail(str(error), error.exit_status)
    if isinstance(error, MemoryError) or "not enough memory" in str(error):
        return _fail("this machine has not enough memory for the job; choose a smaller batch or --image-size", 2)
    if channel:
        traceback.print_exception(error)
        return 1
    raise error


def _leave() -> None:
    """End at once after Ctrl-C: a worker thread may be inside an op that takes minutes, and must not meet a dying interpreter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _fail("stopped; nothing half-written is left", STOPPED)
    sys.stderr.flush()
    os._exit(STOPPED)


def _fail(message: str, status: int) -> int:
    print(f"stepcast: {' '.join(message.split())}", file=sys.stderr)
    return status


if __name__ == "__main__":  # torchrun -m ui.cli
    main()
