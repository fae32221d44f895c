"""A training job: the model, the batch size and the optimizer. It captures its graph on demand."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from simulator.model.attention import ATTENTIONS, CUDNN, HALF, PYTORCH, drops_weights, with_attention
from simulator.model.checkpoint import choice
from simulator.model.checkpoint.checkpoint import checkpointed
from simulator.model.division.divide import UNDIVIDED, Division, divided
from simulator.model.gradients import GROWTH, INITIAL_SCALE, SCALE
from simulator.model.graph import TrainingGraph
from simulator.model.whole_mean import LOSS_MEANS, PARTS, with_whole_mean
from simulator.plan.bodies.update import check_form, hyper_parameters
from simulator.plan.plan import Plan
from traces.arguments import check_type
from traces.errors import SchedcastError, UnknownNameError
from traces.process import interrupts_delayed
from traces.units import read_number

if TYPE_CHECKING:
    from simulator.model.factory import Factory


class PlansInUse(WeakValueDictionary[tuple, Plan]):
    """Plans that are still referenced, by what they were made from. Other processes receive none of them."""

    def __reduce__(self) -> tuple[type["PlansInUse"], tuple[()]]:
        """Pickle as an empty one."""
        return PlansInUse, ()


#: The arguments of a graph's capture: samples of a (micro-)batch, such batches of a step, and whether attention with dropout is one op.
GraphArguments = tuple[int, int, bool]
#: "default" is PyTorch's own: on GPUs that have TF32, convolutions in TF32 and matrix products in fp32; elsewhere fp32.
DEFAULT = "default"
PRECISIONS = (DEFAULT, "fp32", "tf32", "bf16", "mixed", "amp", "amp-fp16", "fp64")
LAYOUTS = ("nchw", "nhwc")
#: The fields of a job whose values are names, and the names. The app offers them.
NAMED: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "precision": PRECISIONS, "layout": LAYOUTS, "attention": ATTENTIONS, "loss_mean": LOSS_MEANS,
})  # fmt: skip
#: The fields that every name of a measured step has; all others are in it only if they differ from their defaults.
_ALWAYS_NAMED = frozenset({
    "model", "batch", "image_size", "optimizer", "form", "lr", "lr_schedule", "clip_norm", "accumulate", "precision", "layout", "autocast",
    "seed",
})  # fmt: skip
#: The most microbatches of a step: each has its own inputs, also in plans that omit those in the middle.
MOST_ACCUMULATED = 10_000


def product_precision(precision: str) -> str:
    """The precision of products and convolutions in a job of this precision."""
    return {"amp": "bf16", "mixed": "bf16", "amp-fp16": "fp16"}.get(precision, precision)


#: Attributes of a job that its copies of one precision and seed share.
_CAPTURED = ("_graphs", "_captured", "_varied", "_plans")


@dataclass(frozen=True)
class Job:
    """One training step's worth of work.

    Not modeled: torch.compile, dynamic shapes, sparse gradients.

    >>> job = Job("lenet5", batch=64, optimizer="sgd", accumulate=4)
    >>> job.microbatch, job.hyper
    (16, (('lr', 0.01), ('weight_decay', 0.0)))
    """

    model: str
    """Built-in name or form (`lm:...`), `path/to/file.py:factory`, `package.module:factory`, `torchvision:NAME`, `timm:NAME`, `hf:NAME`."""
    batch: int
    """Samples per step, all microbatches together."""
    image_size: int | None = None
    """Side of the input image, or tokens of a sequence; None for the model's own."""
    optimizer: str = "momentum"
    """sgd, momentum, nesterov, adagrad, rmsprop, adadelta, adam or adamw."""
    form: str = "foreach"
    """PyTorch's form of the update: for, foreach or fused."""
    lr: float | None = None
    """Learning rate; None for the optimizer's default."""
    lr_schedule: str | None = None
    """Learning rates by phase, as ITERATION:RATE,...: each from its iteration (from 0) on; None for one rate."""
    clip_norm: float | None = None
    """Largest global norm of the gradients; None for no clipping."""
    accumulate: int = 1
    """Microbatches whose gradients are accumulated before the update."""
    loss_mean: str = PARTS
    """The loss over microbatches and devices: parts (the mean of their means) or batch (one mean over all targets that count)."""
    precision: str = "fp32"
    """default (PyTorch's own), fp32, tf32, bf16, mixed (a bf16 copy of fp32 parameters computes, as under FSDP2's MixedPrecisionPolicy),
    amp (autocast to bf16), amp-fp16 (autocast to fp16, with a gradient scaler) or fp64."""
    layout: str = "nchw"
    """Memory layout of images: nchw or nhwc."""
    autocast: str = ""
    """With amp, the kind of device whose rules autocast follows: gpu, else a CPU's. A plan has those of its machine (`on`)."""
    attention: str = PYTORCH
    """Kernel of attention in 16 bits on a GPU: pytorch (the one that PyTorch chooses) or cudnn."""
    checkpoint: str = "none"
    """Activation checkpointing: none, full, selective, or budget:SIZE for the activations of a microbatch."""
    seed: int = 0
    """Seed of initial parameters, inputs and dropout masks."""
    _graphs: dict = field(default_factory=dict, init=False, repr=False, compare=False)  # a changed copy of a job has its own
    _captured: dict = field(default_factory=dict, init=False, repr=False, compare=False)  # graphs as captured, and divided
    _varied: dict = field(default_factory=dict, init=False, repr=False, compare=False)
    _plans: PlansInUse = field(default_factory=PlansInUse, init=False, repr=False, compare=False)
    _compact: bool = field(default=False, init=False, repr=False, compare=False)
    _fused: bool = field(default=False, init=False, repr=False, compare=False)  # attention with dropout is one op, as on a GPU

    def __post_init__(self):
        for each in fields(self):
            if each.init:
                check_type(f"--{each.name.replace('_', '-')}", getattr(self, each.name), each.type)
        try:
            self.model.encode()
        except UnicodeEncodeError as error:
            raise SchedcastError(f"--model {self.model!a} is not UTF-8 text; expected a name that is; rename the file") from error
        for name in ("batch", "accumulate"):
            if getattr(self, name) < 1:
                raise SchedcastError(f"--{name} is {getattr(self, name)}; expected at least 1")
        if self.accumulate > MOST_ACCUMULATED:
            raise SchedcastError(f"--accumulate is {self.accumulate}; expected at most {MOST_ACCUMULATED}")
        if self.image_size is not None and self.image_size < 1:
            raise SchedcastError(f"--image-size is {self.image_size}; expected at least 1")
        if self.batch % self.accumulate:
            raise SchedcastError(f"--batch {self.batch} is not divisible by --accumulate {self.accumulate}; change one of them")
        for name, allowed in NAMED.items():
            if (value := getattr(self, name)) not in allowed:
                raise UnknownNameError(name.replace("_", " "), value, allowed)
        if self.attention == CUDNN and self.precision not in HALF:
            raise SchedcastError(
                f"--attention cudnn needs 16 bits, and --precision is {self.precision}; give one of {', '.join(sorted(HALF))}"
            )
        choice.read(self.checkpoint)
        check_form(self.optimizer, self.form)
        if self.clip_norm is not None and not 0 < self.clip_norm < float("inf"):
            raise SchedcastError(f"--clip-norm is {self.clip_norm}; expected a finite number above 0")
        if self.lr is not None and not 0 <= self.lr < float("inf"):
            raise SchedcastError(f"--lr is {self.lr}; expected a finite number of at least 0")
        if self.rates and not self.rates[0][0] and self.lr is not None:
            raise SchedcastError(f"--lr {self.lr:g} and --lr-schedule {self.lr_schedule} both give the first rate; drop --lr")

    @property
    def microbatch(self) -> int:
        """Samples of one microbatch."""
        return self.batch // self.accumulate

    @property
    def dtype(self) -> str:
        """Dtype to which floating-point parameters and inputs are cast, unless it is float32 or that of the parameters."""
        return {"fp64": "float64", "bf16": "bfloat16"}.get(self.precision, "float32")

    @property
    def autocast_dtype(self) -> str | None:
        """The lower precision of autocast; None without autocast."""
        return {"amp": "bfloat16", "amp-fp16": "float16"}.get(self.precision)

    @property
    def lowered_dtype(self) -> str:
        """The precision of the copy of the parameters that computes; empty if the parameters themselves do."""
        return "bfloat16" if self.precision == "mixed" else ""

    @property
    def scales_loss(self) -> bool:
        """Whether the loss is multiplied by the scale of a gradient scaler (`simulator.model.gradients`)."""
        return self.autocast_dtype == "float16"

    @property
    def needs_all_gradients(self) -> str:
        """The part of the job that needs every gradient before the first update, in words that follow "cannot"; empty if there is none."""
        if self.clip_norm is not None:
            return f"clip by the global norm (--clip-norm {self.clip_norm})"
        return f"skip steps whose gradients overflow (--precision {self.precision})" if self.scales_loss else ""

    @property
    def _autocast_rules(self) -> tuple[str, str] | None:
        return None if self.autocast_dtype is None else (self.autocast_dtype, self.autocast)

    @property
    def _casts(self) -> tuple[str, ...]:
        """What decides the casts of a graph."""
        return self._autocast_rules or (("mixed", self.lowered_dtype) if self.lowered_dtype else ())

    @property
    def hyper(self) -> tuple[tuple[str, float], ...]:
        """Hyper-parameters of the optimizer as (name, number) pairs, with defaults filled in."""
        return hyper_parameters(self.optimizer, **({} if self.lr is None else {"lr": self.lr}))

    @cached_property
    def rates(self) -> tuple[tuple[int, float], ...]:
        """(first iteration, learning rate) of the phases of `lr_schedule`. Raises SchedcastError if it is unusable."""
        return _rates(self.lr_schedule) if self.lr_schedule is not None else ()

    @cached_property
    def factory(self):
        """The model's factory (`factory.Factory`)."""
        from simulator.model.find import find_factory

        return find_factory(self.model, self.image_size)

    def with_seed(self, seed: int) -> "Job":
        """Return the same job with another seed. Captured graphs, which do not depend on it, are shared."""
        seeded = self._carried(replace(self, seed=seed))
        seeded._graphs.update(self._graphs)
        return seeded

    def on(self, kind: str) -> "Job":
        """Return the job as a device of this kind runs it: with its rules of autocast, its precision, and its attention, which with
        dropout is one op on a GPU.

        Captured graphs are shared.
        """
        precision = "fp32" if (self.precision, kind) == (DEFAULT, "cpu") else self.precision
        autocast = self.autocast if self.autocast_dtype is None else kind
        attention, fused = PYTORCH if kind == "cpu" else self.attention, kind == "gpu"
        if (precision, autocast, attention, fused) == (self.precision, self.autocast, self.attention, self._fused):
            return self
        job = self._carried(replace(self, precision=precision, autocast=autocast, attention=attention), "_compact", *_CAPTURED)
        object.__setattr__(job, "_fused", fused)
        return job

    @property
    def compact(self) -> bool:
        """Whether plans may omit microbatches that repeat others (`strategies.compact`): such plans are predicted, and cannot run."""
        return self._compact

    def planned(self, compact: bool) -> "Job":
        """Return the same job with another `compact`. Everything captured, and plans in use, are shared."""
        if compact == self._compact:
            return self
        job = self._carried(replace(self), *_CAPTURED)
        object.__setattr__(job, "_compact", compact)
        return job

    def _carried(self, job: "Job", *shared: str) -> "Job":
        """A copy of this job, including what no argument sets: how a device runs it, its factory, and the `shared` attributes."""
        for name in ("_fused", *shared):
            object.__setattr__(job, name, getattr(self, name))
        if "factory" in self.__dict__:  # which may be of no model that a name leads to
            job.__dict__["factory"] = self.factory
        return job

    def varied(self, **changes: Any) -> "Job":
        """Return the job with other microbatches or checkpointing, the same object each time. What is captured is shared."""
        key = (*sorted(changes.items()), self.precision, self.autocast, self.attention, self._fused)
        if key not in self._varied:
            self._varied[key] = self._carried(replace(self, **changes), "_captured")
        return self._varied[key]

    @property
    def plans(self) -> PlansInUse:
        """The plans of this job that are in use."""
        return self._plans

    def build(self, batch: int | None = None, fused_dropout: bool = False, factory: "Factory | None" = None):
        """Make the module with inputs and target for `batch` samples (`models.built.Built`), from the job's seed, precision and layout.

        `fused_dropout`: as in `captured`. `factory`: of a part of the job's model; default: the job's.
        """
        from simulator.model.factory import call_factory

        with interrupts_delayed():
            import torch

        if self.factory.kept is None:  # a live module has its numbers, and its process its own generators
            torch.manual_seed(self.seed)
        built = call_factory(factory or self.factory, self.batch if batch is None else batch)
        if self.layout == "nhwc" or built.float_type != getattr(torch, self.dtype):
            built.replace_tensors(partial(self._converted, own=built.float_type))
        built.autocast, built.fused_dropout, built.lowered = self._autocast_rules, fused_dropout, self.lowered_dtype
        if self.scales_loss:
            built.scaler = {SCALE: torch.full((), INITIAL_SCALE), GROWTH: torch.zeros((), dtype=torch.int32)}
        return built

    def _converted(self, tensor, own=None):
        """Convert a tensor to the job's precision and layout. A model whose parameters have the precision, `own`, already is not cast.

        Nor is one cast to fp32: then PyTorch computes in the types that the factory has chosen, too.
        """
        import torch

        if not tensor.is_floating_point():
            return tensor
        asked = getattr(torch, self.dtype)
        tensor = tensor if asked in (torch.float32, own) else tensor.to(asked)
        return tensor.contiguous(memory_format=torch.channels_last) if self.layout == "nhwc" and tensor.dim() == 4 else tensor

    def data(self):
        """Return the batches to train on (`workloads.data.Batches`) in the job's precision and layout; None without a data set."""
        if self.factory.data is None:
            return None
        batches = self.factory.data(self.batch, self.seed)

        def make(numbers):
            inputs, target = batches.make(numbers)
            return tuple(map(self._converted, inputs)), self._converted(target)

        return replace(batches, make=make)

    def graph(self, batch: int | None = None, parts: int | None = None, division: Division = UNDIVIDED) -> TrainingGraph:
        """Return the graph of one (micro-)batch of `batch` samples, with its loss divided by `parts`, and with the repeated forwards.

        It is cached in memory and, unless the model is a user's, on disk: it cannot be known what the code of a user's factory depends on.
        `parts`: the number of such batches in a step, over all devices; default: `accumulate`. `division`: whose part of the layers the
        graph has.
        """
        arguments = (self.microbatch if batch is None else batch, self.accumulate if parts is None else parts)
        key = (*arguments, self._fused, self.autocast, self.attention, self.loss_mean, *(() if division is UNDIVIDED else (division,)))
        if key not in self._graphs:
            if key not in self._captured:  # variants of checkpointing share it
                graph = with_attention(self._as_run(*arguments), self.attention)
                own_mean = self.loss_mean == PARTS or arguments[1] == 1
                self._captured[key] = divided(graph if own_mean else with_whole_mean(graph, arguments[1]), division)
            own = self._captured[key]
            self._graphs[key] = own if self.checkpoint == choice.NONE else checkpointed(own, self.checkpoint)
        return self._graphs[key]

    def _as_run(self, batch: int, parts: int) -> TrainingGraph:
        graph = self.captured(batch, parts, False)
        return self.captured(batch, parts, True) if self._fused and drops_weights(graph) else graph

    def captured(self, batch: int, parts: int, fused_dropout: bool) -> TrainingGraph:
        """Return the graph that `graph` returns, without repeated forwards. `fused_dropout`: attention with dropout is one op."""
        key = (batch, parts, fused_dropout, self.autocast)
        if key not in self._captured:
            self._captured[key] = self._load_or_capture(batch, parts, fused_dropout)
        return self._captured[key]

    def _load_or_capture(self, batch: int, parts: int, fused_dropout: bool) -> TrainingGraph:
        stack = self.factory.stack
        if stack is not None:
            from simulator.model.capture.stack import deepened

            graph = deepened(self._of_factory(stack.few, batch, parts, fused_dropout), stack)
            if graph is not None:
                return graph
        return self._of_factory(self.factory, batch, parts, fused_dropout)

    def _of_factory(self, factory: "Factory", batch: int, parts: int, fused_dropout: bool) -> TrainingGraph:
        from simulator.model.capture import cache as graph_cache

        fingerprint, kept = factory.fingerprint, factory.kept
        key = (factory.name, fingerprint, batch, parts, fused_dropout, self.dtype, self.layout, *self._casts)
        graph = graph_cache.load(key) if fingerprint is not None else kept.get(key) if kept is not None else None
        if graph is None:
            with interrupts_delayed():
                from simulator.model.capture.capture import capture

            graph = capture(lambda: self.build(batch, fused_dropout, factory), batch, float(parts), repeats=factory.repeats)
            if fingerprint is not None:
                graph_cache.store(key, graph)
            elif kept is not None:
                kept[key] = graph
        return graph

    def describe(self) -> dict[str, object]:
        """Return the job's fields as plain data, for documents."""
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")}

    @property
    def label(self) -> str:
        """A short name for files: model and batch."""
        stem = Path(self.model.rpartition(":")[0]).stem + "-" + self.model.rpartition(":")[2] if ":" in self.model else self.model
        size = f"-{self.image_size}px" if self.image_size else ""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{stem}{size}-b{self.batch}").strip("-")

    @property
    def digest(self) -> str:
        """A short hash of everything that decides the plan."""
        usual = {each.name: each.default for each in fields(self) if each.name not in _ALWAYS_NAMED}
        # Steps that were measured before there was a field keep their names.
        decisive = {name: value for name, value in self.describe().items() if name not in usual or value != usual[name]}
        return hashlib.blake2b(repr(decisive).encode(), digest_size=6).hexdigest()


def _rates(text: str) -> tuple[tuple[int, float], ...]:
    """Read ITERATION:RATE,... with increasing iterations. Raises SchedcastError for anything else."""
    rates: list[tuple[int, float]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9}):([^\s:]{1,40})\s*", part)
        if match is None or (rate := read_number(match[2])) is None or rate < 0:
            raise SchedcastError(f"--lr-schedule {text[:60]!r}: {part[:40]!r} is not ITERATION:RATE; give it as in 0:0.1,300:0.01")
        first = int(match[1])
        if rates and first <= rates[-1][0]:
            raise SchedcastError(f"--lr-schedule {text[:60]!r}: iteration {first} does not come after {rates[-1][0]}; list them in order")
        rates.append((first, rate))
    return tuple(rates)
