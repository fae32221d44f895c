"""Model factories for the tests of error messages. Each has one mistake."""

import time

import torch
from torch import nn

NOT_A_FUNCTION = 3


class Net(nn.Module):
    """A linear layer followed by the function `then`."""

    def __init__(self, then):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.then = then

    def forward(self, x):
        return self.then(self.linear(x))


def data(batch, width=4):
    return torch.randn(batch, width), torch.randint(3, (batch,))


def good(batch):
    return nn.Linear(4, 3), *data(batch)


def raises(batch):
    raise RuntimeError("no data today\nand more about it")


def exits(batch):
    raise SystemExit(3)


def returns_nothing(batch):
    return None


def returns_a_function(batch):
    return (lambda x: x), *data(batch)


def no_argument():
    return good(4)


def loss_is_a_number(batch):
    return *good(batch), 7


def loss_per_sample(batch):
    return *good(batch), lambda output, target: output.sum(1)


def loss_without_graph(batch):
    return *good(batch), lambda output, target: output.detach().sum()


def frozen(batch):
    return nn.Linear(4, 3).requires_grad_(False), *data(batch)


def lazy(batch):
    return nn.LazyLinear(3), *data(batch)


def sparse(batch):
    return nn.Sequential(nn.Embedding(9, 4, sparse=True)), torch.randint(9, (batch,)), torch.randint(4, (batch,))


def other_batch(batch):
    return nn.Linear(5, 3), *data(7, width=5)


def other_target(batch):
    return nn.Linear(4, 3), data(batch)[0], data(batch + 1)[1]


def other_width(batch):
    return nn.Linear(4, 3), *data(batch, width=5)


def reads_a_value(batch):
    return Net(lambda x: x * 2 if x.sum().item() > 0 else x), *data(batch)


def picks_by_value(batch):
    return Net(lambda x: x[x > 0]), *data(batch), lambda output, target: output.sum()


def needs_a_gpu(batch):
    return Net(lambda x: x.cuda()), *data(batch)


def forward_raises(batch):
    def complain(x):
        raise KeyError("layer 7")

    return Net(complain), *data(batch)


def class_out_of_range(batch):
    return nn.Linear(4, 3), torch.randn(batch, 4), torch.full((batch,), 5)


class Stop(BaseException):
    """Not an Exception."""


def raises_a_base_exception(batch):
    raise Stop("enough")


def forward_raises_a_base_exception(batch):
    def stop(x):
        raise Stop("enough")

    return Net(stop), *data(batch)


def never_returns(batch):
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue


def compiled(batch):
    return torch.compile(nn.Linear(4, 3)), *data(batch)


def complex_parameter(batch):
    model = nn.Linear(4, 3)
    model.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    return model, *data(batch)


def sparse_input(batch):
    x, y = data(batch)
    return nn.Linear(4, 3), x.to_sparse(), y


def nested_input(batch):
    x, y = data(batch)
    return nn.Linear(4, 3), torch.nested.nested_tensor(list(x), layout=torch.jagged), y


def meta_parameters(batch):
    return nn.Linear(4, 3, device="meta"), *data(batch)


def always_16(batch):
    return nn.Linear(4, 3), *data(16)


def hook_on_a_weight(batch):
    model = nn.Linear(4, 3)
    model.weight.register_hook(lambda gradient: gradient * 0)
    return model, *data(batch)


def hook_after_accumulation(batch):
    model = nn.Linear(4, 3)
    model.bias.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.zero_())
    return model, *data(batch)


def hook_in_forward(batch):
    model = Net(lambda x: x)

    def then(x):
        model.linear.weight.register_hook(lambda gradient: gradient * 0)
        return x

    model.then = then
    return model, *data(batch)


class Counting(Net):
    """Scales its result by the number of its calls."""

    def __init__(self):
        super().__init__(lambda x: x)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


def counts(batch):
    return Counting(), *data(batch)


class Rebinding(Net):
    """Replaces its buffer instead of changing it."""

    def __init__(self):
        super().__init__(lambda x: x)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        self.scale = self.scale + 1
        return super().forward(x) * self.scale


def rebinds_a_buffer(batch):
    return Rebinding(), *data(batch)


class ChangesInput(Net):
    """Applies ReLU to its input in place."""

    def forward(self, x):
        return super().forward(x.relu_())


def changes_its_input(batch):
    return ChangesInput(lambda x: x), *data(batch)


def backward_in_forward(batch):
    def then(x):
        x.sum().backward(retain_graph=True)
        return x

    return Net(then), *data(batch)


def hidden_gradient_hook(batch):
    """Halve a gradient by a hook that only training shows."""
    model = nn.Linear(4, 3)
    model.accumulator = model.weight.view_as(model.weight).grad_fn.next_functions[0][0]
    model.accumulator.register_prehook(lambda gradients: (gradients[0] / 2,))
    return model, *data(batch)
