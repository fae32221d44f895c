"""A module made of layers by name and a function, so that a test's model is a few lines."""

from torch import nn


class Net(nn.Module):
    """Layers and parameters by name; `step(net, *inputs)` is the forward."""

    def __init__(self, step, **parts):
        super().__init__()
        self.step = step
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.step(self, *inputs)
