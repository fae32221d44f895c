"""The functions of `import schedcast`. Each loads what it needs when it is called, so that importing them loads nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ui.api.arguments import asked, renamed, strategies_of

if TYPE_CHECKING:
    from ui.api.measured import Measured
    from ui.api.predicted import Predicted
    from ui.api.recorded import Difference, Recorded
    from ui.api.searched import Searched
    from ui.api.watching import Watch


@asked
def predict(
    model: Any,
    batch: Any = None,
    target: Any = None,
    *,
    on: Any = None,
    loss: Any = None,
    step: Any = None,
    optimizer: Any = None,
    strategy: Any = None,
    samples: int | None = None,
    devices: int | None = None,
    memory_limit: float | None = None,
    network: str | None = None,
    mode: str = "eager",
    tokens: str | float = "",
    price: float | None = None,
    **job: Any,
) -> "Predicted":
    """Predict how long a training step takes, and whether it fits in memory. Nothing runs, and no GPU is needed.

    `model`: a `torch.nn.Module`, of which a copy is captured (its gradients, hooks, mode and random generators stay as they are), or a name
    as on the command line, such as `"resnet50"`, `"timm:convnext_tiny"` or `"my_model.py:make"`; then `batch` is a number of samples.

    `batch`: the arguments of the module, on any device: a tensor, a tuple, mapping or dataclass of tensors, or a pair (inputs, target) as a
    loader yields it. `loss(output, target)`: by default the output's own loss, else cross-entropy. For anything else, `step(model, batch)`
    returns the loss. `optimizer`: PyTorch's, or a name such as `"adam:fused"`. Autocast counts if it is on. `samples`: the batch size, if
    it is not the extent of dimension 0.

    `on`: a machine (`schedcast machines`), the file of a profile, or by default this machine. `strategy`: NAME[:option=value,...]; by
    default plain PyTorch, the loop you have. `tokens` (15e12, or "15T") of a whole training and the `price` of a device for an hour say
    what that takes. `devices`, `memory_limit` (GB), `network` ("50Gb/s") and `mode` are those of the command line, and `job` are further
    fields of the job: `precision`, `layout`, `accumulate`, `loss_mean`, `clip_norm`, `image_size` or `seq`, `checkpoint`, `attention`.

    Raises SchedcastError, with one line, if the job cannot be captured or predicted.
    """
    from ui.api import predicted

    own = {
        "batch": batch, "target": target, "on": on, "loss": loss, "step": step, "optimizer": optimizer, "strategy": strategy,
        "samples": samples, "devices": devices, "memory_limit": memory_limit, "network": network, "mode": mode, "tokens": tokens,
        "price": price,
    }  # fmt: skip
    return predicted.predict(model, *renamed(own, job))


@asked
def search(model: Any, batch: Any = None, strategies: Any = (), processes: int | None = None, **job: Any) -> "Searched":
    """Rank every plan that the strategies (none: all) offer for a job.

    The job is that of a prediction, or that of the arguments of `predict`.
    """
    from ui.api import predicted, searched

    names = strategies_of(job.pop("strategy", None) or strategies)
    own = model if isinstance(model, predicted.Predicted) else predict(model, batch, **job)
    return searched.search(own, names, processes)


@asked
def validate(model: Any, batch: int | None = None, strategy: Sequence[str] = (), **options: Any) -> "Measured":
    """Predict, run and compare schedules on this machine, in a separate process, as `schedcast validate` does.

    `model`: a name or FILE.py:FACTORY. `strategy`: none means all. `options` are those of the command: `quick=True`, `out="report"`,
    `image_size=64`. Raises SchedcastError with the command's refusal.
    """
    from ui.api import measured

    return measured.measured("validate", model, {"batch": batch, "strategy": list(strategy), **options})


@asked
def run(model: Any, batch: int | None = None, strategy: str = "baseline", **options: Any) -> "Measured":
    """Train with a schedule on this machine, as `schedcast run` does. Arguments as in `validate`."""
    from ui.api import measured

    return measured.measured("run", model, {"batch": batch, "strategy": strategy, **options})


@asked
def calibrate(model: Any, batch: int | None = None, strategy: Sequence[str] = (), **options: Any) -> "Measured":
    """Measure the costs of a job's plans on this machine and store them in its profile, as `schedcast calibrate` does. See `validate`."""
    from ui.api import measured

    return measured.measured("calibrate", model, {"batch": batch, "strategy": list(strategy), **options})


@asked
def replay(traces: Any, what_if: Sequence[str] = ()) -> "Recorded":
    """Say where the time of a recorded GPU step goes, and what would make it faster. Needs neither PyTorch nor a GPU.

    `traces`: the file of a trace, those of all ranks of a job, or what `watch` recorded. `what_if`: rules as on the command line, such as
    `"optimizer=fused"`; without any, those that apply are ranked. Raises SchedcastError for files that cannot be replayed.
    """
    from ui.api import recorded

    return recorded.replay(traces, what_if)


@asked
def diff(before: Any, after: Any) -> "Difference":
    """Say why one recorded run is slower than another, in terms that add up. Either is as in `replay`."""
    from ui.api import recorded

    return recorded.diff(before, after)


@asked
def watch(steps: int = 5, out: str | Path | None = None, memory: bool = False) -> "Watch":
    """Record a few steps of a training loop, and say what they wait for and what would make them faster.

        with sc.watch(steps=5) as seen:
            for batch in loader:
                train_step(batch)
                seen.step()
        seen

    `out`: where to store the trace (.json.gz); under torchrun, each rank has its own. `memory`: also record allocations. The steps before
    the first recorded one show the cost of recording (`seen.overhead`). For a loop that you do not want to indent, `seen =
    sc.watch().start()` does the same, and prints the answer.
    """
    from ui.api import watching

    return watching.Watch(steps, out, memory)


@asked
def hf(steps: int = 5, out: str | Path | None = None) -> Any:
    """A callback for the Trainer of transformers: `Trainer(..., callbacks=[sc.hf()])`. Prints what `watch` would say."""
    from ui.api import watching

    return watching.hf(steps, out)


@asked
def accelerate(steps: int = 5, out: str | Path | None = None) -> Any:
    """For `Accelerator(kwargs_handlers=[sc.accelerate()])` of accelerate: its `profile` prints what `watch` would say.

    with accelerator.profile() as seen:
        for batch in loader:
            train_step(batch)
            seen.step()
    """
    from ui.api import watching

    return watching.accelerate(steps, out)


@asked
def lightning(steps: int = 5, out: str | Path | None = None) -> Any:
    """A callback for Lightning: `Trainer(callbacks=[sc.lightning()])`. Prints what `watch` would say."""
    from ui.api import watching

    return watching.lightning(steps, out)


@asked
def report(path: str | Path, *answers: Any, title: str = "Schedcast") -> Path:
    """Write one page for a colleague about answers of this module, or files and folders that commands wrote. Returns its path."""
    from ui.api import shown

    return shown.report(Path(path), answers, title)
