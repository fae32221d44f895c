"""The update kernels give the numbers of torch.optim, to the bit, in every form that PyTorch has."""

import copy
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from executors.binding import Binding, Instance
from executors.kernels.registry import handlers
from executors.kernels.update import apply_update, initial_state, state_dict, torch_optimizer
from simulator.plan.bodies.update import DEFAULTS, FORMS, STATE, Update, check_form, forms, hyper_parameters, state_shape
from simulator.plan.task import INPUT, PARAMETER, Operand, Task
from tests.support import small_plans
from tests.support.refusals import refuses
from traces.errors import Code

EVERY_FORM = [(optimizer, form) for optimizer in STATE for form in forms(optimizer)]
SHAPES = [(7, 5), (3,), (), (2, 3, 3, 3)]


def parameters_and_gradients(steps: int, device: str = "cpu", dtype: torch.dtype = torch.float64):
    """Random parameters, and for each step a random gradient of every parameter."""
    torch.manual_seed(3)
    parameters = [torch.randn(shape, dtype=dtype, device=device) for shape in SHAPES]
    parameters[-1] = parameters[-1].to(memory_format=torch.channels_last)
    return parameters, [[torch.randn_like(p) for p in parameters] for _ in range(steps)]


def update(optimizer: str, form: str, **hyper: float) -> Update:
    """An update of all parameters of `SHAPES`."""
    return Update(optimizer, form, tuple(f"p{index}" for index in range(len(SHAPES))), hyper_parameters(optimizer, **hyper))


def step_both(optimizer, form, hyper, steps, device="cpu", capturable=False):
    """Our parameters and states after `steps` steps, and a torch.optim optimizer after the same steps."""
    initial, gradients = parameters_and_gradients(steps, device)
    plain = torch_optimizer(optimizer, form, [p.clone().requires_grad_() for p in initial], hyper_parameters(optimizer, **hyper))
    ours = [p.clone() for p in initial]
    states = [initial_state(optimizer, p) for p in ours]
    operands = [t for p, state in zip(ours, states, strict=True) for t in (p, *state.values())]
    for step in gradients:
        for parameter, gradient in zip(plain.param_groups[0]["params"], step, strict=True):
            parameter.grad = gradient.clone()
        plain.step()
        before = [g.clone() for g in step]
        apply_update(update(optimizer, form, **hyper), step, operands, capturable)
        assert all(map(torch.equal, step, before)), "gradients are not changed"
    return ours, states, plain


@pytest.mark.parametrize("hyper", [{}, {"weight_decay": 0.1, "lr": 0.5}, {"weight_decay": 0.0}], ids=["default", "decay", "no-decay"])
@pytest.mark.parametrize(("optimizer", "form"), EVERY_FORM)
def test_five_steps_equal_torch_optim(optimizer, form, hyper):
    ours, states, plain = step_both(optimizer, form, hyper, 5)
    for parameter, state, theirs in zip(ours, states, plain.param_groups[0]["params"], strict=True):
        assert torch.equal(parameter, theirs)
        assert set(state) == set(plain.state[theirs])
        for name, tensor in state.items():
            assert torch.equal(tensor, plain.state[theirs][name])
            assert tensor.dtype == plain.state[theirs][name].dtype
            assert tensor.stride() == plain.state[theirs][name].stride()


@pytest.mark.parametrize("form", FORMS)
def test_adagrad_that_counts_its_steps_on_the_device_equals_torch_optim(form):
    """torch.optim has no such form. On CUDA it is the form that a graph can replay."""
    ours, states, plain = step_both("adagrad", form, {}, 5, capturable=True)
    assert all(map(torch.equal, ours, plain.param_groups[0]["params"]))
    assert [state["step"].item() for state in states] == [5.0] * len(SHAPES)


def step_compiled(optimizer: str, form: str, parameter: torch.Tensor, gradients: list[torch.Tensor]) -> torch.Tensor:
    """The parameter after an update task has run with each gradient."""
    names = ["p", *(f"p::{name}" for name in STATE[optimizer])]
    initial = [parameter, *initial_state(optimizer, parameter).values()]
    values = [
        replace(small_plans.value(name, tuple(t.shape), PARAMETER), strides=t.stride(), dtype=str(t.dtype).removeprefix("torch."))
        for name, t in zip(names, initial, strict=True)
    ]
    values = [replace(v, source=v.operand()) for v in values]
    gradient = replace(values[0], name="g", storage="g", kind=INPUT, source=None)
    task = Task("u", Update(optimizer, form, ("p",)), "cuda:0", reads=(gradient.operand(),), mutates=tuple(v.operand() for v in values))
    binding = Binding(small_plans.plan_of([task], [*values, gradient]), dict(zip(names, initial, strict=True)), lambda _: parameter.device)
    run = handlers()["update"](task, binding)
    for tensor in gradients:
        instance = Instance(0, len(binding.slot), [])
        instance.slots[binding.slot["g"]] = tensor
        run(instance)
    return binding.carried["p"]


@pytest.mark.parametrize(("optimizer", "form"), EVERY_FORM)
@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (8, 4, 1, 1)])
def test_gradients_may_have_other_strides_than_their_parameter(optimizer, form, shape):
    """Channels-last weights with contiguous gradients: the numbers of torch.optim, for which autograd would have copied the gradients."""
    torch.manual_seed(3)
    parameter = torch.randn(shape, dtype=torch.float64).to(memory_format=torch.channels_last)
    gradients = [torch.randn(shape, dtype=torch.float64) for _ in range(3)]
    plain = parameter.clone().requires_grad_()
    trained = torch_optimizer(optimizer, form, [plain])
    for gradient in gradients:
        plain.grad = gradient.to(memory_format=torch.channels_last)
        trained.step()
    updated = step_compiled(optimizer, form, parameter, gradients)
    assert torch.equal(updated, plain)
    assert updated.stride() == plain.stride()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: torch sees none")
@pytest.mark.parametrize(("optimizer", "form"), EVERY_FORM)
def test_five_steps_equal_torch_optim_on_cuda(optimizer, form):
    ours, _, plain = step_both(optimizer, form, {}, 5, "cuda")
    for parameter, theirs in zip(ours, plain.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(parameter, theirs.detach(), rtol=1e-15, atol=0)


@pytest.mark.parametrize(("optimizer", "form"), EVERY_FORM)
def test_updating_one_parameter_at_a_time_gives_the_same_numbers(optimizer, form):
    initial, (gradients,) = parameters_and_gradients(1)
    together, alone = [p.clone() for p in initial], [p.clone() for p in initial]
    apply_update(update(optimizer, form), gradients, [t for p in together for t in (p, *initial_state(optimizer, p).values())])
    for index, parameter in enumerate(alone):
        body = Update(optimizer, form, (f"p{index}",))
        apply_update(body, [gradients[index]], [parameter, *initial_state(optimizer, parameter).values()])
    assert all(map(torch.equal, together, alone))


@pytest.mark.parametrize(("optimizer", "form"), EVERY_FORM)
def test_torch_optim_continues_from_exported_states(optimizer, form):
    ours, states, plain = step_both(optimizer, form, {}, 3)
    exported = state_dict(optimizer, form, ours, states)
    theirs = plain.state_dict()
    assert exported["param_groups"] == theirs["param_groups"]
    assert exported["state"].keys() == theirs["state"].keys()

    fresh = torch_optimizer(optimizer, form, [p.clone().requires_grad_() for p in ours])
    fresh.load_state_dict(exported)
    for parameter, original in zip(fresh.param_groups[0]["params"], plain.param_groups[0]["params"], strict=True):
        parameter.grad = torch.ones_like(parameter)
        original.grad = torch.ones_like(original)
    fresh.step()
    plain.step()
    assert all(map(torch.equal, fresh.param_groups[0]["params"], plain.param_groups[0]["params"]))


def test_exported_states_are_copies():
    ours, states, _ = step_both("adam", "for", {}, 1)
    exported = state_dict("adam", "for", ours, states)
    before = copy.deepcopy(exported["state"][0]["exp_avg"])
    states[0]["exp_avg"].add_(1.0)
    assert torch.equal(exported["state"][0]["exp_avg"], before)


@pytest.mark.parametrize("optimizer", STATE)
def test_state_shapes_agree_with_the_tensors(optimizer):
    parameter = torch.randn(4, 3, dtype=torch.float64)
    for name, tensor in initial_state(optimizer, parameter).items():
        assert state_shape(optimizer, name, (4, 3), "float64") == (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    with pytest.raises(KeyError, match="keeps no 'velocity'"):
        state_shape(optimizer, "velocity", (4, 3), "float64")


def test_a_form_that_pytorch_lacks_is_refused_by_name():
    with refuses(Code.REQUEST, "PyTorch has no fused form of rmsprop: use rmsprop:for or rmsprop:foreach"):
        check_form("rmsprop", "fused")
    with refuses(Code.NAME):
        check_form("adam", "fusd")
    with refuses(Code.NAME):
        check_form("adma", "for")
    with refuses(Code.REQUEST, "adadelta"):
        apply_update(
            Update("adadelta", "fused", ("p",)), [torch.ones(2)], [torch.ones(2), *initial_state("adadelta", torch.ones(2)).values()]
        )
    with refuses(Code.NAME):
        hyper_parameters("sgd", momentum=0.9)


def test_every_refused_form_is_one_that_pytorch_refuses():
    for optimizer in STATE:
        for form in set(FORMS) - set(forms(optimizer)):
            with pytest.raises(TypeError, match=form):
                {"rmsprop": torch.optim.RMSprop, "adadelta": torch.optim.Adadelta}[optimizer]([torch.ones(1)], **{form: True})


def test_omitted_hyper_parameters_have_their_defaults():
    parameter = Operand("g", (4,), (1,), "float32")
    task = Task("update", Update("adam", "for", ("p",)), "cpu:0", reads=(parameter,))
    spelled_out = Update("adam", "for", ("p",), hyper_parameters("adam"))
    assert task.body.key(task) == spelled_out.key(task)
    assert task.body.launches == spelled_out.launches
    assert spelled_out.key(task) != Update("adam", "for", ("p",), (("weight_decay", 0.0),)).key(task)


class Launches(TorchDispatchMode):
    """Counts the ops that launch a kernel. With `counters`, ops on scalar tensors other than these do not count: they run on the host."""

    def __init__(self, counters=None):
        super().__init__()
        self.count, self.counters = 0, counters

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run the op."""
        tensors = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
        on_device = self.counters is None or any(t.dim() or any(t is counter for counter in self.counters) for t in tensors)
        self.count += on_device and func is not torch.ops.prim.device.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("optimizer", "form"),
    [pair for pair in EVERY_FORM if pair[0] != "adagrad" and (pair[1] != "fused" or pair[0].startswith("adam"))],
)
def test_launches_equal_the_ops_that_the_cuda_form_dispatches(optimizer, form, weight_decay):
    hyper = hyper_parameters(optimizer, **{**DEFAULTS[optimizer], "weight_decay": weight_decay})
    body = Update(optimizer, form, ("a", "b"), hyper)
    with FakeTensorMode(), Launches() as launches:
        parameters = [torch.empty(4, 3, device="cuda") for _ in body.parameters]
        operands = [t for p in parameters for t in (p, *initial_state(optimizer, p).values())]
        gradients = [torch.empty(4, 3, device="cuda") for _ in body.parameters]
        launches.count = 0
        apply_update(body, gradients, operands, capturable=True)
    assert body.launches == launches.count


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("form", FORMS)
def test_launches_of_adagrad_equal_the_ops_that_it_dispatches(form, weight_decay):
    """Runs on the CPU, because torch.optim reads the step count on the host and fake tensors have no values."""
    body = Update("adagrad", form, ("a", "b"), hyper_parameters("adagrad", weight_decay=weight_decay))
    parameters, gradients = ([torch.ones(4, 3) for _ in body.parameters] for _ in range(2))
    states = [initial_state("adagrad", p) for p in parameters]
    operands = [t for p, state in zip(parameters, states, strict=True) for t in (p, *state.values())]
    with Launches([state["step"] for state in states]) as launches:
        apply_update(body, gradients, operands, capturable=True)
    assert body.launches == launches.count


def most_allocated(work) -> int:
    """The most bytes that the CPU's allocator holds for `work` at a time besides what it held before."""
    with torch.autograd.profiler.profile(use_kineto=True, profile_memory=True) as profiled:
        work()
    changes = [event for event in profiled.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate((event.nbytes() for event in sorted(changes, key=lambda e: e.start_ns())), initial=0))


@pytest.mark.parametrize("decay", [0.0, 0.1], ids=["no-decay", "decay"])
@pytest.mark.parametrize(("optimizer", "form"), EVERY_FORM)
def test_what_an_update_holds_for_itself_is_what_torch_optim_allocates(optimizer, form, decay):
    """Adam's foreach form holds one list at a time, its for-loop form three tensors of a parameter and one of the parameter before it."""
    own = replace(update(optimizer, form, weight_decay=decay), parameters=("p0", "p1", "p2"))
    parameters = [torch.randn(count << 10) for count in (16, 32, 16)]
    states = [initial_state(optimizer, parameter) for parameter in parameters]
    operands = [t for p, state in zip(parameters, states, strict=True) for t in (p, *state.values())]
    gradients = [small_plans.value(f"g{at}", tuple(p.shape), "gradient").operand() for at, p in enumerate(parameters)]
    task = Task("update", own, "d", reads=tuple(gradients))
    held = most_allocated(lambda: apply_update(own, [torch.randn_like(p) for p in parameters], operands)) - 4 * (64 << 10)
    assert held == pytest.approx(sum(own.temporaries(task)), abs=4096)
