"""Track the module that an op belongs to, in forward and in backward."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


class Layers:
    """A context in which `enter(path)` is called with the innermost running module; in backward, with the module of the running node."""

    def __init__(self, module: torch.nn.Module, enter: Callable[[str], None]):
        self._module, self._enter = module, enter
        self._stack: list[str] = []
        self._handles: list[Any] = []
        self._seen: set[Any] = set()

    def __enter__(self):
        for name, module in self._module.named_modules():
            self._handles.append(module.register_forward_pre_hook(lambda *_, name=name: self._push(name)))
            self._handles.append(module.register_forward_hook(lambda _m, _i, output: self._pop(output)))
        return self

    def __exit__(self, *error):
        for handle in self._handles:
            handle.remove()

    def _push(self, name: str) -> None:
        self._stack.append(name)
        self._enter(name)

    def _pop(self, output: Any) -> None:
        layer = self._stack.pop()
        self._claim(output, layer)
        self._enter(self._stack[-1] if self._stack else "loss")

    def _claim(self, output: Any, layer: str) -> None:
        """Assign every autograd node made since the last call to `layer`, so that its backward ops have this layer."""
        nodes = [t.grad_fn for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        while nodes:
            node = nodes.pop()
            if node in self._seen:
                continue
            self._seen.add(node)
            node.register_prehook(lambda _g, layer=layer: self._enter(layer))
            nodes += [following for following, _ in node.next_functions if following is not None]
