"""Every strategy on small real models, on 1, 2 and 4 devices in float64: executed with plain PyTorch's numbers, or refused in one line.

`python -m tools.strategy_numerics [MODEL]...` prints a line for each plan and, at the end, the faults alone; it needs timm and
transformers. Devices share the cores that there are, so nothing is timed. The exit status is 1 if a number is wrong or an error is not one
that a user can read.
"""

import logging
import sys
import traceback
from collections import Counter
from itertools import cycle, islice

from calibrate.numerics import References, compare
from executors.cpu.backend import CpuBackend
from executors.cpu.cores import available_cores
from simulator.model.job import Job
from tests.support import real_models
from tests.support.applicable import core_groups, specs
from tests.support.jobs import planned
from traces.errors import SchedcastError

DEVICES, BATCH, STEPS, LIMIT = (1, 2, 4), 8, 3, 1e-10


def backend_of(devices: int) -> CpuBackend:
    """An executor with `devices` devices, which take the cores in turn."""
    return CpuBackend(core_groups(devices), cores=tuple(islice(cycle(available_cores()), devices)))


def outcome(job: Job, built, references: References, backend: CpuBackend, spec: str) -> tuple[str, str]:
    """What a strategy does with a job, as equal, wrong, refused or fault, and the details."""
    try:
        plan = planned(spec, job, backend.machine)
        plan.validate(backend.machine)
        numerics = compare(job, built, plan, backend, references.of(plan), STEPS)
    except SchedcastError as error:
        return ("refused", str(error)) if "\n" not in str(error) else ("fault", repr(error))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return "fault", f"{error!r} at {place.filename}:{place.lineno}"
    worst = max(numerics.max_grad_error, numerics.max_param_error)
    return ("equal" if worst <= LIMIT else "wrong"), f"{worst:.1e}"


def main() -> int:
    """Try all models, or those named on the command line. Returns 1 if there is a fault."""
    logging.getLogger("schedcast").setLevel(logging.ERROR)
    backends = {devices: backend_of(devices) for devices in DEVICES}
    counts, faults = Counter(), []
    for name in sys.argv[1:] or real_models.MODELS:
        job = Job(f"{real_models.__file__}:{name}", BATCH, precision="fp64", optimizer="sgd")
        try:
            built = job.build()
            references = References(job, built, STEPS, None)
            job.graph()
        except SchedcastError as error:
            counts["not captured"] += 1
            print(f"{name:<12} not captured: {error}", flush=True)
            continue
        for devices, backend in backends.items():
            for spec in specs(devices):
                kind, details = outcome(job, built, references, backend, spec)
                counts[kind] += 1
                line = f"{name:<12} {devices} {spec:<34} {kind:<8} {details[:160]}"
                print(line, flush=True)
                faults += [line] if kind in ("wrong", "fault") else []
    print(*faults, ", ".join(f"{count} {kind}" for kind, count in counts.items()), sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
