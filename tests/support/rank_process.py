"""The program of one process of several: `python -m tests.support.rank_process`, with torchrun's variables. See `processes.run_ranks`.

Every process checks its collectives and messages. Then rank 0 trains with all processes and prints the largest errors as one JSON document.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from executors.tensors import job_tensors
from simulator.plan.dependencies import Dependencies
from tests.support.jobs import planned
from tests.support.places import SUPPORT


def check_collectives(channel) -> None:
    """Run every operation and algorithm on dense, permuted, cut and several tensors, and check this process's results."""
    from executors.cpu.backend import CpuBackend
    from executors.distributed.loaded_plans import cores_of
    from executors.kernels import communication
    from simulator.engine.collectives.local import groups_of, local_plan
    from simulator.machine.machine import HOST, Device, Machine, Memory
    from simulator.plan.bodies.copy import Collective
    from simulator.plan.plan import Plan
    from simulator.plan.task import BUFFER, Operand, Storage, Task, Value
    from simulator.plan.tensors import contiguous, part

    ranks = channel.ranks
    devices = tuple(f"d{rank}" for rank in range(ranks.world))
    own = devices[ranks.rank]
    backend = CpuBackend(
        Machine("m", (Device(own, "cpu", 1, {}, "ram"),), (Memory("ram", 0, 0.0, 0),)), cores=cores_of(ranks.local_rank, 1)
    )
    cases = [("all-reduce", algorithm, "") for algorithm in ("ring", "tree", "distributed", "server")]
    cases += [("all-reduce", "server", devices[1]), ("all-reduce", "server", HOST)]
    forms = {
        "one": [((7, 3), (3, 1))],
        "permuted": [((4, 5), (1, 4))],
        "several": [((5,), (1,)), ((), ()), ((3, 2, 2), contiguous((3, 2, 2))), ((2, 6), (1, 2))],
        "small": [((1,), (1,))],
    }
    for operation, algorithm, root in cases:
        for form, shapes in forms.items():
            for cut in (False, True):
                usable = [(s, t) for s, t in shapes if s and s[0] > 1] if cut else shapes
                if not usable:
                    continue
                values, operands, initial = {}, {device: [] for device in devices}, {}
                for device in devices:
                    for i, (shape, strides) in enumerate(usable):
                        name = f"{form}{i}@{device}"
                        whole = Operand(name, shape, strides, "float64")
                        values[name] = Value(name, shape, strides, "float64", device, BUFFER, name, replace(whole, views=()))
                        generator = torch.Generator().manual_seed(1000 * devices.index(device) + i)
                        initial[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
                        operands[device].append(part(whole, 1, shape[0]) if cut else whole)
                body = Collective(operation, devices, algorithm, root)
                flat = tuple(operand for device in devices for operand in operands[device])
                storages = {name: Storage(name, 8 * max(1, initial[name].numel()), value.device) for name, value in values.items()}
                plan = Plan("case", (Task("c", body, devices[0], mutates=flat),), values, storages)
                communication.make_groups(groups_of(plan), devices, "gloo")
                program = backend.load(local_plan(plan, own), initial)
                program.run(1)
                low = 1 if cut else 0
                result = _flat(
                    [program.binding.carried[o.value][low:] if o.shape else program.binding.carried[o.value] for o in operands[own]]
                )
                inputs = [_flat([initial[o.value][low:] if o.shape else initial[o.value] for o in operands[device]]) for device in devices]
                torch.testing.assert_close(result, sum(inputs), rtol=0, atol=1e-13)
                untouched = [program.binding.carried[o.value][0] - initial[o.value][0] for o in operands[own] if cut]
                assert all(float(change.abs().max()) == 0 for change in untouched)


def check_chunks(channel) -> None:
    """Scatter a sum of every process's matrix by rows, and gather the parts again, each as a view of a longer tensor."""
    from executors.cpu.backend import CpuBackend
    from executors.distributed.loaded_plans import cores_of
    from executors.kernels import communication
    from simulator.engine.collectives.local import groups_of, local_plan
    from simulator.engine.collectives.tasks import Group
    from simulator.machine.machine import Device, Machine, Memory
    from simulator.plan.plan import Plan
    from simulator.plan.task import BUFFER, Operand, Value
    from simulator.plan.tensors import PlanTensors, part

    ranks = channel.ranks
    devices = tuple(f"d{rank}" for rank in range(ranks.world))
    own = devices[ranks.rank]
    places = tuple(Device(device, "cpu", 1, {}, f"ram of {device}") for device in devices)
    machine = Machine("m", places, tuple(Memory(place.memory, 0, 0.0, 0) for place in places), library="gloo")
    tensors, length, initial = PlanTensors(), 3 * ranks.world, {}
    wholes = []
    for device in devices:
        name = f"whole@{device}"
        source = Operand(name, (length + 2,), (1,), "float64")
        wholes.append(part(tensors.add(Value(name, (length + 2,), (1,), "float64", device, BUFFER, name, source)).operand(), 1, length + 1))
        initial[name] = torch.arange(length + 2, dtype=torch.float64) * (1 + devices.index(device))
    group = Group(machine, devices)
    scattered, shards = group.reduce_scatter("sum", tensors, [(whole,) for whole in wholes])
    gathered, results = group.all_gather("again", tensors, shards)
    in_place, sums = group.reduce_scatter_in_place("in place", [(whole, *made) for whole, made in zip(wholes, results, strict=True)])
    both, finals = group.all_gather("both", tensors, sums)
    plan = Plan("chunks", (*scattered, *gathered, *in_place, *both), tensors.values, tensors.storages)
    plan.validate(machine)
    communication.make_groups(groups_of(plan), devices, "gloo")
    backend = CpuBackend(replace(machine, devices=(places[ranks.rank],)), cores=cores_of(ranks.local_rank, 1))
    rank = devices.index(own)
    program = backend.load(local_plan(plan, own), initial, keep=(shards[rank][0].value, *(operand.value for operand in finals[rank])))
    program.run(1)
    total = sum(initial.values())[1 : length + 1]
    assert torch.equal(program.kept[shards[rank][0].value], total[3 * rank : 3 * rank + 3])
    again, of_sums = (program.kept[operand.value] for operand in finals[rank])
    assert torch.equal(again, total)
    assert torch.equal(of_sums, ranks.world * total)


def check_messages(channel) -> None:
    """Send tensors of many layouts and dtypes to every other process while they send theirs, and check what arrives."""
    from executors.cpu.backend import CpuBackend
    from executors.distributed.loaded_plans import cores_of
    from executors.kernels import communication
    from simulator.engine.collectives.local import groups_of, local_plan
    from simulator.machine.machine import Device, Machine, Memory
    from simulator.plan.bodies.copy import Copy
    from simulator.plan.plan import Plan
    from simulator.plan.task import ACTIVATION, BUFFER, Operand, Storage, Task, Value
    from simulator.plan.tensors import contiguous, part

    devices = tuple(f"d{rank}" for rank in range(channel.ranks.world))
    own = devices[channel.ranks.rank]
    layouts = [((3, 4), (4, 1)), ((3, 4), (1, 3)), ((), ()), ((2, 3), (0, 1)), ((2, 0), (0, 1)), ((2, 3, 2, 2), (12, 1, 6, 3))]
    forms = [(shape, strides, dtype) for shape, strides in layouts for dtype in ("float64", "bool", "int64", "complex64", "bfloat16")]
    values, tasks, initial, expected = {}, [], {}, {}

    def tensor(index: int, source: str) -> torch.Tensor:
        shape, _, dtype = forms[index]
        generator = torch.Generator().manual_seed(100 * devices.index(source) + index)
        return torch.randint(0, 50, shape, generator=generator).to(getattr(torch, dtype))

    def place(name: str, index: int, device: str, kind: str, strides: tuple[int, ...]) -> Operand:
        shape, _, dtype = forms[index]
        source = Operand(name, shape, strides, dtype) if kind == BUFFER else None
        values[name] = Value(name, shape, strides, dtype, device, kind, name, source)
        return values[name].operand()

    for source in devices:
        for target in devices:
            if source == target:
                continue
            for index in range(len(forms)):  # to another layout than the source's, of as many elements
                name = f"{index} {source}>{target}"
                held = place(f"held {name}", index, source, BUFFER, contiguous(forms[index][0]))
                arrived = place(f"arrived {name}", index, target, ACTIVATION, forms[index][1])
                initial[held.value] = tensor(index, source)
                tasks.append(Task(name, Copy(source, target), source, 1, reads=(held,), writes=(arrived,)))
                if target == own:
                    expected[arrived.value] = initial[held.value]
            added = [place(f"{what} {source}>{target}", 0, device, BUFFER, (4, 1)) for what, device in (("term", source), ("sum", target))]
            initial |= {operand.value: tensor(0, source) for operand in added}
            rows = tuple(part(operand, 1, 3) for operand in added)
            tasks.append(Task(f"add {source}>{target}", Copy(source, target, add=True), source, 2, reads=rows[:1], mutates=rows[1:]))
    storages = {name: Storage(name, 1, value.device) for name, value in values.items()}
    plan = Plan("messages", tuple(tasks), values, storages)
    communication.make_groups(groups_of(plan), devices, "gloo")
    machine = Machine("m", (Device(own, "cpu", 1, {}, "ram"),), (Memory("ram", 0, 0.0, 0),))
    backend = CpuBackend(machine, cores=cores_of(channel.ranks.local_rank, 1))
    program = backend.load(local_plan(plan, own), initial, keep=tuple(expected))
    program.run(2)
    for name, correct in expected.items():
        assert torch.equal(program.kept[name], correct), name
    for source in devices:
        if source != own:
            name = f"sum {source}>{own}"
            assert torch.equal(program.binding.carried[name][0], initial[name][0])
            assert torch.equal(program.binding.carried[name][1:], 3 * initial[name][1:])  # it was equal to what arrived, twice


def _flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


STYLES = [f"data-parallel:update={u},overlap={o}" for u in ("baseline", "forward-fusion", "backward-fusion") for o in ("on", "off")]
#: Updates a step late.
LATE = [
    "data-parallel:update=asynchronous",
    "owt:update=asynchronous,server=distributed",
    f"deepa:config={SUPPORT}/lenet5_mix.json,update=asynchronous",
    "fsdp:update=asynchronous",
]
#: Parameters, gradients and optimizer state in shards.
SHARDED = [
    "fsdp", "fsdp:shard=2,prefetch=2", "fsdp:shard=1,fetch=off", "fsdp:update=backward-fusion", "fsdp:shard=2,update=forward-fusion",
    "fsdp:streams=turbodl",
]  # fmt: skip
#: A language model whose layers are divided: of queries, keys and values in one product.
DECODER = "lm:form=gpt,layers=1,d_model=16,heads=4,vocab=32"
#: The styles that four processes train with.
FEW = [STYLES[0], STYLES[3], STYLES[4], SHARDED[0]]
#: Pipelines, and the models that they train: chains of layers (with dropout and a convolution of another layout), a skip connection, and
#: a layer in two stages.
PIPELINES = ["gpipe", "1f1b", "interleaved-1f1b", "pipedream", "stale-pipeline", "hybrid-pipeline:then=gpipe"]
#: Each stage on two devices.
REPLICATED = [
    "1f1b:replicas=2", "gpipe:replicas=2,shard=1", "interleaved-1f1b:replicas=2,update=backward-fusion",
    "1f1b:replicas=2,update=asynchronous", "gpipe:replicas=2,shard=1,update=backward-fusion",
]  # fmt: skip
PIPELINED = {
    f"{SUPPORT}/models.py:every_layer": [
        *PIPELINES,
        "stale-pipeline:first=backward,backward_weights=stashed",
        "model-parallel",
        "bppsa:scan=blelloch,devices=2",
    ],
    f"{SUPPORT}/models.py:skip_connection": ["1f1b", "stale-pipeline:on=simulated"],
    f"{SUPPORT}/mlp.py:shared": ["gpipe", "stale-pipeline"],
}
MORE = ["data-parallel:bucket=0,priorities=on,update=backward-fusion", "data-parallel:server=host", "baseline", "forward-fusion"]


def numerics(channel) -> dict[str, float]:
    """Train with every style of update, and with pipelines. Returns the largest error by model and strategy."""
    from calibrate.numerics import STEPS, References, compare
    from executors.distributed.backend import DistributedBackend
    from simulator.machine.this_cpu import this_cpu
    from simulator.model.job import Job

    machine = this_cpu(devices=channel.ranks.world, library="gloo")
    backend = DistributedBackend(machine, channel)
    two = channel.ranks.world == 2
    models = {"lenet5": STYLES + SHARDED + MORE if two else [*FEW, "fsdp:hybrid=2"], f"{SUPPORT}/mlp.py:normalised": FEW[: 3 if two else 1]}
    models[DECODER] = ["fsdp:tp=2", "fsdp:tp=2,sp=off,shard=1", "fsdp:cp=2"]
    if two:
        models["lenet5"] = [*models["lenet5"], "owt:overlap=off", f"deepa:config={SUPPORT}/lenet5_mix.json", *LATE]
        models[f"{SUPPORT}/mlp.py:dropout"] = [*FEW, "owt"]
    models |= PIPELINED if two else {f"{SUPPORT}/models.py:deep": [*PIPELINES, *REPLICATED, "bppsa:scan=blelloch,devices=4"]}
    errors_by_case = {}
    for model, texts in models.items():
        job = Job(model, 8, 8 if model == DECODER else None, precision="fp64", optimizer="adam")
        built = job.build()
        references = References(job, built, STEPS, backend)
        for text in texts:
            plan = planned(text, job, machine)
            errors = compare(job, built, plan, backend, references.of(plan))
            errors_by_case[f"{Path(model).name} {text}"] = max(errors.max_grad_error, errors.max_param_error)
            if text in ("gpipe", "stale-pipeline"):
                program = backend.load(plan, job_tensors(job, built, job.graph()))
                check_times(plan, program.run(plan.largest_lag + 2).times)
    return errors_by_case


def pieces(channel) -> dict[str, float]:
    """Train with pieces of parameters in every process. Returns the largest error by model and division, and that of what is put back."""
    import copy

    from calibrate.numerics import STEPS, References, compare
    from executors.distributed.backend import DistributedBackend
    from executors.kernels.update import torch_optimizer
    from executors.trainer import Trainer
    from simulator.machine.this_cpu import this_cpu
    from simulator.model.job import Job
    from tests.support.shard_plans import by_channels, by_images, shard_plan

    machine = this_cpu(devices=channel.ranks.world, library="gloo")
    backend, devices = DistributedBackend(machine, channel), [device.name for device in machine.devices]
    errors_by_case = {}
    for kind, division in (("linear", "images"), ("dropout", "channels"), ("dropout", "images"), ("batch_norm", "channels")):
        job = Job(f"{SUPPORT}/models.py:square_{kind}", 8, precision="fp64", optimizer="adam")
        built = job.build()
        plan = shard_plan(job, machine, by_channels(*devices) if division == "channels" else by_images(job, *devices))
        errors = compare(job, built, plan, backend, References(job, built, STEPS, backend).of(plan))
        errors_by_case[f"{kind} by {division}"] = max(errors.max_grad_error, errors.max_param_error)
    plain = copy.deepcopy(built.module)
    optimizer = torch_optimizer(job.optimizer, job.form, plain.parameters(), job.hyper)
    trainer = Trainer(plan, job, built, backend)
    for _ in range(3):
        optimizer.zero_grad()
        plain(built.inputs[0]).square().mean().backward()
        optimizer.step()
        trainer.step(built.inputs, built.target)
    pairs = [(tensor, plain.state_dict()[name]) for name, tensor in trainer.module.state_dict().items()]
    saved, expected = trainer.optimizer_state_dict()["state"], optimizer.state_dict()["state"]
    pairs += [(saved[number][name], tensor) for number, state in expected.items() for name, tensor in state.items()]
    errors_by_case["put back"] = max(float((ours - theirs).abs().max()) for ours, theirs in pairs)
    return errors_by_case


def check_times(plan, times) -> None:
    """A timeline has every task of a full period once, and a copy on the device that sends it, where it ends before what needs it."""
    last = max(item.period for item in times)
    ended = {item.index: item for item in times if item.period == last}
    assert len(ended) == len(plan.tasks) == sum(item.period == last for item in times)
    assert [ended[index].device for index in range(len(plan.tasks))] == [task.device for task in plan.tasks]
    for index, edges in enumerate(Dependencies(plan).edges(plan.largest_lag + 1)):
        for edge in edges:
            if not edge.delta and edge.kind == "raw":
                assert ended[edge.index].end_s <= ended[index].start_s, (plan.tasks[edge.index].name, plan.tasks[index].name)


def on_gpus(channel) -> dict[str, float]:
    """The same on simulated GPUs, one for each process; they fail where their streams race. A plan of each kind is traced too."""
    from calibrate.numerics import STEPS, References, compare
    from executors.cuda.torch_driver import gpu
    from executors.distributed.backend import DistributedBackend
    from simulator.machine.presets import load_machine, replicated
    from simulator.model.job import Job

    machine = replicated(load_machine("h200"), channel.ranks.world)
    backend = DistributedBackend(machine, channel, "cuda")
    job = Job(f"{SUPPORT}/mlp.py:make", 8, precision="fp64", optimizer="adam")
    built = job.build()
    errors_by_strategy = {}
    references = References(job, built, STEPS, backend)
    for text in ["baseline", *FEW, "gpipe", "gpipe:stages=1,replicas=2,shard=1", "stale-pipeline", "hybrid-pipeline", "owt"]:
        plan = planned(text, job, machine)
        with gpu():
            errors = compare(job, built, plan, backend, references.of(plan))
            if text in ("baseline", FEW[0], "gpipe", "hybrid-pipeline"):
                times = backend.load(plan, job_tensors(job, built, job.graph())).trace()
                assert {t.device for t in times} == {task.device for task in plan.tasks}
        errors_by_strategy[text] = max(errors.max_grad_error, errors.max_param_error)
    return errors_by_strategy


def main() -> None:
    """Check the collectives; then control the other ranks, or serve rank 0."""
    from executors.cuda import torch_driver
    from executors.distributed.control import end_ranks, join_channel, open_channel
    from executors.distributed.loaded_plans import RankServer
    from executors.distributed.ranks import launched
    from tests.fake_gpu import FakeGpu

    fake = FakeGpu()
    torch_driver.gpu = lambda index=0: fake
    ranks = launched()
    channel = open_channel(ranks) if ranks.first else join_channel(ranks)
    check_collectives(channel)
    check_chunks(channel)
    check_messages(channel)
    if not ranks.first:
        with fake:
            sys.exit(RankServer(channel).serve())
    two = ranks.world == 2
    print(json.dumps({"cpu": numerics(channel), "pieces": pieces(channel) if two else {}, "gpu": on_gpus(channel) if two else {}}))
    end_ranks(0)


if __name__ == "__main__":
    main()
