"""What `schedcast.watch` costs a training loop on a CPU: python -m tools.watching [ROUNDS]

A loop without it and one with it take turns in each round. Steps with it are those before the recording,
those recorded, and those after it; writing the trace, once, is a separate time. Times are seconds of the process on all its threads,
which other processes of the machine disturb least. The step is that of a multilayer perceptron with Adam's fused form, on one thread.
"""

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import schedcast as sc
import torch

from ui.api.watching import BEFORE, WARM_UP

#: Recorded steps, steps after them, and samples, features and layers, for a step of about 10 ms.
RECORDED, AFTER = 5, 10
BATCH, WIDTH, LAYERS = 64, 384, 6


def training_step() -> Callable[[], None]:
    """A step of a loop that a user might have."""
    model = torch.nn.Sequential(*(layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    inputs = torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def timed(call: Callable[[], object]) -> float:
    """The process's seconds of one call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def watched(step: Callable[[], None], trace: Path, seconds: dict[str, list[float]]) -> None:
    """Time each step of a watched loop with its call of `seen.step()`, by what happens in it."""
    kinds = ["before"] * BEFORE + ["starting"] * WARM_UP + ["recorded"] * RECORDED + ["after"] * AFTER
    with sc.watch(steps=RECORDED, out=trace) as seen:
        for number, kind in enumerate(kinds, 1):
            own, ending = timed(step), timed(seen.step)
            last = number == BEFORE + WARM_UP + RECORDED
            seconds[kind].append(own if last else own + ending)
            if last:
                seconds["writing"].append(ending)


def main(arguments: list[str]) -> None:
    """Print the table. The share is the median over the rounds, with quartiles, of a round's median over that of its loop without."""
    torch.set_num_threads(1)
    step = training_step()
    for _ in range(20):
        step()
    rounds: list[dict[str, list[float]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(int(arguments[0]) if arguments else 40):
            seconds: dict[str, list[float]] = defaultdict(list)
            for watching in (number % 2 == 0, number % 2 == 1):
                if watching:
                    watched(step, Path(folder) / "trace.json.gz", seconds)
                else:
                    seconds["without"] += [timed(step) for _ in range(RECORDED + AFTER)]
            rounds.append(seconds)
    print("| steps | number | median ms | over those without (quartiles) |\n|---|---|---|---|")
    for kind in ("without", "before", "starting", "recorded", "after", "writing"):
        own = [each for seconds in rounds for each in seconds[kind]]
        low, middle, high = quantiles(median(seconds[kind]) / median(seconds["without"]) for seconds in rounds)
        print(f"| {kind} | {len(own)} | {median(own) * 1e3:.3g} | {middle:.3f} ({low:.3f} to {high:.3f}) |")


if __name__ == "__main__":
    main(sys.argv[1:])
