"""Page faults of plain PyTorch's loop against the fresh memory that is predicted: `python -m tools.fresh_memory`.

`costs.fresh_memory.SHARE` was fitted on the first four jobs; the others had no part in it. Each loop runs in three processes, since each
lays out its heap again. Other work on the machine does not matter: faults are counted, not timed.
"""

import json
import subprocess
import sys
from statistics import median

from simulator.engine.costs.fresh_memory import SHARE, fresh_bytes
from simulator.engine.costs.model import CostModel
from simulator.machine.this_cpu import this_cpu
from simulator.model.job import Job
from simulator.predict.forecast import plan_of
from simulator.predict.target import Target
from tools.unseen import OWN

PAGE, PROCESSES = 4096, 3
#: (model, batch, image size; 0: the model's own).
JOBS = (
    ("lenet5", 256, 0), ("resnet18", 16, 64), ("mobilenet_v2", 8, 64), ("vgg11", 8, 64), (f"{OWN}:mlp", 64, 0), (f"{OWN}:gpt", 8, 0),
    ("alexnet_cifar", 32, 0), ("densenet121", 4, 64), ("mobilenet_v2", 8, 128),
)  # fmt: skip
#: Prints the page faults of each step; argv: model, batch, image size.
LOOP = """
import json, resource, sys, torch
from simulator.model.job import Job
model, batch, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) or None
built = Job(model, batch, size).build()
optimizer = torch.optim.SGD(built.module.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
counts = []
for _ in range(16):
    optimizer.zero_grad()
    built.loss(built.module(*built.inputs), built.target).backward()
    optimizer.step()
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(json.dumps([later - earlier for earlier, later in zip(counts[4:], counts[5:])]))
"""


def faults(job: tuple[str, int, int]) -> float:
    """Page faults of a step: the median of one process."""
    done = subprocess.run([sys.executable, "-c", LOOP, *map(str, job)], stdout=subprocess.PIPE, text=True, check=True)
    return median(json.loads(done.stdout))


def main() -> None:
    """Print a row per job."""
    machine = this_cpu()
    print(f"{'job':28}{'mapped':>9}{'and of the heap':>17}{'page faults, by process':>32}{'share of the peak':>19}   (assumed: {SHARE})")
    for model, batch, size in JOBS:
        job = Job(model, batch, size or None)
        fresh = fresh_bytes(plan_of(job, "pytorch", Target.of(CostModel(machine))))
        mapped, heap = (sum(bytes_) / PAGE for bytes_ in zip(*fresh, strict=True))
        counted = [faults((model, batch, size)) for _ in range(PROCESSES)]
        share = (median(counted) - mapped) / heap * SHARE
        label = f"{model.rpartition(':')[2]} {batch}" + (f" at {size}" if size else "")
        print(f"{label:28}{mapped:9.0f}{heap:17.0f}{', '.join(f'{each:.0f}' for each in counted):>32}{share:19.2f}", flush=True)


if __name__ == "__main__":
    main()
