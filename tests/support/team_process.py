"""What one process of several runs: `python team_process.py`, with torchrun's variables. See `processes.run_team`.

All check their collectives; then the first one leads, and prints what it found as one document.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from executors.tensors import job_tensors
from tests.support.places import SUPPORT


def collectives(joined) -> None:
    """Every operation and algorithm on dense, permuted, cut and several tensors: what this process ends with is what it must."""
    from executors import process_groups
    from executors.cpu.backend import CpuBackend
    from executors.distributed.programs import cores_of
    from simulator.bodies.collective import Collective
    from simulator.collectives.local import groups_of, local_plan
    from simulator.machine.machine import HOST, Device, Machine, Memory
    from simulator.plan.plan import Plan
    from simulator.plan.task import BUFFER, Operand, Segment, Storage, Task, Value
    from simulator.plan.views import contiguous, part

    ranks = joined.ranks
    devices = tuple(f"d{rank}" for rank in range(ranks.world))
    own = devices[ranks.rank]
    backend = CpuBackend(
        Machine("m", (Device(own, "cpu", 1, {}, "ram"),), (Memory("ram", 0, 0.0, 0),)), cores=cores_of(ranks.local_rank, 1)
    )
    ways = [("all-reduce", algorithm, "") for algorithm in ("ring", "tree", "distributed", "server")]
    ways += [
        ("all-reduce", "server", devices[1]),
        ("all-reduce", "server", HOST),
        ("reduce-scatter", "ring", ""),
        ("all-gather", "ring", ""),
    ]
    forms = {
        "one": [((7, 3), (3, 1))],
        "permuted": [((4, 5), (1, 4))],
        "several": [((5,), (1,)), ((), ()), ((3, 2, 2), contiguous((3, 2, 2))), ((2, 6), (1, 2))],
        "small": [((1,), (1,))],
    }
    for operation, algorithm, root in ways:
        for form, shapes in forms.items():
            for cut in (False, True):
                shown = [(s, t) for s, t in shapes if s and s[0] > 1] if cut else shapes
                if not shown:
                    continue
                values, operands, given = {}, {device: [] for device in devices}, {}
                for device in devices:
                    for i, (shape, strides) in enumerate(shown):
                        name = f"{form}{i}@{device}"
                        whole = Operand(name, shape, strides, "float64")
                        values[name] = Value(name, shape, strides, "float64", device, BUFFER, name, replace(whole, views=()))
                        generator = torch.Generator().manual_seed(1000 * devices.index(device) + i)
                        given[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
                        operands[device].append(part(whole, 1, shape[0]) if cut else whole)
                body = Collective(operation, devices, algorithm, root)
                flat = tuple(operand for device in devices for operand in operands[device])
                storages = {name: Storage(name, 8 * max(1, given[name].numel()), value.device) for name, value in values.items()}
                plan = Plan("case", (Segment((Task("c", body, devices[0], mutates=flat),)),), values, storages)
                process_groups.make(groups_of(plan), devices, "gloo")
                program = backend.load(local_plan(plan, own), given)
                program.run(1)
                low = 1 if cut else 0
                found = _flat(
                    [program.binding.carried[o.value][low:] if o.shape else program.binding.carried[o.value] for o in operands[own]]
                )
                every = [_flat([given[o.value][low:] if o.shape else given[o.value] for o in operands[device]]) for device in devices]
                _check(operation, operands[own], found, every, ranks.rank)
                untouched = [program.binding.carried[o.value][0] - given[o.value][0] for o in operands[own] if cut]
                assert all(float(change.abs().max()) == 0 for change in untouched)


def _flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _check(operation, operands, found, every, rank) -> None:
    from simulator.collectives.tasks import chunks

    total = sum(every)
    starts = [sum(o.elements for o in operands[:i]) for i in range(len(operands))]
    owned = []  # elements of each rank's chunk
    for pieces in chunks(operands, len(every)):
        rows = [(p, operands[p.position].elements // (operands[p.position].shape or (1,))[0]) for p in pieces]
        owned.append([e for p, row in rows for e in range(starts[p.position] + p.first * row, starts[p.position] + p.end * row)])
    if operation == "all-reduce":
        torch.testing.assert_close(found, total, rtol=0, atol=1e-13)
    elif operation == "reduce-scatter":
        torch.testing.assert_close(found[owned[rank]], total[owned[rank]], rtol=0, atol=1e-13)
    else:
        expected = torch.empty_like(total)
        for other, elements in enumerate(owned):
            expected[elements] = every[other][elements]
        assert torch.equal(found, expected)


STYLES = [f"image-parallel:update={u},overlap={o}" for u in ("baseline", "forward-fusion", "backward-fusion") for o in ("on", "off")]
#: In four processes these are enough.
FEW = [STYLES[0], STYLES[3], STYLES[4]]
MORE = ["image-parallel:bucket=0,priorities=on,update=backward-fusion", "image-parallel:server=host", "baseline", "forward-fusion"]


def numerics(joined) -> dict[str, float]:
    """Every style of update: the largest errors by model and strategy."""
    from calibrate.numerics import Expected, compare
    from executors.distributed.backend import TeamBackend
    from simulator.job import Job
    from simulator.machine.this_cpu import this_cpu
    from simulator.strategies import registry as strategies

    machine = this_cpu(devices=joined.ranks.world, library="gloo")
    backend = TeamBackend(machine, joined)
    two = joined.ranks.world == 2
    models = {"lenet5": STYLES + MORE if two else FEW, f"{SUPPORT}/mlp.py:normalised": FEW[: 3 if two else 1]}
    if two:
        models[f"{SUPPORT}/mlp.py:dropout"] = FEW
    found = {}
    for model, texts in models.items():
        job = Job(model, 8, precision="fp64", optimizer="adam")
        built = job.build()
        expected = {}
        for text in texts:
            strategy, options = strategies.parse(text)
            plan = strategy.plan(job, machine, None, options)
            parts = len(plan.losses)
            if parts not in expected:
                expected[parts] = Expected.of(job, built, parts=parts, backend=backend)
            errors = compare(job, built, plan, backend, expected[parts])
            found[f"{Path(model).name} {text}"] = max(errors.max_grad_error, errors.max_param_error)
    return found


def on_gpus(joined) -> dict[str, float]:
    """The same on simulated GPUs, one for each process; the leader's fails where its streams race."""
    from calibrate.distributed.gpu_testbed import replicated
    from calibrate.numerics import Expected, compare
    from executors.cuda.torch_driver import gpu
    from executors.distributed.backend import TeamBackend
    from simulator.job import Job
    from simulator.machine.presets import load_machine
    from simulator.strategies import registry as strategies

    machine = replicated(load_machine("h200"), joined.ranks.world)
    backend = TeamBackend(machine, joined, "cuda")
    job = Job(f"{SUPPORT}/mlp.py:make", 8, precision="fp64", optimizer="adam")
    built = job.build()
    found = {}
    for text in FEW:
        strategy, options = strategies.parse(text)
        plan = strategy.plan(job, machine, None, options)
        with gpu():
            expected = Expected.of(job, built, backend=backend, parts=len(plan.losses))
            errors = compare(job, built, plan, backend, expected)
            times = backend.load(plan, job_tensors(job, built, job.graph())).trace()
        assert {t.device for t in times} == {device.name for device in machine.devices}
        found[text] = max(errors.max_grad_error, errors.max_param_error)
    return found


def main() -> None:
    """Check the collectives, then lead or follow."""
    from executors.cuda import torch_driver
    from executors.distributed.control import join, lead, leave
    from executors.distributed.follow import RankServer
    from executors.distributed.ranks import launched
    from tests.fake_gpu import FakeGpu

    fake = FakeGpu()
    torch_driver.gpu = lambda index=0: fake
    ranks = launched()
    joined = lead(ranks) if ranks.first else join(ranks)
    collectives(joined)
    if not ranks.first:
        with fake:
            sys.exit(RankServer(joined).serve())
    print(json.dumps({"cpu": numerics(joined), "gpu": on_gpus(joined) if ranks.world == 2 else {}}))
    leave(0)


if __name__ == "__main__":
    main()
