"""The command line. It imports commands, and PyTorch, when they run, so that --help answers immediately."""

import errno
import os
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ui.preload import PACKAGES, load_packages, read_torch_ahead

load_packages()  # before the first import from them: a user's traces.py may be earlier on the path

from ui.commands import job_options  # noqa: E402
from ui.commands.job_options import takes_job  # noqa: E402  # what a command offers of a request reaches it in the request alone
from ui.commands.output import OnceCommand  # noqa: E402

if TYPE_CHECKING:
    import logging

    from ui.request import JobRequest

#: The extra of Schedcast that installs a package.
EXTRAS = {"torch": "torch", "joblib": "torch", "pynvml": "torch", "streamlit": "app", "starlette": "app", "mcp": "mcp"}
#: Exit status that newer versions of typer return after Ctrl-C.
STOPPED = 130
#: What writing to standard output fails with: no space, no quota, a limit, a broken device, a reader that left, and if it is closed.
_STDOUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE, errno.EBADF)
#: The folder in which the demo writes its report.
DEMO_REPORT = Path("report")
app = typer.Typer(
    name="schedcast",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="""Forecast how long a training step takes under a schedule, and prove it by running that schedule.

A first look: [bold]schedcast demo[/]. One model on this machine:

  schedcast validate --model resnet18 --batch 16 --image-size 64

Your own model: --model my_model.py:make, where make(batch_size) returns (module, inputs, target) or (module, inputs, target, loss).""",
    rich_markup_mode="rich",
)

Strategy = Annotated[
    str, typer.Option(autocompletion=job_options.complete_strategies, help="NAME[:option=value,...]; see schedcast strategies.")
]
Strategies = Annotated[
    list[str] | None,
    typer.Option("--strategy", autocompletion=job_options.complete_strategies, help="NAME[:option=value,...]; repeatable; default: all."),
]
ProfilePath = Annotated[Path | None, typer.Option("--profile", help="A calibration of this or another machine.")]
WHAT_IF_RULES = (
    "A change; repeatable, answered alone and together, in order: 'kernel:/REGEX/ 2x faster', 'host 2x faster', 'network 2x faster' (also"
    " '1.5x slower' or 'free'), 'loader workers=4' (also '2x faster' or 'free'), 'remove:/REGEX/', optimizer=foreach|fused|free,"
    " backward-fusion, cuda-graph, 'priority:/REGEX/=-1'."
    " Without it, every change that applies is ranked by its gain."
)
TimelinePath = Annotated[Path | None, typer.Option("--timeline", help="Write the timeline here (.json or .json.gz).")]

SchedulePath = Annotated[
    Path | None,
    typer.Option(
        "--schedule",
        metavar="FILE.csv",
        help="The order of the strategy's tasks (of a pipeline's actions, as torch.distributed.pipelining writes it): read if the file"
        " exists, else written.",
        hidden=True,
    ),
]

MachineName = Annotated[
    str | None,
    typer.Option(autocompletion=job_options.complete_machines, help="Machine by name; see schedcast machines. Default: this machine."),
]
Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        metavar="SECONDS",
        min=0,
        help="Wait up to this long until other processes take less than 10 % of the cores, or of the GPU, then measure.",
    ),
]
ScaleText = Annotated[
    str,
    typer.Option(
        "--scale",
        metavar="FIGURE=FACTOR[,...]",
        help="Multiply figures of the machine: sms, flops, memory, launch (times), link; as in memory=2,launch=0.5.",
        hidden=True,
    ),
]
HostName = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="pytorch|caffe",
        help="What issues the tasks of a named machine's GPUs: eager PyTorch, or a C++ program such as Caffe (about 3 us a launch).",
        hidden=True,
    ),
]


TrainingTokens = Annotated[
    str, typer.Option("--tokens", metavar="N", help="Tokens of a whole training, such as 15T: how long they take. Default: a billion.")
]
DevicePrice = Annotated[
    float | None, typer.Option("--price", metavar="$", help="Dollars for a device and hour: what the tokens of a training cost.")
]
GpuName = Annotated[str, typer.Option(help="cuda or cuda:N.")]
Resume = Annotated[bool, typer.Option("--resume/--no-resume", help="Keep the folder's results for this GPU, or replace them all.")]
OnlyChecks = Annotated[list[str] | None, typer.Option(metavar="CHECK", help="With --quick: make this check alone, again; repeatable.")]
Report = Annotated[bool, typer.Option("--report/--no-report", help="With --quick: measure models too, or make the checks alone.")]
ScoringProcesses = Annotated[int | None, typer.Option(metavar="N", help="Predict in N processes. Default: one for each core.")]
DocumentPath = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the JSON document here (.json or .json.gz).")]
Sample = Annotated[
    int | None, typer.Option(metavar="N", help="Steps at most of a table with more than 500; it is sampled by models. Default: 60.")
]
#: The options of one layer's costs, and their help in two commands.
ONE_LAYER = "One layer, divided (deepa)"
LAYER = "Name of a layer, such as classifier.1, or the papers' name of it, such as conv2 or fc6."
INPUT_CONFIG = "Degrees of the layers that it reads. Default: images among all devices."


def _reserve_stdout(wanted: bool) -> bool:
    if wanted:
        sys.stdout = sys.stderr  # a model's code may print; commands/output.py writes documents to the real standard output
    return wanted


AsJson = Annotated[bool, typer.Option("--json", callback=_reserve_stdout, help="Print one JSON document on standard output.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"schedcast {version('schedcast')}")
        raise typer.Exit


@app.callback()
def schedcast(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")] = False,
):
    """Declares the options that precede a command."""


@app.command(cls=OnceCommand, rich_help_panel="Predict")
@takes_job(several=True)
def predict(
    requests: "list[JobRequest]",
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            autocompletion=job_options.complete_strategies,
            help="NAME[:option=value,...]; repeatable. Default: plain PyTorch, on several devices also its parallel loops.",
        ),
    ] = None,
    profile: ProfilePath = None,
    machine: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[,NAME...]",
            autocompletion=job_options.complete_machines,
            help="Machines by name; see schedcast machines. Default: this machine.",
        ),
    ] = None,
    timeline: TimelinePath = None,
    schedule: SchedulePath = None,
    scale: ScaleText = "",
    host: HostName = "pytorch",
    show_plan: Annotated[
        bool, typer.Option("--show-plan", help="Print the plan, a line per task; with --json, all of it as text.")
    ] = False,
    details: Annotated[bool, typer.Option("--details", help="Without --strategy: also say where the time of a step goes.")] = False,
    calibration: Annotated[
        bool | None,
        typer.Option(
            "--calibrate/--no-calibrate",
            help="Measure missing costs on this machine first. Default: if its profile has under half of the time and it takes seconds.",
            hidden=True,
        ),
    ] = None,
    measured: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="A step that you measured: is it as long as predicted, and as published ones?"),
    ] = None,
    tokens: TrainingTokens = "",
    price: DevicePrice = None,
    json: AsJson = False,
):
    """Predict step times: of plain PyTorch and, with --strategy, of other schedules, and why they are faster or slower.

    Several batches, machines or strategies are compared in one table. Costs come from --profile (measured) or from --machine (from its
    specifications, unless it is this machine or has a shipped profile).
    Exit status 1 when a plan does not fit in memory.

      schedcast predict --model resnet50 --batch 32,64 --machine a100,h100 --strategy baseline --strategy backward-fusion
    """
    _commands("predicting").predict(
        requests,
        timeline=timeline,
        show_plan=show_plan,
        as_json=json,
        details=details,
        schedule=schedule,
        calibration=calibration,
        measured=measured,
    )


@app.command(cls=OnceCommand, rich_help_panel="Predict")
@takes_job()
def search(
    request: "JobRequest",
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            autocompletion=job_options.complete_strategies,
            help="NAME for all that it offers, or NAME:option=value,... for one plan; repeatable; default: all; for language models on"
            " several devices, fsdp.",
        ),
    ] = None,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="FIELD=VALUE[,VALUE...]",
            help="Also vary the job: accumulate=1,2,4 or checkpoint=none,selective,full,budget:SIZE; repeatable. Default: both, for"
            " language models on several devices.",
        ),
    ] = None,
    profile: ProfilePath = None,
    machine: MachineName = None,
    scale: ScaleText = "",
    host: HostName = "pytorch",
    verify: Annotated[
        int | None, typer.Option(metavar="K", help="Run the best K plans on this machine, and compare the ranking with the measurements.")
    ] = None,
    calibration: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="With --verify: measure the plans' costs too.", hidden=True)
    ] = True,
    quick: Annotated[bool, typer.Option("--quick", help="With --verify: measure fewer rounds: faster, and less certain.")] = False,
    processes: Annotated[int | None, typer.Option(metavar="N", help="Evaluate in N processes. Default: one for each core.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Evaluate on the Dask cluster with this scheduler: tcp://HOST:8786.", hidden=True),
    ] = None,
    out: DocumentPath = None,
    tokens: TrainingTokens = "",
    price: DevicePrice = None,
    wait: Wait = 0.0,
    json: AsJson = False,
):
    """Rank every strategy with its sensible options and combinations on a job and a machine, and say why the best plan wins.

    Plans whose lower bound shows that they cannot win are not simulated. Those that do not fit into memory (or --memory-limit) come last.
    The answer is the same in one process, in several, and on a cluster. Evaluations are saved, also after Ctrl-C.
    Exit status 1 when no plan fits, or when a plan that --verify ran computes other numbers than plain PyTorch.

      schedcast search --model resnet50 --batch 32 --machine 2xgpu-pcie --memory-limit 8
      schedcast search --model llama3:8b --batch 512 --machine 64xh100 --precision amp --strategy fsdp --strategy data-parallel
    """
    _commands("searching").search_plans(
        request,
        verify=verify,
        calibration=calibration,
        quick=quick,
        cluster=cluster,
        processes=processes,
        out=out,
        as_json=json,
        wait_s=wait,
    )


@app.command(cls=OnceCommand, rich_help_panel="Recorded runs")
def replay(
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE...", help="Traces of torch.profiler or Nsight Systems; several traces are the ranks of one job."),
    ],
    what_if: Annotated[list[str] | None, typer.Option("--what-if", metavar="RULE", help=WHAT_IF_RULES)] = None,
    timeline: TimelinePath = None,
    perfetto: Annotated[Path | None, typer.Option(help="Write the recording and its replay here, for ui.perfetto.dev.")] = None,
    details: Annotated[bool, typer.Option("--details", help="Also print what was assumed, and where the replay differs.")] = False,
    json: AsJson = False,
):
    """Say where the time of a recorded GPU step goes, and what would make it faster. This needs no GPU, no model and no calibration.

    To make a trace, record a few steps with torch.profiler (ProfilerActivity.CPU and CUDA) and export_chrome_trace("trace.json.gz"), or
    with nsys profile --trace=cuda,nvtx --cuda-graph-trace=node and nsys export --type sqlite.

    Exit status 1 when a change has no answer, because it cannot be read or the recording has nothing that it changes.
    """
    _commands("replaying").replay(traces, what_if or [], timeline, perfetto, details, json)


@app.command(cls=OnceCommand, rich_help_panel="Recorded runs")
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A trace, a timeline, or a report folder of validate: DIR or DIR:STRATEGY.")],
    b: Annotated[str | None, typer.Argument(metavar="[B]", help="A second trace or timeline; not with a report folder.")] = None,
    perfetto: Annotated[Path | None, typer.Option(help="Write both runs here, on one time axis, for ui.perfetto.dev.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write a folder with a page, a picture, both runs and the JSON document.")] = None,
    json: AsJson = False,
):
    """Say why one run is slower than another: launches, kernels, communication, synchronizations, in terms that add up to the difference.

    Two traces are replayed, and then replayed again with one thing after another taken from the other trace:

      schedcast diff before.json.gz after.json.gz

    Two timelines (of predict, run or replay --timeline) are compared in the same way. In a report folder of validate, the predicted step is
    compared with the measured one:

      schedcast diff report:backward-fusion
    """
    _commands("replaying").diff(a, b, perfetto, out, json)


@app.command(cls=OnceCommand, rich_help_panel="Measure on this machine")
def demo(
    out: Annotated[Path, typer.Option(help="Report folder to write.")] = DEMO_REPORT,
    wait: Wait = 0.0,
    json: AsJson = False,
):
    """Validate two small models under every strategy on this machine, and write a report. Takes a few minutes."""
    _commands("measuring").demo(out, json, wait)


@app.command(cls=OnceCommand, rich_help_panel="Measure on this machine")
@takes_job(memory_limit=False)
def calibrate(
    request: "JobRequest",
    strategy: Strategies = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Profile to write or add to; default: this machine's.")] = None,
    from_trace: Annotated[
        Path | None, typer.Option("--from-trace", metavar="TRACE", help="Take the costs from a trace of torch.profiler instead.")
    ] = None,
    wait: Wait = 0.0,
    json: AsJson = False,
):
    """Measure what a job's plans need on this machine, and add it to the machine's profile.

    An interrupted calibration continues where it stopped: costs that are already in the profile are not measured again.

    With [bold]--from-trace[/], a recorded trace of the job's training steps, on any NVIDIA GPU, becomes a profile of that GPU. Nothing
    runs. The trace needs shapes (record_shapes=True). Give the model, batch, optimizer and precision that were recorded:

      schedcast calibrate --from-trace trace.json.gz --model resnet50 --batch 32 --optimizer momentum:for -o v100.json
    """
    if from_trace is not None:
        _commands("measuring").calibrate_from_trace(request, trace=from_trace, output=output, as_json=json)
    else:
        _commands("measuring").calibrate(request, output=output, as_json=json, wait_s=wait)


@app.command(cls=OnceCommand, rich_help_panel="Measure on this machine")
@takes_job()
def run(
    request: "JobRequest",
    strategy: Strategy = "baseline",
    profile: ProfilePath = None,
    steps: Annotated[int, typer.Option(help="Training steps to run.")] = 10,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="pytorch|STRATEGY",
            autocompletion=job_options.complete_strategies,
            help="Also train by plain PyTorch or another strategy; repeatable.",
        ),
    ] = None,
    then: Annotated[
        str | None,
        typer.Option(metavar="STRATEGY@ITERATION", help="Go on with another strategy's plan after so many iterations, as in gpipe@60."),
    ] = None,
    lr_schedule: Annotated[
        str | None,
        typer.Option(metavar="ITERATION:RATE,...", help="Learning rates by phase, as in 0:0.1,300:0.01; --lr before the first."),
    ] = None,
    eval_every: Annotated[
        int | None,
        typer.Option(metavar="N", help="Measure accuracy every N steps (0: never). Default: some 20 times in 100 steps or more."),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="K", help="Train with K seeds, which give other initial parameters and batches.")] = 1,
    target: Annotated[float | None, typer.Option(metavar="SHARE", help="Say when the test accuracy reaches this, such as 0.9.")] = None,
    predict_on: Annotated[
        str | None, typer.Option(metavar="MACHINE", help="Also draw the curves over the seconds predicted for this machine.")
    ] = None,
    metrics: Annotated[Path | None, typer.Option(help="Write step times, losses and peak memory to this JSON file.")] = None,
    timeline: TimelinePath = None,
    schedule: SchedulePath = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a folder with a page, a picture of the loss, and the JSON document of --metrics.")
    ] = None,
    wait: Wait = 0.0,
    json: AsJson = False,
):
    """Train with a strategy's plan, and report its measured step time and its losses.

    Built-in models with a data set (rnn_bitstream, gru_features, lenet5, vgg11, resnet20, ...) train on it; others repeat one batch.
    With [bold]--beside[/], all curves train on the same batches, from the same parameters, in turns. After Ctrl-C, the steps that were
    completed are still written.

      schedcast run --model lenet5 --batch 64 --strategy backward-fusion --steps 500 --beside pytorch --out training

    Accuracy is measured on held-out samples, with the newest weights. Stale against plain training, and when each has 90 % right:

      schedcast run --model resnet20 --image-size 16 --batch 32 --strategy stale-pipeline:on=simulated --beside pytorch --steps 500 \
        --seeds 3 --target 0.9 --predict-on 2xgtx1060 --out stale
    """
    goals = _commands("training").Goals(eval_every, seeds, target, predict_on)
    _commands("training").run(
        request,
        lr_schedule=lr_schedule,
        then=then,
        steps=steps,
        beside=beside or [],
        places=(metrics, timeline, out),
        as_json=json,
        schedule=schedule,
        goals=goals,
        wait_s=wait,
    )


@app.command(cls=OnceCommand, rich_help_panel="Measure on this machine")
@takes_job()
def validate(
    request: "JobRequest",
    strategy: Strategies = None,
    profile: ProfilePath = None,
    calibration: Annotated[bool, typer.Option("--calibrate/--no-calibrate", help="Measure the plans' costs in the same rounds.")] = True,
    schedule: SchedulePath = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure fewer rounds: faster, and less certain.")] = False,
    timelines: Annotated[
        bool,
        typer.Option(
            "--timelines/--no-timelines",
            help="Compare every task's times, or step times alone. The latter saves the extra runs that time every task on a GPU, and most"
            " of the time and space of --out: no timelines, no waterfalls.",
        ),
    ] = True,
    out: Annotated[Path | None, typer.Option(help="Write a report folder: page, pictures, timelines, Perfetto traces.")] = None,
    wait: Wait = 0.0,
    json: AsJson = False,
):
    """Predict strategies, run them, and compare predicted with measured step times, and results with those of plain PyTorch.

    Exit status 1 when a plan's gradients or parameters differ from plain PyTorch's.
    """
    _commands("measuring").validate(
        request,
        calibration=calibration,
        out=out,
        as_json=json,
        quick=quick,
        schedule=schedule,
        wait_s=wait,
        timelines=timelines,
    )


@app.command("gpu-report", cls=OnceCommand, rich_help_panel="Measure on this machine")
def gpu_report(
    quick: Annotated[
        bool, typer.Option("--quick", help="A GPU that never ran Schedcast: two models, then checks of what Schedcast assumes.")
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(help="Approximate time to spend. What does not fit is listed and comes next time. Default: 8; with --quick 8.5."),
    ] = None,
    resume: Resume = True,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write. Default: traces/data/GPU in a checkout, else ./gpu-report-GPU; with --quick, ./gpu-report."),
    ] = None,
    archive: Annotated[
        Path | None,
        typer.Option(help="File to write the folder to as well, after every part. Default: with --out or --quick, DIR.tar.gz."),
    ] = None,
    device: GpuName = "cuda:0",
    only: OnlyChecks = None,
    report: Report = True,
    models: Annotated[
        list[str] | None, typer.Option(metavar="MODEL@BATCH", help="Measure this model instead of the usual five; repeatable.")
    ] = None,
    samples: Annotated[
        bool, typer.Option("--samples", help="Save every raw sample in files next to the profiles; these are large.")
    ] = False,
    json: AsJson = False,
    wait: Wait = 0.0,
):
    """Measure this machine's NVIDIA GPU, and how well Schedcast predicts it, within a few minutes.

    The report measures in this order: a step of plain PyTorch, without Schedcast; ResNet-50 with optimizer fusion and TurboDL, under
    autocast with fused AdamW, eager and in CUDA graphs; what priorities give; scans; pipelines, data parallelism and parallelism by layer
    on partitions of the GPU; GPT-2, and steps that wait for the host; checks; channels-last, a transformer, TF32; every strategy and
    method; then the other models, and fp32 last. Each check asks one question and runs in a separate process, so that a crash or a hang
    ends only that check. Each part is written before the next begins, so that a killed run keeps its results. Run the command again with
    the same --out to continue; another patch of the GPU's driver does not matter.

    With [bold]--quick[/], the exit status and README.md say first whether a GPU that never ran Schedcast does what Schedcast assumes:

      --minutes 10   ResNet-50 and GPT-2, small batches, and a job of each published system
      --minutes 30   also the checks, a transformer, channels-last, TF32, and every strategy and method
      --minutes 50   also the other models, bf16 and fp32

    The folder contains report.json, README.md (the tables), probes/, validations/ and the profiles. If it is in traces/data/ of a checkout,
    predictions with [bold]--machine[/] use its profiles for this GPU.

    Exit status 1 when a plan's gradients or parameters differ from plain PyTorch's, or when nothing could be measured; with --quick, when a
    check contradicts an assumption of Schedcast, or failed. 2 when there is no GPU.
    """
    read_torch_ahead()
    _commands("preflight").gpu_report(
        minutes=(8.5 if quick else 8.0) if minutes is None else minutes,
        resume=resume,
        out=out or (Path("gpu-report") if quick else None),
        archive=archive,
        device=device,
        models=models or [],
        samples=samples,
        quick=quick,
        only=only or [],
        report=report,
        as_json=json,
        wait_s=wait,
    )


@app.command(cls=OnceCommand, rich_help_panel="Papers and measured steps")
@takes_job(memory_limit=False, optional=True)
def reproduce(
    request: "JobRequest",
    paper: Annotated[str | None, typer.Argument(metavar="PAPER", help="A paper's name, or all. Without it, the papers are listed.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Also run the experiments that this machine can run.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Predict again what comes with this version.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write a folder with a page, pictures and the JSON document.")] = None,
    layer: Annotated[
        str | None,
        typer.Option(help=f"{LAYER} --config says how it is divided.", rich_help_panel=ONE_LAYER),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="n=16[,c=4,...]",
            help="Degrees in image, channel, height and width; repeatable. Default: those of the paper's table 2.",
            rich_help_panel=ONE_LAYER,
        ),
    ] = None,
    input_config: Annotated[
        str | None,
        typer.Option(metavar="n=16", help=INPUT_CONFIG, rich_help_panel=ONE_LAYER),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(autocompletion=job_options.complete_machines, help="With --layer. Default: the paper's.", rich_help_panel=ONE_LAYER),
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="A calibration, with --layer.", rich_help_panel=ONE_LAYER)] = None,
    json: AsJson = False,
    wait: Wait = 0.0,
):
    """Predict what a paper published, for the GPU that it used, and compare published with predicted.

    Predictions use the model, the GPU's data sheet and the committed table of kernel efficiencies; nothing is calibrated, and no GPU is
    needed. No figure of the paper enters its own predictions, with two exceptions: for bppsa, three figures of the host are fitted to the
    paper's table 4, and the report shows both the fit and predictions from a fit to shorter sequences alone; for deepa, one number of table
    2 says how fast the pipe of its 16 GPUs is. Each claim of the paper is judged by the predictions, and again with the mechanism off that
    the paper credits: it holds by that mechanism or by another, does not hold (with a likely reason), or cannot be judged.

    The answer is the one that comes with this version; --fresh predicts it again, in some minutes.

    Tables, pictures and the JSON document in one folder:

      schedcast reproduce fusion --out fusion

    The cost of dividing one layer among devices, by the model of the DeePa paper and in bytes that really move (the paper's job, or that of
    --model, --batch and the options of --help-all):

      schedcast reproduce deepa --layer fc6 --config n=16 --config c=2

    Exit status 1 when a plan that --measure ran gives other gradients or parameters than plain PyTorch.
    """
    if layer is None and not (request.model or config or input_config or request.machine):
        _commands("reproducing").reproduction(paper, measure=measure, fresh=fresh, out=out, as_json=json, wait_s=wait)
        return
    _commands("layer_costs").of_paper(
        paper,
        request,
        layer=layer,
        configs=config or [],
        input_config=input_config,
        as_json=json,
        left=["--measure"] * measure + ["--fresh"] * fresh + ["--out"] * (out is not None),
    )


@app.command(cls=OnceCommand, rich_help_panel="Papers and measured steps")
def judge(
    tables: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TABLE...", help="Files or folders of steps, or files of pairs: *.csv, *.csv.gz."),
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="A calibration, for the steps of its GPU. Default: presets.")] = None,
    sample: Sample = None,
    processes: ScoringProcesses = None,
    out: DocumentPath = None,
    json: AsJson = False,
):
    """Judge predictions by what was measured: steps, or pairs of steps before and after one change.

    A table of steps has one row for each step, and the answer is how accurate predictions are by source, GPU and family of models. Required
    columns: gpu (a machine's name, this-gpu, or the driver's name of the card), model, batch and value_ms. Optional: image_or_seq,
    precision, layout, optimizer (NAME or NAME:FORM; none: no update was timed), source, what, note. Rows that cannot be predicted are
    counted with the reason. Predictions are saved, also after Ctrl-C.

    A table of pairs has one pair a row, with the columns change (precision=amp, layout=nhwc, strategy=pytorch-graph, ...), before, after,
    unit (ms, s or samples/s), and the options of schedcast predict for the job before the change (model, batch, machine, ...). A row with
    a trace, recorded before the change, has a what-if rule as its change.

    Without a table: the what-if rules, each with its record on pairs of steps that others measured.

      schedcast judge my_steps
      schedcast judge pairs.csv
    """
    _commands("scoring").judge(tables or [], profile=profile, sample=sample, processes=processes, out=out, as_json=json)


@app.command(cls=OnceCommand, rich_help_panel="Show")
def report(
    places: Annotated[
        list[Path], typer.Argument(metavar="PLACE...", help="Folders that --out wrote, JSON documents and timelines, in the page's order.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The heading of the page.")] = "Schedcast report",
    json: AsJson = False,
):
    """Put what other commands wrote on one page to send to a colleague: one HTML file that needs no network and no other file.

    It takes the folders of validate, demo, run, diff and reproduce, the documents of search (--out), predict (--json) and all others, and
    timelines. A job's report, search and diff:

      schedcast validate --model resnet18 --batch 16 --image-size 64 --out job

      schedcast search --model resnet18 --batch 16 --image-size 64 --out search.json

      schedcast diff job:turbodl --out diff

      schedcast report job search.json diff -o resnet18.html
    """
    _commands("reporting").report(places, out, title, json)


@app.command(cls=OnceCommand, rich_help_panel="Show")
def ui(
    reports: Annotated[list[Path] | None, typer.Argument(help="Report folders to offer, in addition to those in the data folder.")] = None,
    trace: Annotated[list[Path] | None, typer.Option(help="A trace of torch.profiler or Nsight Systems to replay; repeatable.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Your own model to offer, FILE.py:FACTORY; repeatable.")] = None,
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 8501,
):
    """Open the app: reports, what-if predictions, and replays of recorded traces. It serves this machine only.

    If no report is named, the app also offers the one that the demo has written in this folder.
    """
    written = [DEMO_REPORT] if (DEMO_REPORT / "report.json").is_file() else []
    _commands("serving").serve(port, reports or written, trace or [], model or [])


@app.command(cls=OnceCommand, rich_help_panel="Show")
def mcp(
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Your own model, FILE.py:FACTORY, which agents may name; repeatable.")
    ] = None,
):
    """Answer agents: predict, search, replay and diff as tools of the Model Context Protocol, on standard input and output.

    Built-in models and those of torchvision, timm and transformers can be named; no other code runs, unless --model names it.
    """
    from ui.api.agents import serve

    serve(model or [])


@app.command(cls=OnceCommand, rich_help_panel="List")
def models(
    name: Annotated[str | None, typer.Argument(autocompletion=job_options.complete_models, help="Show what is known of this one.")] = None,
    json: AsJson = False,
):
    """List the built-in models, or show one: its sizes, and what it trains on."""
    _commands("listing").models(json, name)


@app.command(cls=OnceCommand, rich_help_panel="List")
def strategies(
    name: Annotated[
        str | None, typer.Argument(autocompletion=job_options.complete_strategies, help="Show what the options of this strategy do.")
    ] = None,
    json: AsJson = False,
):
    """List the strategies and their options, or show what the options of one do."""
    _commands("listing").strategies(json, name)


@app.command(cls=OnceCommand, rich_help_panel="List")
def machines(
    name: Annotated[
        str | None,
        typer.Argument(autocompletion=job_options.complete_machines, help="Show every figure of this one, with its source; 8xh100 too."),
    ] = None,
    json: AsJson = False,
):
    """List the machines that schedcast can predict for, or show every figure of one, with its source."""
    _commands("listing").machines(json, name)


@app.command(cls=OnceCommand, rich_help_panel="List")
def profiles(
    name: Annotated[str | None, typer.Argument(metavar="[NAME|FILE]", help="Show what this one has measured.")] = None,
    json: AsJson = False,
):
    """List this machine's calibration profiles, or show what one has measured: ops, transfers and optimizers."""
    _commands("listing").profiles(json, name)


# Earlier names of commands, for scripts that call them. Help does not list them.


@app.command("gpu-first", cls=OnceCommand, hidden=True)
def gpu_first(
    minutes: float = 8.5,
    resume: Resume = True,
    out: Path = Path("gpu-first"),
    archive: Path | None = None,
    device: GpuName = "cuda:0",
    only: OnlyChecks = None,
    report: Report = True,
    json: AsJson = False,
):
    """An earlier name of [bold]schedcast gpu-report --quick[/]."""
    read_torch_ahead()
    _commands("preflight").gpu_report(
        minutes=minutes,
        resume=resume,
        out=out,
        archive=archive,
        device=device,
        models=[],
        samples=False,
        quick=True,
        only=only or [],
        report=report,
        as_json=json,
    )


@app.command("deepa-cost", cls=OnceCommand, hidden=True)
@takes_job(memory_limit=False)
def deepa_cost(
    request: "JobRequest",
    layer: Annotated[str, typer.Option(help=LAYER)],
    config: Annotated[list[str], typer.Option(metavar="n=16[,c=4,...]")],
    input_config: Annotated[str | None, typer.Option(metavar="n=16", help=INPUT_CONFIG)] = None,
    machine: MachineName = None,
    profile: ProfilePath = None,
    json: AsJson = False,
):
    """An earlier name of [bold]schedcast reproduce deepa --layer[/]."""
    _commands("layer_costs").deepa_cost(
        request,
        layer=layer,
        configs=config,
        input_config=input_config,
        as_json=json,
    )


@app.command(cls=OnceCommand, hidden=True)
def rules(pairs: Annotated[Path | None, typer.Argument(metavar="PAIRS.csv")] = None, json: AsJson = False):
    """An earlier name of [bold]schedcast judge[/], for pairs."""
    _commands("listing").rules(json, {} if pairs is None else {pairs: None})


@app.command(cls=OnceCommand, hidden=True)
def scoreboard(
    folder: Path,
    profile: Path | None = None,
    sample: Sample = None,
    processes: ScoringProcesses = None,
    out: DocumentPath = None,
    json: AsJson = False,
):
    """An earlier name of [bold]schedcast judge[/], for a folder of steps."""
    _commands("scoring").score([folder], profile=profile, sample=sample, processes=processes, out=out, as_json=json)


def _commands(name: str) -> ModuleType:
    """Import a module of ui.commands. Ctrl-C is delayed until it is loaded, because PyTorch's libraries crash on it while they load."""
    from traces.process import interrupts_delayed

    with interrupts_delayed():
        return import_module(f"{__package__}.commands.{name}")


def _show_progress(log: "logging.Logger") -> None:
    """Keep one line on a terminal's standard error that shows the last message of `log`, an empty one included; none with --json."""
    import logging

    def show(record: logging.LogRecord) -> bool:
        if sys.stderr.isatty() and sys.stdout is not sys.stderr:
            print(f"\r{record.getMessage()[:100]}\x1b[K", end="", file=sys.stderr, flush=True)
        return False  # no other handler prints it

    log.setLevel(logging.INFO)
    log.addFilter(show)


def main() -> None:
    """Run the command line. A request that cannot be served gets one line on standard error and exit status 2."""
    import logging

    from traces.process import heed_termination, ignore_until_exit, provide_streams

    provide_streams()  # before anything opens a file, which would get the number of a closed stream
    from executors.cpu.cores import wait_passively

    wait_passively()

    heed_termination()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="schedcast: %(message)s")
    _show_progress(logging.getLogger("schedcast.progress"))
    ranks = _ranks()
    if ranks is not None and not ranks.first:
        from calibrate.distributed.loops import RankLoops
        from executors.distributed.loaded_plans import serve_rank

        _exit_now(serve_rank(ranks, RankLoops()))
    try:
        status = app(args=sys.argv[1:] or ["--help"], prog_name="schedcast", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        status = STOPPED
    except Exception as error:
        status = _usage_error(error) if hasattr(error, "format_message") else _failure(error, ranks is not None)
    if status == STOPPED:  # newer versions of typer return it after Ctrl-C instead of raising
        _exit_stopped()
    ignore_until_exit()  # a late signal must not show a traceback from libraries that shut down, nor change the status
    status = status if isinstance(status, int) else 0
    if ranks is not None:
        _end_other_ranks(status)
    sys.exit(status)


def _ranks():
    """This process's place among those that torchrun started. None without torchrun, or if its variables are unusable.

    Commands that need the variables report what is wrong with them.
    """
    from executors.distributed.ranks import launched
    from traces.errors import SchedcastError

    try:
        return launched()
    except SchedcastError:
        return None


def _end_other_ranks(status: int) -> None:
    """Tell the other processes to end, then end this one at once: one of its threads may still wait for them."""
    from executors.distributed.control import end_ranks
    from executors.errors import PeerLostError
    from traces.errors import SchedcastError

    try:
        end_ranks(status)
    except PeerLostError:
        status = status or 1
    except SchedcastError as error:
        status = status or _fail(str(error), error.exit_status)
    _exit_now(status)


def _exit_now(status: int) -> None:
    """Exit without the interpreter's shutdown, which would wait for threads that wait for other processes."""
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(status)


def _usage_error(error: Any) -> int:
    """Report one of typer's own errors. They are recognized by a method, because their classes differ between versions of typer."""
    context = getattr(error, "ctx", None)
    hint = f"; see {context.command_path} --help" if context is not None else ""
    return _fail(error.format_message().strip().rstrip(".") + hint, 2)


def _failure(error: Exception, several_ranks: bool) -> int:
    """Report a user's mistake in one line. Any other error is a bug: it is raised again, or with `several_ranks` printed.

    With `several_ranks`, the status is returned, so that the other processes can be told to end.
    """
    from traces.errors import SchedcastError, out_of_memory

    if several_ranks:
        from executors.errors import GRACE_S, PeerLostError

        if isinstance(error, PeerLostError):
            time.sleep(GRACE_S)  # the process that failed reports why, and then the launcher ends this one
    if isinstance(error, SchedcastError):
        return _fail(str(error), error.exit_status, error.details)
    if isinstance(error, OSError) and (error.errno in _STDOUT_ERRORS and error.filename is None):
        from ui.commands.output import cannot_print, silence_stdout

        silence_stdout()
        return 1 if isinstance(error, BrokenPipeError) else _fail(str(cannot_print(error)), 2)  # 1: the reader left
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "ui").partition(".")[0]) not in ("ui", "schedcast", *PACKAGES):
        if package in sys.stdlib_module_names:
            return _fail(f"this needs Python's module {package}, which {sys.platform} does not have; run it on Linux", 2)
        wanted = f"'schedcast[{EXTRAS[package]}]'" if package in EXTRAS else package
        return _fail(f"this needs {package}, which is not installed: pip install {wanted}", 2)
    if out_of_memory(error):
        return _fail("this machine has not enough memory for the job; choose a smaller batch or --image-size", 2)
    if several_ranks:
        traceback.print_exception(error)
        return 1
    raise error


def _exit_stopped() -> None:
    """Exit at once after Ctrl-C or SIGTERM: a worker thread may be inside a long op, and would crash while the interpreter shuts down."""
    from traces.process import ignore_stopping, stopped_status

    status = _fail("stopped; nothing half-written is left", stopped_status())
    ignore_stopping()
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(status)


def _fail(message: str, status: int, details: str = "") -> int:
    """Print a message on one line, and `details` below it: a drawing with an arrow at what is wrong."""
    with suppress(OSError):  # on a full disk no message can be printed; the status still says that it failed
        print(f"schedcast: {' '.join(message.split())}", file=sys.stderr)
        if details:
            print(f"\n{details}", file=sys.stderr)
    return status


if __name__ == "__main__":  # torchrun -m ui.cli
    main()
