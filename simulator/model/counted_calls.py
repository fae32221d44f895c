"""How far a factory is: the number of PyTorch's functions that it has called."""

from torch.overrides import TorchFunctionMode


class CountedCalls(TorchFunctionMode):
    """A context that counts the calls of PyTorch's functions in `count`."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Count a call and make it."""
        self.count += 1
        return func(*args, **(kwargs or {}))
