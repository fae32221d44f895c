"""What a request consists of, declared once: the options of the command line, the app's controls, its links and its description follow from
it.

Imports nothing heavy: the command line and the app's first page load it.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traces.errors import Refusal, SchedcastError
from traces.units import read_amount, read_integer, read_number

if TYPE_CHECKING:
    from calibrate.placement import Placement
    from simulator.model.job import Job
    from simulator.predict.answers import Answers
    from simulator.predict.forecast import Forecast
    from simulator.predict.target import Target
    from simulator.predict.usual import Usual

#: How the choice of a stored profile begins among the machines: "profile cpu-amd-epyc-2.json".
PROFILE = "profile "
#: Prefix of a model's name among the app's arguments.
MODEL = "--model="
#: The groups of the options in long help and of the app's controls.
JOB, DEVICES = "Training job", "Devices"
#: Largest image size (of a recurrent model: sequence length) and batch that app users and agents may request. The command line has no
#: limit.
LARGEST_SIZE, LARGEST_BATCH = 32_768, 1_000_000
#: What decides a target, in addition to the options of DEVICES.
_PLACED = ("precision", "machine", "scale")
#: Options of strategies whose values are files, and the command that takes them.
FILES = {"schedule": "schedcast predict --schedule FILE.csv", "config": "schedcast predict --set config=FILE.json"}


@dataclass(frozen=True)
class Option:
    """How users give a field of a request, and how its value reads. `name`, `kind` and `default` are those of the field.

    `help`: on the command line; empty if not every command with a job has the option. `flag`: the name of the option and in links, if not
    the field's. `also`: another name on the command line. `label`, `about`, `empty`: the name of its control in the app, its description,
    and what it shows while it is empty; without a label, the app has no ordinary control for it. `words`: a value in a sentence;
    `always`: also if it is the default. `rare`: whether only --help-all shows it.
    """

    help: str = ""
    group: str | None = None
    metavar: str | None = None
    flag: str = ""
    also: str = ""
    label: str = ""
    about: str | None = None
    empty: str = ""
    words: Callable[[Any], str] | None = None
    always: bool = False
    rare: bool = False
    name: str = ""
    kind: Any = str
    default: Any = None

    @property
    def key(self) -> str:
        """The name of the option and in links: image-size."""
        return self.flag or self.name.replace("_", "-")

    @property
    def widget(self) -> str:
        """The key of the control in the app: image size."""
        return self.name.replace("_", " ")

    @property
    def several(self) -> bool:
        """Whether it can be given more than once."""
        return self.kind == tuple[str, ...]

    @property
    def read(self) -> Callable[[str], Any]:
        """What makes the value of a text; None of a text that cannot be read."""
        return {int: read_integer, int | None: read_integer, float | None: read_number}.get(self.kind, str)


def _option(default: Any, said: str = "", group: str | None = None, metavar: str | None = None, **how: Any) -> Any:
    return field(default=default, metadata={"option": Option(said, group, metavar, **how)})


@dataclass(frozen=True)
class JobRequest:
    """A model, how it is trained, where, and under which strategies. The fields are those of `Job` and `Placement`, which check them.

    `batch`: None for a usual one. `machine`: the name of a machine, the file of a profile (*.json), or PROFILE and a stored profile's name
    or any file; empty: this machine's CPU or, with a `device` that is one, its GPU. `memory_limit`: in GB of 10^9 bytes. `network`: the
    rate of a named machine's network for each GPU. `host`: what issues the tasks of a named machine's GPUs. `scale`: factors of the
    machine's figures, as `simulator.machine.scaled` reads them. `settings`: OPTION=VALUE for every strategy that has the option.
    `strategies`: texts NAME[:option=value,...]. `tries`: FIELD=VALUE[,VALUE...] of the variants of the job that a search tries. `tokens`:
    of a whole training, such as 15T. `price`: of a device for an hour, in dollars.
    """

    model: str = _option(
        MISSING,
        "Built-in name (resnet50, llama3:8b, ...; see schedcast models), a language model by its sizes"
        " (lm:form=llama,layers=16,d_model=2048,heads=32), FILE.py:FACTORY, PACKAGE.MODULE:FACTORY, torchvision:, timm: or hf:NAME.",
        JOB,
    )
    batch: int | None = _option(None, "Samples per step, all microbatches together. Default: a usual number.", JOB, words="batch {}".format)
    image_size: int | None = _option(
        None, "Side of the image, or tokens of a sequence, of a built-in model: --model llama3:8b --seq 4096. Default: the model's own.",
        JOB, also="seq", label="Image size, or length of a sequence", empty="the model's own", words="input size {}".format,
    )  # fmt: skip
    optimizer: str | None = _option(
        None, "NAME[:for|foreach|fused], such as adam:fused. Default: momentum; of a language model on several GPUs, adamw:fused.", JOB,
        label="Optimizer", words=str, always=True,
    )  # fmt: skip
    form: str | None = _option(None, group=JOB, label="Form of the update")
    lr: float | None = _option(None, "Learning rate; by default, the optimizer's own.", JOB, rare=True)
    clip_norm: float | None = _option(
        None, "Clip gradients to this global norm.", JOB, label="Clip gradients to the norm", empty="no clipping",
        words="norm at most {:g}".format, rare=True,
    )  # fmt: skip
    accumulate: int = _option(
        1, "Microbatches per update; must divide the batch.", JOB, label="Microbatches per update", about="gradient accumulation",
        words="{} microbatches".format,
    )  # fmt: skip
    loss_mean: str = _option(
        "parts",
        "The loss over microbatches and devices: parts (the mean of the mean of each) or batch (one mean over all targets that count, which"
        " are counted before the forward, for losses that skip or weigh targets).",
        JOB, label="Mean of the loss", words="mean over the {}".format,
        about="batch: one mean over all targets that are not skipped", rare=True,
    )  # fmt: skip
    precision: str | None = _option(
        None,
        "default (PyTorch's own: on GPUs with TF32, convolutions use it), fp32, tf32, bf16, mixed (a bf16 copy of fp32 parameters"
        " computes), amp (autocast to bf16), amp-fp16 (to fp16, loss scaled) or fp64. Of a language model on several GPUs, amp unless"
        " stated.",
        JOB, label="Precision", about="amp: autocast to bf16, as users run it",
        words=lambda value: "default precision" if value == "default" else value, always=True,
    )  # fmt: skip
    checkpoint: str | None = _option(
        None,
        "Activation checkpointing: none, full (each block keeps what it reads), selective (and attention and every second product), or"
        " budget:SIZE, such as budget:70GiB, for the activations of a microbatch. Default: none; of a language model on several GPUs, the"
        " least with which a step fits.",
        JOB, "KIND", label="Activation checkpointing", empty="the least that fits", words="checkpointing {}".format,
        about="none, full, selective, or budget:SIZE such as budget:70GiB: backward repeats forward ops instead of keeping their results",
    )  # fmt: skip
    attention: str = _option(
        "pytorch", "Kernel of attention in 16 bits on a GPU: pytorch (the one that PyTorch chooses) or cudnn.", JOB, label="Attention",
        words="attention by {}".format, about="cudnn: cuDNN's kernels, which TransformerEngine runs too", rare=True,
    )  # fmt: skip
    layout: str = _option("nchw", "nchw or nhwc.", JOB, label="Layout of images", words=str, rare=True)
    mode: str = _option("eager", "eager, or graph (CUDA graphs).", DEVICES, label="Mode", about="graph: CUDA graphs, on a GPU", words=str)
    device: str = _option("cpu", "cpu, cuda or cuda:N.", DEVICES)
    machine: str = _option("this-cpu", words="on {}".format, always=True)
    devices: int | None = _option(
        None, "How many devices to use: GPUs, or groups of this CPU's cores. Default: all of a named machine, else 1.", DEVICES,
        words=lambda count: "1 device" if count == 1 else f"{count} devices",
    )  # fmt: skip
    partition: int | None = _option(
        None, "Split one GPU into P partitions, each a device; the baseline still uses the whole GPU.", DEVICES, "P",
        label="Parts of one GPU", empty="1: the GPU is not split", words="split into {}".format, rare=True,
    )  # fmt: skip
    link: str = _option(
        "alias",
        "How groups of CPU cores exchange data: in shared memory, or by copies at a stated rate. With blocking (for a named machine, by"
        " itself) receives hold their stream until the sender arrives, as NCCL's do; with late, they are also posted last.",
        DEVICES, "alias|copy[:GB/s][,blocking|,late]", label="Link between groups of CPU cores", words="link {}".format,
        about="alias, copy, or copy:GB/s such as copy:0.5; with ,blocking behind it, receives block as NCCL's do", rare=True,
    )  # fmt: skip
    memory_limit: float | None = _option(
        None,
        "Use at most this much of each memory, in GB of 10^9 bytes (16 GB = 14.9 GiB). Devices of one memory share the limit.",
        DEVICES, "GB", label="Memory limit, GB", empty="the memory's size", words="{:g} GB at most".format,
    )  # fmt: skip
    network: str | None = _option(
        None, "The rate of a named machine's network between nodes, for each GPU: 50Gb/s or 6.25GB/s. Default: that of the usual nodes.",
        DEVICES, "RATE", label="Network between nodes, of each GPU", empty="of the usual nodes, such as 400Gb/s",
        words="network of {} a GPU".format, rare=True,
    )  # fmt: skip
    host: str = _option(
        "pytorch", group=DEVICES, label="What issues a GPU's tasks", about="caffe: a C++ program, about 3 us a launch",
        words="issued by {}".format,
    )  # fmt: skip
    scale: str = _option("", words="with {}".format)
    settings: tuple[str, ...] = _option(
        (), "OPTION=VALUE for every strategy that has the option; repeatable.", flag="set", words=",".join, rare=True
    )
    strategies: tuple[str, ...] = _option((), flag="strategy")
    tries: tuple[str, ...] = _option((), flag="try", words=lambda texts: "trying " + ", ".join(texts))
    tokens: str = _option("", group=JOB, label="Tokens of the whole training", empty="1B", about="such as 15T: what they take, and cost")
    price: float | None = _option(None, group=JOB, label="Price of a device for an hour, $", empty="none")

    def __post_init__(self):
        """Call the model and the machine as they are listed, whatever users call them."""
        from simulator.machine.presets import listed_name as machine_named
        from simulator.model.workloads.language_models import listed_name as model_named

        object.__setattr__(self, "model", model_named(self.model))
        if isinstance(self.machine, str) and profile_named(self.machine) is None:
            object.__setattr__(self, "machine", machine_named(self.machine))

    @property
    def gpus(self) -> int:
        """How many GPUs its plans use; 0 on a CPU, and of a profile or a GPU of this machine the number that is stated or started."""
        from executors.distributed.ranks import launched
        from simulator.machine.presets import THIS_CPU, device_count, machine_names

        if (self.partition or 1) > 1:
            return 1
        with suppress(SchedcastError):  # of a number of GPUs that no machine has, which its target refuses
            if self.profile is None and self.machine != THIS_CPU and (self.machine in machine_names() or device_count(self.machine) > 1):
                return self.devices or device_count(self.machine)
        if not self.device.startswith("cuda"):
            return 0
        ranks = launched()
        return self.devices or (1 if ranks is None else ranks.world)

    @property
    def usual(self) -> "Usual":
        """What the job has unless the request states something else."""
        from simulator.predict.usual import usual_of

        return usual_of(self.model, self.machine, self.gpus)

    @property
    def settled(self) -> "JobRequest":
        """The same request with what is `usual` in place of what it does not state. A stated optimizer has PyTorch's form by default."""
        from simulator.predict.usual import PLAIN

        usual = self.usual
        missing = {each.name: getattr(usual, each.name) for each in fields(usual) if getattr(self, each.name) in (None, ())}
        if self.optimizer is not None and "form" in missing:
            missing["form"] = PLAIN.form
        return replace(self, **missing)

    @property
    def brief(self) -> "JobRequest":
        """The same request without what is usual for it, so that it asks for the same job."""
        usual, own = self.usual, self.settled
        same: dict[str, Any] = {name: None for name in ("precision", "checkpoint") if getattr(own, name) == getattr(usual, name)}
        if (own.optimizer, own.form) == (usual.optimizer, usual.form):
            same |= dict.fromkeys(("optimizer", "form"))
        return replace(self, **same)

    @property
    def unstated(self) -> dict[str, str | None]:
        """What the answer to the request says of it: by option, what it does not state and no other job has; empty of other jobs."""
        from simulator.predict.usual import PLAIN

        usual = self.usual
        if usual == PLAIN:
            return {}
        values = {
            "strategy": (self.strategies, usual.strategies[0]),
            "precision": (self.precision, usual.precision),
            "optimizer": (self.optimizer or self.form, f"{usual.optimizer}:{usual.form}"),
            "checkpoint": (self.checkpoint, usual.checkpoint),
        }
        return {name: value for name, (stated, value) in values.items() if not stated}

    def stated(self) -> Iterator[tuple[Option, Any, bool]]:
        """The options that a command line and a link state, each with its value and whether that is the default."""
        own, brief = self.settled, self.brief
        for option in LINKED:
            value = getattr(self if option.name == "strategies" else own, option.name)
            usual = getattr(brief, option.name) == option.default
            yield option, f"{own.optimizer}:{own.form}" if option.name == "optimizer" else value, usual

    @property
    def words(self) -> list[str]:
        """What the request says in addition to its model, except for defaults."""
        return [option.words(value) for option, value, usual in self.stated() if option.words and (option.always or not usual)]

    @property
    def shared(self) -> dict[str, str]:
        """The values of `settings` by the names of the options. Raises SchedcastError for a text that is no OPTION=VALUE."""
        values = {}
        for text in self.settings:
            name, equals, value = text.partition("=")
            if not (name and equals and value):
                raise SchedcastError(f"--set {text!r} is not option=value; give it as in --set update_stream=on")
            values[name] = value
        return values

    def chosen(self, devices: int = 1) -> list[str]:
        """The requested strategies, by default all that can use this many devices. Raises SchedcastError for an unknown one or option."""
        from simulator.strategies import registry as strategies

        chosen = list(self.strategies) or strategies.names(devices)
        strategies.check_shared(chosen, self.shared)
        for text in chosen:
            strategies.parse(text, self.shared)
        return chosen

    @property
    def placed(self) -> "JobRequest":
        """The same machine, placement and precision for one sample of the model: everything that decides the target."""
        where = {each.name: getattr(self, each.name) for each in DECLARED if each.group == DEVICES or each.name in _PLACED}
        return JobRequest(self.model, 1, **where)

    @property
    def profile(self) -> Path | None:
        """The file of the profile that `machine` names; None if it names none."""
        return profile_named(self.machine)

    @property
    def inputs(self) -> list[tuple[str, Path | None]]:
        """The files that the request may read, with their options, which no output may overwrite. Every stored profile is among them."""
        from simulator.model.usual_batch import source_file

        stored = [("a profile of this machine", path) for path in stored_profiles().values()]
        return [("--model", source_file(self.model)), ("--profile", self.profile), *stored]

    def target(self, job: "Job") -> "Target":
        """What the job is predicted for. Raises SchedcastError for a machine that does not exist or cannot be placed so."""
        from calibrate.profiles import target_for

        profile = self.profile  # looked up in the folder of profiles
        return target_for(job, profile, None if profile else self.machine or None, self.placement())

    def answers(
        self,
        job: "Job",
        target: "Target",
        runs: bool = False,
        known: "Callable[[Job, str], Forecast | Refusal] | None" = None,
        only: Sequence[str] = (),
    ) -> "Answers":
        """What every interface answers: the requested strategies, or the usual ones, for `job()` on its `target`.

        If the request states no checkpointing where the least that fits is usual, the answers' job has that.

        `only`: these instead of all. `runs` and `known` are those of the function of the same name. Raises SchedcastError for an option of
        `settings` that no requested strategy has.
        """
        from simulator.predict.answers import answers
        from simulator.strategies import registry as strategies

        shared, asked = self.shared, self.settled.strategies
        self.check_budget(job)
        strategies.check_shared(asked or strategies.names(), shared)
        return replace(answers(job, only or asked, target, shared, runs, known=known, usual=self.unstated), budget=self.budget)

    @property
    def budget(self) -> tuple[float, float | None]:
        """The tokens of a whole training, by default a billion, and the price of a device for an hour, if it is stated.

        Raises SchedcastError for anything else than a number of tokens and a price.
        """
        from traces.documents.whole_training import BILLION

        tokens = read_amount(self.tokens) if self.tokens else BILLION
        if tokens is None:
            raise SchedcastError(f"--tokens is {self.tokens[:40]!r}; expected a number above 0, such as 15T, 300B or 1e9")
        if self.price is not None and not 0 <= self.price < float("inf"):
            raise SchedcastError(f"--price is {self.price}; expected dollars for a device and hour, such as 2.5")
        return tokens, self.price

    def check_budget(self, job: "Job") -> None:
        """Raise SchedcastError for an unusable `budget`, and for one of a job that reads no tokens."""
        from simulator.model.tokens import tokens_of

        if (self.tokens or self.price is not None) and self.budget and tokens_of(job) is None:
            raise SchedcastError(f"--{'tokens' if self.tokens else 'price'}: {job.model} reads no rows of tokens; drop it")

    def job(self, machines: Sequence[str] = ()) -> "Job":
        """The job, which repeats nothing in backward if the least checkpointing that fits is usual: `answers` has that.

        `machines`: those that it is for, if it is not the request's. Raises SchedcastError for values that no job has.
        """
        from simulator.machine.presets import device_count
        from simulator.model.job import Job
        from simulator.model.usual_batch import usual_batch

        own = self.settled
        values = {each.name: getattr(own, each.name) for each in fields(Job) if hasattr(own, each.name)}
        values["checkpoint"] = own.checkpoint or Job.checkpoint
        if self.batch is None:
            known = [name for name in machines or [self.machine] if name and profile_named(name) is None]
            count = self.devices or self.partition or max(map(device_count, known), default=1)
            values["batch"] = usual_batch(self.model, max(1, count))
        return Job(**values)

    @property
    def stated_batch(self) -> int:
        """`batch` of a request that states one, as all of the app's do. Raises ValueError for one that does not."""
        if self.batch is None:
            raise ValueError(f"the request for {self.model} states no batch")
        return self.batch

    def placement(self) -> "Placement":
        """Where the job runs. Raises SchedcastError for values that no placement has, and if the request contradicts torchrun."""
        from calibrate.placement import Placement
        from simulator.machine.scaled import scale_of

        placement = Placement.from_options(self.device, self.devices, self.mode, self.link, self.partition, self.memory_limit)
        return replace(placement, scale=scale_of(self.scale), host=self.host, network=self.network)


def check_steered(request: JobRequest, own: Sequence[str]) -> None:
    """Raise SchedcastError if an external request (from the app, a link or an agent) names code or a file of this machine.

    It also must not keep this machine busy for minutes. Code would run, and a refusal may quote a file's text. `own`: the models that the
    process was started with, which are allowed.
    """
    from simulator.model.libraries import LIBRARIES, config_file
    from simulator.model.workloads.registry import is_built_in

    model = request.model
    library, colon, name = model.partition(":")
    if colon and model not in own and not is_built_in(model):
        if library not in LIBRARIES:
            raise SchedcastError(f"{model} is code, which this server may not run; start it with schedcast mcp --model {model}")
        if library == "hf" and config_file(name) is not None:
            raise SchedcastError(f"{model} is a file, which this server may not read; start it with schedcast mcp --model {model}")
    if request.profile is not None and request.machine not in stored_profiles():
        raise SchedcastError(f"machine {request.machine} is a file, which this server may not read; use schedcast predict --profile FILE")
    for what, number, most in (("image size", request.image_size, LARGEST_SIZE), ("batch", request.batch, LARGEST_BATCH)):
        if number is not None and not 1 <= number <= most:
            raise SchedcastError(f"the {what} is {number}; this server predicts 1 to {most:,}; schedcast predict takes larger ones")
    given = (part for text in request.strategies for part in text.partition(":")[2].split(","))
    for option in (*request.shared, *(part.partition("=")[0].strip() for part in given)):
        if option in FILES:
            raise SchedcastError(f"{option}= names a file, which neither the app nor an agent may read; use {FILES[option]}")


#: The options of a request in the order to show them, and those that a command line and a link state: the form is a part of the optimizer.
DECLARED = tuple(replace(each.metadata["option"], name=each.name, kind=each.type, default=each.default) for each in fields(JobRequest))
LINKED = tuple(option for option in DECLARED if option.name != "form")


def optimizer_and_form(text: str) -> dict[str, Any]:
    """The fields that NAME[:for|foreach|fused] gives."""
    name, _, form = text.partition(":")
    return {"optimizer": name, "form": form or "foreach"}


def machine_named(machine: str | None, profile: Path | None) -> str:
    """The field that --machine or --profile gives. Raises SchedcastError for both."""
    if profile is not None and machine is not None:
        raise SchedcastError(f"--profile {profile} and --machine {machine} both name a machine; choose one of the two")
    if profile is None:
        return machine or ""
    return f"{PROFILE}{profile if profile.is_absolute() else f'./{profile}'}"  # no stored profile has such a name


def profile_named(machine: str) -> Path | None:
    """The file of the profile that has this name among the machines (`JobRequest.machine`); None for machines."""
    if machine.startswith(PROFILE):
        return stored_profiles().get(machine) or Path(machine.removeprefix(PROFILE))
    return Path(machine) if machine.endswith(".json") else None


def start_models() -> list[str]:
    """The users' own models that the app was started with. No other code of a user runs."""
    return [argument.removeprefix(MODEL) for argument in sys.argv[1:] if argument.startswith(MODEL)]


def stored_profiles() -> dict[str, Path]:
    """The profiles of the data folder, by their names among the machines."""
    from traces.documents.profile_files import list_profiles

    return {f"{PROFILE}{path.name}": path for path in list_profiles()}
