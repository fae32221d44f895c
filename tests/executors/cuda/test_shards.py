"""Any mix of configurations on partitions of one GPU, eagerly and in graphs.

The simulated GPU fails a test whose streams race or whose tensors are freed too early.
"""

import pytest

from calibrate.numerics import References, compare, steps_to_compare
from executors.cuda.backend import CudaBackend
from simulator.machine.presets import gpu_machine
from tests.fake_gpu import FakeGpu
from tests.support.shard_networks import random_job, random_plan
from traces.documents.profile import Identity, Profile

CASES = [
    (seed, mode, batch_norm, "baseline")
    for seed, mode in ((40, "eager"), (41, "eager"), (41, "graph"), (43, "graph"))
    for batch_norm in ("separate", "synchronized")
]
LATE = [
    (seed, mode, batch_norm, "asynchronous")
    for seed, mode, batch_norm in ((40, "eager", "separate"), (41, "eager", "synchronized"), (43, "graph", "synchronized"))
]


FUSED = [(41, "eager", "synchronized", "forward-fusion"), (43, "graph", "separate", "backward-fusion")]


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(("seed", "mode", "batch_norm", "update"), CASES + LATE + FUSED)
def test_numbers_are_those_of_the_reference_trainer(seed, count, mode, batch_norm, update, tmp_path):
    job, draw = random_job(seed, tmp_path, norms=seed > 40)
    machine, built = gpu_machine(Profile(identity=Identity(kind="gpu", gpu="NVIDIA H200", sms=132)), count), job.build()
    plan = random_plan(job, machine, draw, servers=("all-reduce", "distributed"), batch_norm=batch_norm, update=update)
    with FakeGpu() as gpu:
        backend = CudaBackend(machine, gpu, mode)
        steps = steps_to_compare(backend)
        numerics = compare(job, built, plan, backend, References(job, built, steps, backend).of(plan), steps)
    assert numerics.equal("fp64"), numerics
