"""Recurrent layers: one op per direction, the numbers of torch.nn.RNN, GRU and LSTM, and a cost that is linear in the number of steps."""

import json

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._python_dispatch import TorchDispatchMode

from calibrate.numerics import Expected, compare
from calibrate.operands import OperandPool, fill
from calibrate.samples import Samples, compile_alone, store_samples
from executors.cuda.backend import CudaBackend
from simulator.engine.costs.cost import DATASHEET, FITTED
from simulator.engine.costs.model import CostModel
from simulator.machine.presets import load_machine
from simulator.model.capture.intercept import CanonicalForms
from simulator.model.graph import TrainingGraph
from simulator.model.job import Job
from simulator.model.ops import recurrent_steps as arithmetic
from simulator.model.ops.aten_json import resolve
from simulator.model.ops.recurrent_layers import NAMESPACE
from simulator.model.workloads import registry as workloads
from simulator.model.workloads.data import features_of
from simulator.plan.bodies.opcall import ListedOp, OpCall, OpList
from simulator.plan.json import dump, load
from simulator.plan.keys import cost_key
from simulator.plan.plan import Plan
from simulator.plan.task import Task
from simulator.strategies import registry as strategies
from tests.fake_gpu import FakeGpu
from tests.support import models
from tests.support.jobs import graph_of, planned
from tests.support.refusals import refuses
from tests.support.same_numbers import largest_error
from traces.documents.profile import Identity, Profile
from traces.errors import Code

KINDS = {
    "tanh": lambda **options: nn.RNN(3, 5, **options),
    "relu": lambda **options: nn.RNN(3, 5, nonlinearity="relu", **options),
    "gru": lambda **options: nn.GRU(3, 5, **options),
    "lstm": lambda **options: nn.LSTM(3, 5, **options),
}
OPTIONS = [{}, {"batch_first": True}, {"num_layers": 2, "bias": False}, {"num_layers": 2, "bidirectional": True}]


@pytest.fixture(autouse=True)
def one_thread():
    """Run on one thread. The ops are so small that several threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def layer_error(module: nn.Module, steps: int, h0: bool, reads: str, dtype: torch.dtype) -> float:
    """Largest error of results and gradients in canonical form against the plain module. `reads`: the results that the loss reads."""
    torch.manual_seed(steps)
    module = module.to(dtype)
    x = torch.randn(*((4, steps) if module.batch_first else (steps, 4)), 3, dtype=dtype, requires_grad=True)
    shape = (module.num_layers * (2 if module.bidirectional else 1), 4, 5)
    states = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(2 if isinstance(module, nn.LSTM) else 1)]
    wanted = [x, *module.parameters(), *(states if h0 else [])]

    def numbers() -> list[torch.Tensor]:
        out, last = module(x, (tuple(states) if len(states) == 2 else states[0]) if h0 else None)
        last = last if len(states) == 2 else (last,)
        read = [t for name, t in (("out", out), ("last", last[0]), ("cell", last[-1])) if name in reads]
        loss = sum((t**3 + t**2).sum() for t in read)
        return [out, *last, *torch.autograd.grad(loss, wanted)]

    plain = numbers()
    with CanonicalForms():
        ours = numbers()
    return max(float((a - b).detach().abs().max() / max(b.detach().abs().max(), 1e-30)) for a, b in zip(ours, plain, strict=True))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("steps", [1, 2, 3, 17])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_the_module(kind, options, steps):
    for h0 in (False, True):
        for reads in ("out", "last", "cell", "out, last and cell"):
            assert layer_error(KINDS[kind](**options), steps, h0, reads, torch.float64) < 1e-12, (h0, reads)


@pytest.mark.parametrize("kind", KINDS)
def test_in_float32_the_numbers_differ_by_rounding_only(kind):
    assert 0 < layer_error(KINDS[kind](num_layers=2), 50, True, "out, last and cell", torch.float32) < 1e-5


def over_time(module: nn.Module, *shape: int, loss=lambda result: result[1].square().sum()) -> TrainingGraph:
    return graph_of(module, torch.randn(shape), loss=lambda result, _: loss(result), batch=shape[1])


def ops_of(graph: TrainingGraph) -> list[str]:
    """Names of the ops of recurrent layers, without their layer; those of the loss and of the initial state are left out."""
    names = [op.name.partition("/")[2] for op in graph.ops if not op.name.startswith("loss")]
    return [name for name in names if name not in ("zeros", "pow", "sum")]


def test_an_rnn_is_one_op_forward_and_in_backward_the_chain_and_a_product_per_weight():
    assert ops_of(over_time(nn.RNN(3, 5), 7, 2, 3)) == ["rnn", "rnn_backward.dX", "mm.dW", "mm.dW#2", "sum.dB", "gradient.dB"]


def test_a_gru_has_a_sum_for_each_of_its_biases():
    assert ops_of(over_time(nn.GRU(3, 5), 7, 2, 3)) == ["gru", "gru_backward.dX", "mm.dW", "mm.dW#2", "sum.dB", "sum.dB#2"]


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_every_layer_has_its_own_ops_and_the_second_one_a_product_for_the_first(kind):
    layer = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}[kind]
    ops = ops_of(over_time(layer(3, 5, num_layers=2), 7, 2, 3, loss=lambda result: result[0].sum()))
    assert [name for name in ops if name.startswith(kind)] == [kind, f"{kind}#2", f"{kind}_backward.dX", f"{kind}_backward.dX#2"]
    assert sum(name.startswith("mm.dX") for name in ops) == 1
    assert sum(name.startswith("mm.dW") for name in ops) == 4


def test_frozen_weights_and_biases_have_no_ops():
    module = nn.GRU(3, 5)
    for name in ("weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        getattr(module, name).requires_grad_(False)
    assert ops_of(over_time(module, 7, 2, 3)) == ["gru", "gru_backward.dX", "mm.dW"]


def test_flops_are_those_of_the_products():
    steps, batch, features, hidden = 7, 2, 3, 5
    flops = {op.body.target.split(".")[1]: op.body.flops for op in over_time(nn.GRU(features, hidden), steps, batch, features).ops}
    assert flops["gru"] == 2 * steps * batch * 3 * hidden * (features + hidden)
    assert flops["gru_backward"] == 2 * steps * batch * 3 * hidden * hidden


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_an_lstm_with_projections_is_unrolled():
    ops = ops_of(over_time(nn.LSTM(3, 5, proj_size=2), 7, 2, 3, loss=lambda result: result[0].sum()))
    assert not [name for name in ops if "lstm" in name]
    assert sum(name.startswith("tanh") and "backward" not in name for name in ops) == 14


def test_a_sequence_of_thirty_thousand_steps_has_as_many_ops_as_one_of_two():
    assert ops_of(over_time(nn.GRU(1, 20), 30_000, 2, 1)) == ops_of(over_time(nn.GRU(1, 20), 2, 2, 1))


def test_dropout_between_layers_is_an_op_in_training_only():
    stacked = nn.Sequential(nn.RNN(3, 5, num_layers=3, dropout=0.1))
    assert [name for name in ops_of(over_time(stacked, 3, 2, 3)) if "dropout" in name][:2] == ["native_dropout", "native_dropout#2"]
    stacked.eval()
    assert "native_dropout" not in ops_of(over_time(stacked, 3, 2, 3))


def test_layers_whose_numbers_would_differ_are_refused_by_name():
    class Packs(nn.Module):
        def __init__(self):
            super().__init__()
            self.reader = nn.GRU(3, 5)

        def forward(self, x):
            return self.reader(PackedSequence(x.flatten(0, 1), torch.tensor([2, 2, 2])))

    with refuses(Code.MODEL, r"recurrent layer 'reader' is given a packed sequence.*pad the sequences"):
        over_time(Packs(), 3, 2, 3)


def test_a_step_that_runs_on_real_tensors_is_captured_alike():
    """The module reads a tensor's values, which fake tensors do not have."""

    class Looks(nn.GRU):
        def forward(self, x):
            mask = torch.ones(3, 3).tril()
            return super().forward(x)[1] * (1 if bool((mask == mask.tril()).all()) else 2)

    ops = ops_of(over_time(Looks(3, 5), 7, 2, 3, loss=lambda result: result.sum()))
    assert [name for name in ops if "gru" in name] == ["gru", "gru_backward.dX"]


def test_only_registered_ops_resolve():
    assert resolve("schedcast.gru.default") is torch.ops.schedcast.gru.default
    for target in ("schedcast.gru", "schedcast.gru.other", "schedcast.nothing.default", "prims.add.default"):
        with refuses(Code.REQUEST):
            resolve(target)


class Counted(TorchDispatchMode):
    """Counts ops that compute, including those inside the op of a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == NAMESPACE:
            with self:
                return getattr(arithmetic, func._schema.name.partition("::")[2])(*args)
        self.count += not (func.is_view or "empty" in func._schema.name)
        return func(*args, **(kwargs or {}))


def recurrent_tasks(plan: Plan) -> list[Task]:
    return [task for task in plan.tasks if getattr(task.body, "target", "").startswith("schedcast.")]


def job_and_plan(model: str, machine, strategy: str = "baseline", image_size: int = 12, **fields) -> tuple[Job, Plan]:
    """The job and the plan of a built-in model, or of "lstm", on a sequence of `image_size` steps."""
    own = model == "lstm"
    job = Job(f"{models.__file__}:lstm{image_size}" if own else model, 4, None if own else image_size, **fields)
    return job, planned(strategy, job, machine)


@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features", "lstm"])
def test_launches_are_the_ops_that_a_task_issues(model, two_cores):
    for steps in (8, 32):
        _, plan = job_and_plan(model, two_cores, image_size=steps)
        for task in recurrent_tasks(plan):
            run = compile_alone(task, plan, fill(task, plan, OperandPool()), lambda _: torch.device("cpu"))
            with Counted() as counted:
                run.run(run.instance)
            assert counted.count == task.body.launches, task.name


@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features"])
def test_operands_of_a_long_sequence_stay_finite(model, two_cores):
    _, plan = job_and_plan(model, two_cores, image_size=500)
    for task in recurrent_tasks(plan):
        compiled = compile_alone(task, plan, fill(task, plan, OperandPool()), lambda _: torch.device("cpu"))
        compiled.run(compiled.instance)
        for slot in compiled.written:
            assert compiled.instance.slots[slot].isfinite().all()


@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features"])
def test_the_guessed_cost_is_a_line_in_the_number_of_steps(model, two_cores):
    costs = {}
    for steps in (100, 150, 200):
        _, plan = job_and_plan(model, two_cores, image_size=steps)
        costs[steps] = [CostModel(two_cores).cost(task) for task in recurrent_tasks(plan)]
    for first, second, third in zip(*costs.values(), strict=True):
        assert first.source == DATASHEET
        assert third.warm_s - second.warm_s == pytest.approx(second.warm_s - first.warm_s, rel=1e-6)
        assert third.warm_s / first.warm_s == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features"])
def test_an_unmeasured_length_costs_in_proportion_to_the_measured_ones(model, two_cores):
    """This holds beyond the range of the fitted law as well, and so it does for the issue time."""
    launch_s = {"rnn": 3e-6, "rnn_backward": 4e-6, "gru": 5e-6, "gru_backward": 6e-6}
    profile = Profile(identity=Identity(kind="cpu", cpu="toy", cores=2))
    samples = {}
    for steps in (10, 20, 40, 80):
        for task in recurrent_tasks(job_and_plan(model, two_cores, image_size=steps)[1]):
            seconds = launch_s[task.body.target.split(".")[1]] * task.body.launches
            samples[cost_key(task, two_cores)] = Samples(task, [seconds] * 3, [seconds] * 3, [seconds / 2] * 3)
    store_samples(samples, {}, profile)
    for steps in (30, 250):
        for task in recurrent_tasks(job_and_plan(model, two_cores, image_size=steps)[1]):
            cost, seconds = CostModel(two_cores, profile).cost(task), launch_s[task.body.target.split(".")[1]] * task.body.launches
            assert cost.source == FITTED
            assert cost.warm_s == pytest.approx(seconds, rel=0.1)
            assert cost.issue_s == pytest.approx(seconds / 2, rel=0.01)


def test_a_list_of_ops_has_the_launches_of_all(two_cores):
    forward, backward = recurrent_tasks(job_and_plan("rnn_bitstream", two_cores, image_size=8)[1])
    steps = tuple(ListedOp(task.body, task.reads, task.writes) for task in (forward, backward))
    assert OpList((*steps, ListedOp(OpCall("aten.relu.default")))).launches == forward.body.launches + backward.body.launches + 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("strategy", [name for name in strategies.names(1) if name != "bppsa"])  # bppsa: test_bppsa.py
@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features", "lstm"])
def test_five_steps_of_every_strategy_equal_plain_pytorch(model, strategy, two_cores, backend):
    job, plan = job_and_plan(model, two_cores, strategy, image_size=12, precision="fp64", accumulate=2 - ("turbodl" in strategy))
    assert largest_error(job, plan, backend) <= 1e-10


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("model", ["rnn_bitstream", "gru_features"])
def test_on_a_simulated_gpu_the_numbers_are_those_of_plain_pytorch(model, mode):
    machine = load_machine("h200")
    job, plan = job_and_plan(model, machine, "turbodl", image_size=6, precision="fp64")
    built = job.build()
    gpu = FakeGpu()
    backend = CudaBackend(machine, gpu, mode)
    with gpu:
        assert compare(job, built, plan, backend, Expected.of(job, built, 11, backend), 11).equal("fp64")


def test_a_plan_comes_back_from_json(two_cores):
    for strategy in ("baseline", "turbodl"):
        _, plan = job_and_plan("gru_features", two_cores, strategy, image_size=8)
        assert load(json.loads(json.dumps(dump(plan)))) == plan
        assert [task.body.launches > 8 for task in recurrent_tasks(plan)] == [True, True]


def test_a_plan_with_absurd_launches_is_damaged(two_cores):
    document = dump(job_and_plan("rnn_bitstream", two_cores, image_size=8)[1])
    (task,) = (task for task in document["segments"][0]["tasks"] if task["body"].get("target") == "schedcast.rnn.default")
    for launches in (-1, 10**400):
        task["body"]["launches"] = launches
        with refuses(Code.FILE):
            load(document)


def test_the_number_of_features_depends_on_the_length():
    assert [features_of(steps) for steps in (1, 259, 260, 517, 518, 1034, 5000)] == [38, 38, 24, 24, 12, 12, 12]
    assert workloads.get("rnn_bitstream").image_size == 1000


def test_the_frequency_of_bits_depends_on_the_class():
    torch.manual_seed(0)
    _, (bits,), labels = workloads.get("rnn_bitstream").build(20, 4000)
    assert set(bits.unique().tolist()) == {0.0, 1.0}
    assert bits.mean((1, 2)).tolist() == pytest.approx((0.05 + 0.1 * labels).tolist(), abs=0.04)
