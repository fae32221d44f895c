"""The row of plain PyTorch of `schedcast validate` against a loop written by hand, which runs in a fresh process without Schedcast.

The loop runs in several processes before and after each validation, since its steps differ by up to a factor of two from one process to
the next (`calibrate.rounds.PROCESS_ROUNDS`). Target: the measured row is within 15 % of the median process, for every model. The row's own
prediction is printed next to it.

    python -m tools.plain_pytorch [MODEL]...
"""

import subprocess
import sys
from dataclasses import dataclass
from statistics import median

from tests.support.places import ROOT
from tools.accuracy import validated

_NETWORKS = ROOT / "simulator" / "model" / "workloads" / "networks"
#: The largest relative difference that meets the target.
TARGET = 0.15
#: Processes before and after a validation, and how long the loop runs in each: the speed of a shared machine changes within seconds.
_PROCESSES, _SECONDS = 4, 2.0
#: The loop as a user writes it, with the optimizer that a job has if none is named.
_LOOP = """
import runpy, statistics, time
import torch

names = runpy.run_path({file!r})
model, inputs, target, *loss = {made}
loss = loss[0] if loss else torch.nn.functional.cross_entropy
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
steps_s, end = [], time.perf_counter() + {seconds}
while len(steps_s) < 15 or time.perf_counter() < end:
    begin = time.perf_counter()
    optimizer.zero_grad()
    loss(model(*inputs), target).backward()
    optimizer.step()
    steps_s.append(time.perf_counter() - begin)
print(statistics.median(steps_s[5:]), torch.get_num_threads())
"""


@dataclass(frozen=True)
class Model:
    """A model of the benchmark: its `--model`, batch and image size, and an expression that makes it by hand from a file.

    The file imports PyTorch alone. The expression is `(module, inputs, target)` or `(module, inputs, target, loss)`.
    """

    model: str
    batch: int
    size: int | None
    file: str
    made: str

    def by_hand(self) -> tuple[list[float], int]:
        """Seconds of a step of the loop by hand, by process the median of all but the first five, and the number of its threads."""
        program = _LOOP.format(file=self.file, made=self.made, seconds=_SECONDS)
        command = [sys.executable, "-c", program]
        printed = [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split() for _ in range(_PROCESSES)]
        return [float(seconds) for seconds, _ in printed], int(printed[0][1])


def _images(name: str, batch: int, size: int, file: str, module: str, channels: int = 3, classes: int = 1000) -> Model:
    made = f"({module}, (torch.randn({batch}, {channels}, {size}, {size}),), torch.randint({classes}, ({batch},)))"
    return Model(name, batch, size, str(_NETWORKS / file), made)


_TRANSFORMER = ROOT / "tools" / "small_transformer.py"
MODELS = {
    "lenet5": _images("lenet5", 256, 32, "chains.py", "names['LeNet5']()", 1, 10),
    "resnet18": _images("resnet18", 16, 64, "shortcuts.py", "names['ResNet']((2, 2, 2, 2), bottleneck=False)"),
    "mobilenet_v2": _images("mobilenet_v2", 8, 64, "shortcuts.py", "names['MobileNetV2']()"),
    "vgg11": _images("vgg11", 8, 64, "chains.py", "names['VGG']((1, 1, 2, 2, 2))"),
    "transformer": Model(f"{_TRANSFORMER}:make", 8, None, str(_TRANSFORMER), "names['make'](8)"),
}


def main() -> int:
    """Print a row per model. Returns 1 if the target is not met."""
    print(f"{'model':14}{'by hand: median, processes':>32}{'validate':>11}{'':>8}  {'predicted':30}", flush=True)
    met = True
    for name in sys.argv[1:] or MODELS:
        model = MODELS[name]
        before_s, threads = model.by_hand()
        validation = validated(model.model, model.batch, model.size, ("baseline", "turbodl"), ("--quick",))
        by_hand_s = before_s + model.by_hand()[0]
        row, middle_s = validation.pytorch, median(by_hand_s)
        difference = row.measured_step_s / middle_s - 1
        met = met and abs(difference) <= TARGET and validation.reference_threads == threads
        low_s, high_s = row.predicted_interval_s
        print(
            f"{name:14}{1e3 * middle_s:12.1f} ({1e3 * min(by_hand_s):.1f} to {1e3 * max(by_hand_s):.1f}) ms"
            f"{1e3 * row.measured_step_s:8.1f} ms{difference:+8.1%}"
            f"  {1e3 * row.predicted_step_s:.1f} ms ({1e3 * low_s:.1f} to {1e3 * high_s:.1f}), {row.error:+.1%}, {threads} threads; "
            + ", ".join(f"{r.strategy} {1e3 * r.measured_step_s:.1f} ms {r.error:+.1%}" for r in validation.ran),
            flush=True,
        )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
