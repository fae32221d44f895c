"""Jobs that the demo's profile never saw: `python -m tools unseen`, or `python -m tools.unseen FOLDER [JOB...]`.

In a separate data folder (FOLDER retains it, with the demo's profile, for the next time), the demo calibrates this machine. Each job is
then predicted from that profile alone, and again after `predict` has measured what is missing; a hand-written loop in a fresh process times
it before and after. A row is right if the median step lies within the interval, or if there is no verdict. Prints the rows of plain PyTorch
with the verdict on TurboDL, and exits with 1 if one is wrong. Wants a quiet machine.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from traces import units
from traces.documents.predictions import PlacedPrediction, Predictions

OWN = Path(__file__).with_name("own_models.py")
#: (model, batch, image size; 0: the model's own).
JOBS = (
    ("resnet18", 8, 224), ("resnet18", 16, 64), ("mobilenet_v2", 8, 128), ("transformer_base", 4, 0), ("vgg16", 8, 64),
    ("alexnet_cifar", 32, 0), ("densenet121", 4, 64), (f"{OWN}:mlp", 64, 0), (f"{OWN}:gpt", 8, 0),
)  # fmt: skip
WARM_UP, SECONDS, LEAST_STEPS = 3, 8.0, 5
#: Prints the seconds of steps of a loop as users write it; argv: model, batch, image size.
LOOP = f"""
import json, sys, time, torch
from simulator.model.job import Job
model, batch, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) or None
built = Job(model, batch, size).build()
module, loss = built.module, built.loss
optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
steps, end = [], None
while len(steps) < {WARM_UP + LEAST_STEPS} or time.perf_counter() < end:
    begin = time.perf_counter()
    optimizer.zero_grad()
    loss(module(*built.inputs), built.target).backward()
    optimizer.step()
    steps.append(time.perf_counter() - begin)
    end = end or begin + {SECONDS}
print(json.dumps(steps[{WARM_UP}:]))
"""


def schedcast(folder: Path, *arguments: object) -> str:
    """What the command prints on standard output, with its data in `folder`."""
    command = [sys.executable, "-m", "ui.cli", *map(str, arguments)]
    done = subprocess.run(command, env={**os.environ, "SCHEDCAST_DATA": str(folder)}, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout


def measured_s(job: tuple[str, int, int]) -> list[float]:
    """Seconds of the steps of a hand-written loop in a fresh process."""
    done = subprocess.run([sys.executable, "-c", LOOP, *map(str, job)], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def predicted(folder: Path, job: tuple[str, int, int], *options: str) -> dict[str, PlacedPrediction]:
    """The predictions of plain PyTorch and of TurboDL, by strategy."""
    model, batch, size = job
    image = ("--image-size", size) if size else ()
    asked = ("predict", "--model", model, "--batch", batch, *image, "--strategy", "baseline", "--strategy", "turbodl", "--json", *options)
    answer = Predictions.model_validate_json(schedcast(folder, *asked))
    return {row.strategy: row for row in answer.predictions}


def row(name: str, rows: dict[str, PlacedPrediction], steps_s: list[float]) -> bool:
    """Print one row. Returns whether it is right."""
    plain, turbodl, step_s = rows["pytorch"], rows["turbodl"], median(steps_s)
    inside = plain.interval_s[0] <= step_s <= plain.interval_s[1]
    verdict = turbodl.gain_over_pytorch.verdict
    told = f"{units.ms(plain.step_s)} ({units.interval(plain.interval_s)})"
    share = f"{plain.measured_share or 0:.0%}"
    print(f"{name:34}{told:>28}{units.ms(step_s):>11}{'yes' if inside else 'no':>9}{verdict:>13}{share:>10}", flush=True)
    return inside or verdict == "no verdict"


def main(folder: Path, names: list[str]) -> int:
    """Run the jobs whose names contain one of `names`, or all. Returns the exit status."""
    if not list((folder / "profiles").glob("*.json")):
        schedcast(folder, "demo", "--out", folder / "demo", "--json")
    print(f"{'job':34}{'plain PyTorch, ms (90 %)':>28}{'loop, ms':>11}{'inside':>9}{'turbodl':>13}{'measured':>10}")
    right = True
    for job in JOBS:
        name = f"{job[0].rpartition(':')[2]} {job[1]}" + (f" at {job[2]}" if job[2] else "")
        if names and not any(own in name for own in names):
            continue
        with tempfile.TemporaryDirectory() as copy:
            own = Path(copy)
            (own / "profiles").mkdir()
            for file in (folder / "profiles").iterdir():
                (own / "profiles" / file.name).write_bytes(file.read_bytes())
            steps_s = measured_s(job)
            before = predicted(own, job, "--no-calibrate")
            after = predicted(own, job)
            steps_s += measured_s(job)
        right &= row(name, before, steps_s)
        right &= row("  its costs measured", after, steps_s)
    return 0 if right else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
    with tempfile.TemporaryDirectory() as made:
        sys.exit(main(Path(made), []))
